"""Fitting the interference model to measured iterations (THEORY section 1).

The model is linear in its constants once kappa is written as k_d + extra:

    T = alpha_p*[n_d = 0] + alpha_d*[n_d > 0] + beta_p*n_p + beta_q*Q + b_d*n_d + k_d*X
        + extra*X*[mixed],      kappa = 1 + extra/k_d

so non-negative least squares gives physical constants and kappa >= 1. Rows are scaled by 1/T
(relative errors count), outliers are weighted down (Huber), and confidence intervals come from
resampling the measured iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from phasegate.cost.model import InterferenceCost
from phasegate.errors import InputError

Array = npt.NDArray[np.float64]

CONSTANTS = ("alpha_p", "alpha_d", "beta_p", "beta_q", "b_d", "k_d", "kappa")

_HUBER = 2.0  # scaled residuals beyond this are outliers
_STALL = 1.5
_ROUNDS = 12
_RESAMPLES = 200


class Sample(NamedTuple):
    """One measured iteration: its composition (see `CostModel.seconds`) and its seconds, time
    between iterations included."""

    prefill_tokens: int
    prefill_attention: float
    decodes: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how good it is.

    Attributes:
        cost: the constants; `host` is inside alpha, since time between iterations was measured.
        intervals: 95 % confidence interval of each constant, by name.
        r2: share of the variance of T over compositions (medians) that the model explains.
        worst: largest relative residual of a composition (median over its repetitions).
        worst_sample: a sample of that composition.
        typical: median absolute relative residual over compositions.
        samples: number of iterations used.
        stalls: iterations that took more than 1.5 times the median of their composition: the
            machine stood still. They hardly count for the constants, and not for the residuals.
        longest_stall: the largest of these factors, 1 without stalls.
    """

    cost: InterferenceCost
    intervals: dict[str, tuple[float, float]]
    r2: float
    worst: float
    worst_sample: Sample
    typical: float
    samples: int
    stalls: int = 0
    longest_stall: float = 1.0


def fit_interference(samples: Sequence[Sample], seed: int = 0) -> Fit:
    """Fit an `InterferenceCost` to measured iterations.

    Args:
        samples: prefill-only, decode-only and mixed iterations, at several contexts.
        seed: of the resampling for the confidence intervals.

    Raises:
        InputError: a kind of iteration is missing, or a time is not positive.
    """
    rows = np.array([s[:4] for s in samples], dtype=np.float64).reshape(-1, 4)
    seconds = np.array([s.seconds for s in samples], dtype=np.float64)
    prefill, decode = rows[:, 0] > 0, rows[:, 2] > 0
    for name, found in (
        ("prefill-only", prefill & ~decode),
        ("decode-only", decode & ~prefill),
        ("mixed", prefill & decode),
    ):
        if not found.any():
            raise InputError(f"samples: no {name} iteration; measure all three kinds")
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise InputError("samples: a time is not a positive number of seconds; measure again")
    if len({(r[2], r[3]) for r in rows[decode & ~prefill]}) < 2:
        raise InputError("samples: decode-only iterations all look the same; vary the context")

    design = _design(rows)
    solution = _robust(design, seconds)
    rng = np.random.default_rng(seed)
    spread = np.array(
        [
            _constants(_solve(design[pick], seconds[pick], np.ones(len(pick))))
            for pick in rng.integers(0, len(samples), (_RESAMPLES, len(samples)))
        ]
    )
    low, high = np.quantile(spread, (0.025, 0.975), axis=0)
    values = _constants(solution)
    model = design @ solution
    factor = _against_likes(rows, seconds, model)
    steady = factor <= max(_STALL, float(factor.min()))
    residual = (model - seconds) / seconds
    per_shape = _median_by_row(rows, residual, steady)
    worst_row, worst = max(per_shape, key=lambda item: abs(item[1]))
    model = model[[i for i, _ in per_shape]]
    measured = model / (1.0 + np.array([value for _, value in per_shape]))
    total = float(((measured - measured.mean()) ** 2).sum())
    r2 = 1.0 - float(((model - measured) ** 2).sum()) / total if total > 0 else 1.0
    return Fit(
        cost=InterferenceCost(**dict(zip(CONSTANTS, values.tolist(), strict=True))),
        intervals={
            name: (min(lo, v), max(hi, v))
            for name, lo, hi, v in zip(
                CONSTANTS, low.tolist(), high.tolist(), values.tolist(), strict=True
            )
        },
        r2=r2,
        worst=worst,
        worst_sample=samples[worst_row],
        typical=float(np.median([abs(value) for _, value in per_shape])),
        samples=len(samples),
        stalls=int((~steady).sum()),
        longest_stall=float(factor[~steady].max(initial=1.0)),
    )


def _design(rows: Array) -> Array:
    n_p, attention, n_d, context = rows.T
    decode = n_d > 0
    mixed = decode & (n_p > 0)
    return np.column_stack(
        [~decode, decode, n_p, attention, n_d, context, np.where(mixed, context, 0.0)]
    ).astype(np.float64)


def _robust(design: Array, seconds: Array) -> Array:
    """Iteratively reweighted non-negative least squares on relative errors."""
    weight = np.ones(len(seconds))
    solution = _solve(design, seconds, weight)
    for _ in range(_ROUNDS):
        residual = (design @ solution - seconds) / seconds
        scale = 1.4826 * float(np.median(np.abs(residual))) + 1e-12
        excess = np.abs(residual) / scale
        weight = np.where(excess > _HUBER, _HUBER / np.maximum(excess, 1e-300), 1.0)
        before, solution = solution, _solve(design, seconds, weight)
        if np.allclose(before, solution, rtol=1e-9, atol=0.0):
            break
    return solution


def _solve(design: Array, seconds: Array, weight: Array) -> Array:
    scale = np.sqrt(weight) / seconds
    matrix = design * scale[:, None]
    size = np.linalg.norm(matrix, axis=0)
    size[size == 0.0] = 1.0  # columns differ by ten orders of magnitude
    solution, _ = nnls(matrix / size, np.sqrt(weight))
    result: Array = solution / size
    return result


def _constants(solution: Array) -> Array:
    """The model's constants; where decode attention costs nothing there is no interference."""
    k_d, extra = solution[5], solution[6]
    kappa = 1.0 + extra / k_d if k_d > 0 else 1.0
    return np.append(solution[:6], kappa)


def _by_composition(rows: Array) -> list[list[int]]:
    """Samples of the same composition; contexts differ by a few tokens between repetitions, so
    compositions are told apart by rounded shares."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for i, row in enumerate(rows):
        per_request = row[3] / row[2] if row[2] else 0.0
        key = (row[0], round(row[1], 1), row[2], round(per_request / 32))
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _against_likes(rows: Array, seconds: Array, model: Array) -> Array:
    """How much longer than usual each iteration took: the usual is the median over the same
    composition, or what the model says where that was measured only once or twice."""
    factor = np.ones(len(rows))
    for members in _by_composition(rows):
        usual = np.median(seconds[members]) if len(members) > 2 else model[members]
        factor[members] = seconds[members] / np.maximum(usual, 1e-300)
    return factor


def _median_by_row(rows: Array, residual: Array, steady: Any) -> list[tuple[int, float]]:
    """(index of a sample, median residual) per composition, over the steady samples."""
    found = []
    for members in _by_composition(rows):
        kept = [i for i in members if steady[i]]
        if kept:
            found.append((kept[0], float(np.median(residual[kept]))))
    return found
