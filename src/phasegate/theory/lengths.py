"""Output-length laws as weighted lengths, and the raw moments of the usual families."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phasegate.errors import InputError

FloatArray = npt.NDArray[np.float64]

Survival = Callable[[int], float] | Sequence[float] | FloatArray
"""S(t) = P(length > t): a function of t, or its values S[0], S[1], ... (0 behind the last)."""

_LONGEST = 1 << 22


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """A distribution of lengths: `values` (tokens, ascending) with `weights` that sum to 1.

    A law estimated from data has one value per observed length; `LengthLaw.compress` keeps the
    mean and cuts it down to a few dozen, so that what policies compute stays cheap.
    """

    values: FloatArray
    weights: FloatArray

    @classmethod
    def of(
        cls,
        lengths: Sequence[float] | npt.NDArray[np.generic],
        weights: Sequence[float] | npt.NDArray[np.generic] | None = None,
    ) -> LengthLaw:
        """The empirical law of observed `lengths` (tokens), equally likely unless weighted.

        Raises:
            InputError: no lengths, a negative length, or weights that do not sum above 0.
        """
        values = np.asarray(lengths, dtype=np.float64)
        mass = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
        if values.size == 0 or values.min() < 0:
            raise InputError("lengths: need at least one length, none negative")
        if mass.shape != values.shape or mass.min() < 0 or mass.sum() <= 0:
            raise InputError("weights: need one per length, none negative, not all 0")
        distinct, where = np.unique(values, return_inverse=True)
        total: FloatArray = np.bincount(where, weights=mass, minlength=distinct.size).astype(float)
        return cls(distinct, total / total.sum())

    @classmethod
    def from_survival(cls, survival: Survival) -> LengthLaw:
        """The law with P(length > t) = survival for t = 0, 1, 2, ...

        A function is evaluated until it falls below 1e-9 (at most 4M times); what an array
        leaves over at its end is put one token behind it.

        Raises:
            InputError: the survival rises somewhere or leaves [0, 1].
        """
        s = _survival_values(survival)
        if s.size == 0 or s[0] > 1 + 1e-9 or s[-1] < -1e-9 or np.any(np.diff(s) > 1e-9):
            raise InputError("survival: must fall from at most 1 to 0 and never rise")
        mass = -np.diff(np.concatenate(([1.0], s, [0.0])))
        lengths = np.arange(mass.size, dtype=np.float64)
        kept = mass > 1e-12
        return cls(lengths[kept], mass[kept] / mass[kept].sum())

    @property
    def mean(self) -> float:
        """E[length], tokens."""
        return float(self.values @ self.weights)

    def moment(self, order: int) -> float:
        """E[length^order], tokens^order."""
        return float(self.values**order @ self.weights)

    def survival(self, t: float | FloatArray) -> FloatArray:
        """P(length > t), one value per t."""
        below = np.concatenate(([0.0], np.cumsum(self.weights)))
        alive: FloatArray = 1.0 - below[np.searchsorted(self.values, t, side="right")]
        return np.maximum(alive, 0.0)

    def shifted(self, by: float) -> LengthLaw:
        """The law of max(0, length + by)."""
        return LengthLaw(np.maximum(self.values + by, 0.0), self.weights)

    def compress(self, size: int) -> LengthLaw:
        """The same law in at most `size` values: neighbours are merged to their mean, by weight."""
        if self.values.size <= size:
            return self
        rank = np.cumsum(self.weights) - self.weights / 2
        group = np.minimum((rank * size).astype(np.int64), size - 1)
        mass: FloatArray = np.bincount(group, weights=self.weights, minlength=size).astype(float)
        total = np.bincount(group, weights=self.weights * self.values, minlength=size)
        kept = mass > 0
        return LengthLaw(total[kept] / mass[kept], mass[kept])

    def cycles(self, tau: float | FloatArray) -> FloatArray:
        """E[ceil(length / tau)] = sum over j >= 0 of S(j*tau), one value per tau.

        The mean number of decode phases of `tau` iterations that a request lives through.
        """
        taus = np.atleast_1d(np.asarray(tau, dtype=np.float64))
        counts = np.ceil(self.values[:, None] / taus[None, :] - 1e-9)
        result: FloatArray = self.weights @ counts
        return result


def _survival_values(survival: Survival) -> FloatArray:
    if not callable(survival):
        return np.asarray(survival, dtype=np.float64)
    values: list[float] = []
    while len(values) < _LONGEST and (not values or values[-1] > 1e-9):
        values.append(float(survival(len(values))))
    return np.asarray(values)


def raw_moments(law: str, mean: float, shape: float = 0.0) -> tuple[float, float, float, float]:
    """E[X], E[X^2], E[X^3], E[X^4] of a length law in closed form.

    Args:
        law: "fixed"; "uniform" (mean +- shape*mean); "geometric" (on 1, 2, ...);
            "lognormal" (shape = coefficient of variation); "gamma" (shape = its shape).
        mean: tokens.
        shape: see `law`; unused by "fixed" and "geometric".

    Raises:
        InputError: unknown law, or a mean or shape outside its range.
    """
    if mean <= 0 or (law == "geometric" and mean < 1):
        raise InputError(f"mean: {mean:g} is too small for a {law} length; use 1 or more")
    if law == "fixed":
        return mean, mean**2, mean**3, mean**4
    if law == "uniform":
        if not 0 <= shape <= 1:
            raise InputError(f"shape: uniform needs a half-width in 0..1, not {shape:g}")
        h = (shape * mean) ** 2
        m2 = mean**2
        return mean, m2 + h / 3, mean * (m2 + h), m2 * m2 + 2 * m2 * h + h * h / 5
    if law == "geometric":
        p = 1.0 / mean
        second = (2 - p) / p**2
        third = (6 - 6 * p + p**2) / p**3
        fourth = (2 - p) * (12 - 12 * p + p**2) / p**4
        return mean, second, third, fourth
    if law == "lognormal":
        if shape < 0:
            raise InputError(f"shape: lognormal needs a CV >= 0, not {shape:g}")
        c = 1 + shape * shape
        return mean, mean**2 * c, mean**3 * c**3, mean**4 * c**6
    if law == "gamma":
        if shape <= 0:
            raise InputError(f"shape: gamma needs a shape > 0, not {shape:g}")
        scale = mean / shape
        moments = [math.prod(shape + i for i in range(r)) * scale**r for r in (1, 2, 3, 4)]
        return moments[0], moments[1], moments[2], moments[3]
    raise InputError(f"law: unknown {law!r}; use fixed, uniform, geometric, lognormal or gamma")
