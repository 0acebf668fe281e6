"""How many requests fit into the KV cache: memory-safe N (THEORY section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from phasegate.cost.model import CostModel
from phasegate.errors import InputError
from phasegate.theory.lengths import FloatArray, raw_moments

Moments = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """KV tokens held by one running request, seen at a random moment of steady state.

    Such a request is length-biased (long outputs stay longer) and its age is uniform over its
    life: its r-th moment is E[O-integral of (L + age)^r] / E[O]
    = E[(L+O)^(r+1) - L^(r+1)] / ((r+1) * E[O]).

    Attributes:
        mean: m, tokens. Also the mean context length of a decoding request.
        variance: v, tokens^2.
        third: third central moment, tokens^3; 0 leaves the skewness out.
        mean_error: standard error of `mean` if it was estimated, tokens.
    """

    mean: float
    variance: float
    third: float = 0.0
    mean_error: float = 0.0

    @classmethod
    def from_moments(cls, prompt: Moments, output: Moments, page: int = 1) -> SlotLoad:
        """From E[X], ..., E[X^4] of prompt and output lengths that are independent.

        Args:
            prompt, output: raw moments, tokens^r, e.g. from `raw_moments`.
            page: KV is handed out in pages of so many tokens; the last one is half full.
        """
        l1, l2, l3, _ = prompt
        o1, o2, o3, o4 = output
        if o1 <= 0:
            raise InputError(f"output: the mean output must be above 0 tokens, not {o1:g}")
        first = l1 + o2 / (2 * o1)
        second = l2 + (l1 * o2 + o3 / 3) / o1
        third = l3 + (1.5 * l2 * o2 + l1 * o3 + o4 / 4) / o1
        return cls._from_raw(first, second, third, page)

    @classmethod
    def from_laws(
        cls,
        mean_prompt: float,
        mean_output: float,
        prompt_law: str = "uniform",
        output_law: str = "geometric",
        prompt_shape: float = 0.0,
        output_shape: float = 0.0,
        page: int = 1,
    ) -> SlotLoad:
        """From closed forms; laws and shapes as in `raw_moments`."""
        return cls.from_moments(
            raw_moments(prompt_law, mean_prompt, prompt_shape),
            raw_moments(output_law, mean_output, output_shape),
            page,
        )

    @classmethod
    def from_samples(
        cls,
        prompts: Sequence[float] | FloatArray,
        outputs: Sequence[float] | FloatArray,
        weights: Sequence[float] | FloatArray | None = None,
        page: int = 1,
    ) -> SlotLoad:
        """From finished requests, prompt and output length of each (correlation included).

        Args:
            prompts, outputs: tokens.
            weights: one per request, e.g. from `KaplanMeier`; equal unless given.
            page: KV page size, tokens.

        Raises:
            InputError: no samples, different numbers of them, or no output token at all.
        """
        L = np.asarray(prompts, dtype=np.float64)
        O = np.asarray(outputs, dtype=np.float64)  # noqa: E741
        if L.size == 0 or L.shape != O.shape or O.sum() <= 0:
            raise InputError("samples: need a prompt and an output length of at least one request")
        w = np.ones_like(L) if weights is None else np.asarray(weights, dtype=np.float64)
        w = w / w.sum()
        total, time = L + O, float(w @ O)
        first = float(w @ (total**2 - L**2)) / (2 * time)
        second = float(w @ (total**3 - L**3)) / (3 * time)
        third = float(w @ (total**4 - L**4)) / (4 * time)
        # Standard error of the ratio of means behind m.
        residual = (total**2 - L**2) / 2 - first * O
        error = math.sqrt(float(w**2 @ residual**2)) / time
        return cls._from_raw(first, second, third, page, error)

    @classmethod
    def _from_raw(
        cls, first: float, second: float, third: float, page: int, error: float = 0.0
    ) -> SlotLoad:
        variance = max(0.0, second - first**2)
        central = third - 3 * first * second + 2 * first**3
        return cls(first + (page - 1) / 2, variance + (page * page - 1) / 12, central, error)


def memory_safe_n(load: SlotLoad, capacity: float, eps: float = 0.01) -> int:
    """The largest N whose KV need exceeds `capacity` with probability <= eps; at least 1.

    N*m + z_eps*sqrt(N*v) <= C; THEORY section 3 (ours), for exclusive and mixed batching. Two
    corrections keep it honest where the sum is not normal or m not known: z_eps is the quantile
    of a gamma law with the skewness of the sum (Wilson and Hilferty), and an estimated mean adds
    its own variance N^2*mean_error^2 under the root.

    Args:
        load: of one slot.
        capacity: C, KV tokens.
        eps: allowed share of time with N requests running in which they do not fit.

    Raises:
        InputError: eps outside (0, 0.5], or a capacity or mean load that is not positive.
    """
    if not 0 < eps <= 0.5:
        raise InputError(f"eps: {eps:g} is not a small probability; use 0 < eps <= 0.5")
    if capacity <= 0 or load.mean <= 0:
        raise InputError("capacity and load: must be above 0 tokens")
    z = NormalDist().inv_cdf(1 - eps)
    skewness = load.third / load.variance**1.5 if load.variance > 0 else 0.0

    def need(n: int) -> float:
        spread = n * load.variance + (n * load.mean_error) ** 2
        return n * load.mean + _skewed_quantile(z, skewness / math.sqrt(n)) * math.sqrt(spread)

    low, high = 1, max(2, math.ceil(capacity / load.mean) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= capacity else (low, middle)
    return low


_AGE = 0.15


def full_cache_preemptions(mean_prompt: float, mean_output: float) -> float:
    """Preemptions per request if prompts are admitted whenever KV has room for them (ours).

    A request that ends makes room for 1 + x prompts, x = mu_O/mu_L; the growth of the others
    preempts all but one of them, the youngest first: rho = x / (1 + x/6). The six is fitted to
    simulations (x from 0.05 to 10, 8 to 128 requests in KV, three length laws).
    """
    x = mean_output / mean_prompt
    return x / (1.0 + x / 6.0)


def full_cache_gain(
    cost: CostModel,
    mean_prompt: float,
    mean_output: float,
    safe: float,
    full: float,
    preemptions: float,
) -> float:
    """What a full KV cache saves against memory-safe N, seconds per request (ours).

    A full cache runs more requests, so each token carries less of an iteration's fixed cost; but
    those that it preempts, young ones, are recomputed:

        alpha_d*(mu_O-1)*(1/N_safe - 1/N_full) - rho*T_prefill(mu_L + 0.15*mu_O)

    With some hundred requests a safe N wastes little and wins; with a dozen it leaves a third of
    the cache empty. Checked by `benchmarks/tight_kv.py`.

    Args:
        cost: of an iteration.
        mean_prompt, mean_output: mu_L and mu_O, tokens.
        safe, full: running requests with a memory-safe N, and in a full cache.
        preemptions: rho, per request, see `full_cache_preemptions`.
    """
    saved = cost.alpha_decode * max(mean_output - 1.0, 0.0) * (1.0 / safe - 1.0 / full)
    again = mean_prompt + _AGE * mean_output
    return saved - preemptions * cost.seconds(again, 0.5 * again * again, 0, 0)


def _skewed_quantile(z: float, skewness: float) -> float:
    """The quantile z of a standard normal variable, for a gamma variable with this skewness.

    Wilson and Hilferty (1931). With growing skewness a gamma quantile rises and falls again; it
    is kept at its height, where laws with heavier tails stay. Negative skewness is no help.
    """
    g = min(skewness, 1.8 * z)
    if g < 1e-6:
        return z
    return float(2.0 / g * ((1.0 + g * z / 6.0 - g * g / 36.0) ** 3 - 1.0))


def paper_memory_safe_n(
    capacity: float, mean_prompt: float, p0: float, theta: float, eps: float = 0.01
) -> int:
    """The paper's N, at least 1. Eq. (6) (paper).

        floor( (C - ln(1/eps)/(p0^2*mu_L)) / (mu_L + (1-theta)/(theta*p0) * ln(1/(1-theta))) )

    Its margin does not grow with sqrt(N): at eps = 0.01 the measured overflow probability has a
    median of 0.09. For comparison; `memory_safe_n` is the default.

    Args:
        capacity: C, KV tokens.
        mean_prompt: mu_L, tokens.
        p0: hazard, 1/mu_O.
        theta: k/N, between 0 and 1.
        eps: overflow probability.
    """
    if not (0 < theta < 1 and p0 > 0 and mean_prompt > 0 and 0 < eps < 1):
        raise InputError("eq. (6): needs 0 < theta < 1, 0 < eps < 1, and p0, mean_prompt above 0")
    margin = math.log(1 / eps) / (p0 * p0 * mean_prompt)
    per_slot = mean_prompt + (1 - theta) / (theta * p0) * -math.log1p(-theta)
    return max(1, math.floor((capacity - margin) / per_slot))
