"""One cycle of EB(k): a decode phase that frees slots, then the prefill phase that refills them.

In phasegate, as in vLLM, the prefill of a request produces its first token, so a request with
`output` tokens takes part in output - 1 decode iterations. The formulas below count that way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, pdtrc

from phasegate.theory.lengths import FloatArray, LengthLaw

_TAUS_PER_LAW = 48
_LAW_SIZE = 64


@dataclass(frozen=True, slots=True)
class Cycle:
    """Means over one cycle, one value per threshold k.

    Attributes:
        freed: slots that are free when the decode phase ends (at least k: several requests may
            finish in the same iteration).
        decode_iterations: tau, length of the decode phase.
        prefill_iterations: iterations that prefill the freed slots within the token budget.
    """

    freed: FloatArray
    decode_iterations: FloatArray
    prefill_iterations: FloatArray


def cycle(
    k: FloatArray,
    n: int,
    mean_output: float,
    *,
    law: LengthLaw | None = None,
    memoryless: bool = False,
    mean_prompt: float = 0.0,
    prompt_std: float = 0.0,
    token_budget: float = math.inf,
) -> Cycle:
    """The steady-state cycle for each threshold in `k` (1..n), waiting requests plentiful.

    Args:
        k: thresholds, freed slots that trigger a refill.
        n: slots.
        mean_output: output tokens per request, the first one included.
        law: law of the output lengths; the renewal-reward form is then used for tau.
        memoryless: without a law, take tau for geometric lengths instead of the insensitive
            form (see `decode_phase`).
        mean_prompt, prompt_std: prompt tokens per request; 0: a prefill takes one iteration.
        token_budget: B, tokens per iteration.
    """
    decodes = max(mean_output - 1.0, 1e-9)
    curve = None if law is None else _freed_curve(law)

    def phase(freed: FloatArray) -> FloatArray:
        return decode_phase(freed, n, decodes, curve=curve, memoryless=memoryless)

    # The slot count jumps by several per iteration when many requests finish at once. For
    # Poisson-like jumps of mean `jump` the crossing overshoots by jump/2, and a phase of one
    # iteration already frees a whole jump.
    jump = n / (decodes + 0.5)
    freed = np.minimum(np.maximum(k + k / (2.0 * np.maximum(phase(k), k / jump)), jump), float(n))
    tau = np.maximum(phase(freed), 1.0)
    passes = _passes(k, freed, freed / tau, mean_prompt, prompt_std, token_budget)
    return Cycle(freed, tau, passes)


def _passes(
    k: FloatArray,
    freed: FloatArray,
    per_step: FloatArray,
    mean_prompt: float,
    prompt_std: float,
    token_budget: float,
) -> FloatArray:
    """E[prefill iterations] with Poisson completions, `per_step` per iteration on average.

    The edge of the budget is sharp, so where few requests finish together the slots freed beyond
    k are counted one by one: r of them with probability P(completions > r) / per_step.
    """
    if math.isinf(token_budget) or mean_prompt <= 0:
        return np.ones_like(freed)
    variance = freed * prompt_std**2 + (per_step / 2 + per_step**2 / 12) * mean_prompt**2
    passes = prefill_iterations(freed * mean_prompt, variance, token_budget)
    few = np.flatnonzero((per_step < 2.0) & (freed > k) & (np.sqrt(variance) < token_budget))
    if few.size:
        rate = per_step[few]
        slots = k[few, None] + np.arange(5.0)[None, :]
        beyond = pdtrc(np.arange(4.0)[None, :], rate[:, None]) / rate[:, None]
        odds = np.column_stack((beyond, np.maximum(0.0, 1.0 - beyond.sum(axis=1))))
        each = prefill_iterations(
            (slots * mean_prompt).ravel(), (slots * prompt_std**2).ravel(), token_budget
        )
        passes[few] = (odds * each.reshape(slots.shape)).sum(axis=1)
    return passes


def decode_phase(
    freed: FloatArray,
    n: int,
    decodes: float,
    *,
    curve: tuple[FloatArray, FloatArray] | None = None,
    memoryless: bool = False,
) -> FloatArray:
    """tau, the decode iterations after which `freed` of n slots are free (THEORY section 2).

    Fluid steady state: freed/n = 1 / sum_j S(j*tau). Without a law the sum is taken as
    decodes/tau + 1/2, which holds for every law as long as tau is small against `decodes`
    (insensitive form), or as for geometric lengths (`memoryless`). Slots free up one by one, so a
    phase that frees F of them runs n - (F-1)/2 requests on average, not the fluid's n - F/2: the
    fluid of n + 1/2 slots.

    Args:
        freed: slots, each 0 < freed <= n.
        n: slots.
        decodes: mean decode iterations per request.
        curve: share of the slots freed, ascending, and the tau that frees it, from a law.
    """
    slots = n + 0.5
    if curve is not None:
        share, taus = curve
        tau: FloatArray = np.interp(freed, slots * share, taus)
        first = slots * share[0]
        return np.where(freed < first, taus[0] * freed / first, tau)
    if memoryless:
        return -decodes * np.log1p(-freed / slots)
    result: FloatArray = decodes / (slots / freed - 0.5)
    return result


def _freed_curve(law: LengthLaw) -> tuple[FloatArray, FloatArray]:
    """Share of the slots freed by decode phases, and their tau, for a law of output lengths."""
    decodes = law.shifted(-1.0).compress(_LAW_SIZE)
    taus = np.geomspace(0.25, max(1.0, float(decodes.values[-1])), _TAUS_PER_LAW)
    share = 1.0 / np.maximum(decodes.cycles(taus), 1e-9)
    # Lengths with gaps between them can make the share dip; the threshold waits for the rise.
    return np.maximum.accumulate(share), taus


def prefill_iterations(tokens: FloatArray, variance: FloatArray, token_budget: float) -> FloatArray:
    """E[ceil(S/B)] for a prompt total S of mean `tokens` and `variance`; at least 1.

    With S spread over a third of the budget or more, the ceil averages out to S/B + 1/2.

    Args:
        tokens: mean of S, tokens.
        variance: variance of S, tokens^2.
        token_budget: B, tokens per iteration.
    """
    if math.isinf(token_budget):
        return np.ones_like(tokens)
    load = tokens / token_budget
    spread = np.sqrt(variance) / token_budget
    passes: FloatArray = np.where(spread > 0, load + 0.5, np.ceil(load - 1e-9))
    sharp = np.flatnonzero((spread > 0) & (spread < 0.35))
    first = np.floor(load[sharp]) - 1.0
    margin = load[sharp, None] - first[:, None] - np.arange(4.0)[None, :]
    passes[sharp] = first + ndtr(margin / spread[sharp, None]).sum(axis=1)
    return np.maximum(passes, 1.0)
