"""Mixed or exclusive: throughput of both, and the paper's condition (THEORY section 4)."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri, pdtrc

from phasegate.cost.model import CostModel
from phasegate.errors import InputError
from phasegate.theory.cycle import cycle
from phasegate.theory.lengths import FloatArray
from phasegate.theory.threshold import long_phases
from phasegate.theory.traffic import Traffic

_SQRT_2 = math.sqrt(2.0)
_SQRT_TAU = math.sqrt(2 * math.pi)
_CASES = ndtri((np.arange(8) + 0.5) / 8)


def exclusive_gain(
    *,
    n: int,
    k: float,
    theta: float,
    mean_prompt: float,
    mean_output: float,
    alpha_p: float,
    alpha_d: float,
    beta_p: float,
    beta_d: float,
    beta_mixed: float,
    alpha_mixed: float = 0.0,
) -> float:
    """Seconds per token that EB(k) saves against mixed batching; EB wins when above 0.

    Prop. 4 (paper):

        (beta_MB(r) - beta_EB) - [ (alpha_p - alpha_d*ln(1-theta)*mu_O)/k
                                   - alpha_MB*(1+mu_O)/N ] / (mu_L+mu_O)

    with beta_EB = (beta_p*mu_L + beta_d*mu_O)/(mu_L+mu_O).

    Args:
        n: N, slots.
        k, theta: threshold and k/N, theta below 1.
        mean_prompt, mean_output: mu_L, mu_O, tokens.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
        beta_p, beta_d: cost per token, seconds.
        beta_mixed: beta_MB at the decode share r = mu_O/(mu_L+mu_O), seconds per token.
        alpha_mixed: fixed cost of a mixed iteration, seconds; 0 if `beta_mixed` was fitted to
            the throughput of whole runs, since it then holds the fixed cost already.
    """
    tokens = mean_prompt + mean_output
    beta_exclusive = (beta_p * mean_prompt + beta_d * mean_output) / tokens
    exclusive_overhead = (alpha_p - alpha_d * math.log1p(-theta) * mean_output) / k
    mixed_overhead = alpha_mixed * (1 + mean_output) / n
    return (beta_mixed - beta_exclusive) - (exclusive_overhead - mixed_overhead) / tokens


def exclusive_rate(
    cost: CostModel, n: int, k: float, traffic: Traffic, token_budget: float = math.inf
) -> float:
    """X_EB, requests per second of EB(k) with n requests in the system; THEORY section 4 (ours).

    Args:
        cost: seconds of an iteration.
        n: requests really in the system, not the cap.
        k: freed slots that trigger a refill, 1..n.
        traffic: lengths.
        token_budget: B, tokens per iteration.
    """
    _check(n, token_budget)
    coarse = long_phases(traffic.mean_output, cost.alpha_prefill, cost.alpha_decode)
    phases = cycle(
        np.array([min(max(float(k), 1.0), float(n))]),
        n,
        traffic.mean_output,
        law=traffic.law if coarse else None,
        memoryless=coarse,
        mean_prompt=traffic.mean_prompt,
        prompt_std=traffic.prompt_std,
        token_budget=token_budget,
    )
    freed = float(phases.freed[0])
    tau = float(phases.decode_iterations[0])
    passes = float(phases.prefill_iterations[0])
    share = freed / passes
    seconds = passes * cost.seconds(
        share * traffic.mean_prompt, share * traffic.prompt_attention, 0, 0.0
    )
    decoding = freed * (traffic.mean_output - 1.0) / tau
    if decoding > 0:
        seconds += tau * cost.seconds(0, 0.0, decoding, decoding * traffic.mean_context)
    return freed / seconds


def mixed_rate(cost: CostModel, n: int, traffic: Traffic, token_budget: float = math.inf) -> float:
    """X_MB, requests per second of mixed batching with n requests in the system.

    THEORY section 4 (ours): E[m] / E[T(n_p = m*mu_L, n_d = N-m)], m ~ Binomial(N, 1/mu_O): in
    each iteration every slot starts a request with probability 1/mu_O. Decodes go first, so at
    most B - n_d prompt tokens fit into an iteration; when the traffic brings more, prompts queue
    inside the batch, the mean iteration is full, and slots are spent waiting (`_started`).

    Args:
        cost: seconds of an iteration.
        n: requests really in the system, not the cap.
        traffic: lengths.
        token_budget: B, tokens per iteration.
    """
    _check(n, token_budget)
    started = _started(n, traffic, token_budget)
    slots = started * traffic.mean_output
    decoding = slots - started
    room = max(token_budget - decoding, 1.0)
    weights = _binomial(slots, 1.0 / traffic.mean_output)
    idle = float(weights[0]) * _nothing_left(started, traffic, room)
    idle = min(idle, max(0.0, 1.0 - started * traffic.mean_prompt / room))
    batches = np.arange(1.0, weights.size)
    odds = weights[1:] * ((1.0 - idle) / (1.0 - weights[0]))
    tokens = _stretched(batches * traffic.mean_prompt, odds, started * traffic.mean_prompt, room)
    decodes = np.maximum(slots - batches, 0.0)
    decodes *= max(0.0, decoding - idle * slots) / max(float(odds @ decodes), 1e-300)
    attention = traffic.prompt_attention / traffic.mean_prompt
    context = traffic.mean_context
    seconds = idle * cost.seconds(0, 0.0, slots, slots * context)
    for weight, n_p, n_d in zip(odds.tolist(), tokens.tolist(), decodes.tolist(), strict=True):
        seconds += weight * cost.seconds(n_p, n_p * attention, n_d, n_d * context)
    return started / seconds


def _started(n: int, traffic: Traffic, token_budget: float) -> float:
    """Requests that start (and end) per mixed iteration.

    A request holds a slot for mu_O iterations, and longer if its prompt waits for room: started
    solves x * (mu_O + wait(x)) = n, and never exceeds what the budget carries.
    """
    free = n / traffic.mean_output
    if math.isinf(token_budget):
        return free
    low, high = 0.0, min(free, token_budget / (traffic.mean_prompt + traffic.mean_output - 1.0))
    for _ in range(40):
        x = (low + high) / 2
        if x * (traffic.mean_output + _wait(x, traffic, token_budget)) > n:
            high = x
        else:
            low = x
        if high - low < 1e-6 * high:
            break
    return high if low == 0.0 else low


def _wait(started: float, traffic: Traffic, token_budget: float) -> float:
    """Iterations that a prompt waits beyond its one, mean; by Little's law on the prompt queue.

    The queue is a random walk: `started` prompts come per iteration, room tokens go. Its mean is
    that of a walk with normal steps (Spitzer's formula; Chang and Peres 1997 near saturation).
    """
    mean = started * traffic.mean_prompt
    spare = token_budget - started * (traffic.mean_output - 1.0) - mean
    if spare <= 0:
        return math.inf
    deviation = math.sqrt(started * (traffic.mean_prompt**2 + traffic.prompt_std**2))
    beta = spare / deviation
    if beta < 0.5:
        height = 0.5 / beta - 0.5826 + beta / 4
    else:
        height = 0.0
        for i in range(1, 40):
            z = beta * math.sqrt(i)
            if z > 6:
                break
            density = math.exp(-z * z / 2) / _SQRT_TAU
            height += (density - z * math.erfc(z / _SQRT_2) / 2) / math.sqrt(i)
    return deviation * height / mean


def _nothing_left(started: float, traffic: Traffic, room: float) -> float:
    """Probability that no prompt token is left over from the iteration before.

    Spitzer: exp(-sum_i P(i iterations bring more than they carry)/i), prompts coming as a
    Poisson stream. For the first iterations the spread of the prompt lengths decides how many
    prompts they carry; it is averaged over eight equally likely cases.
    """
    if math.isinf(room):
        return 1.0
    carried = room / traffic.mean_prompt
    i = np.arange(1.0, 9.0)[:, None]
    spread = traffic.prompt_std / traffic.mean_prompt / np.sqrt(np.maximum(i * carried, 1.0))
    cases = np.maximum(i * carried * (1.0 + spread * _CASES[None, :]), 0.0)
    near = pdtrc(np.floor(cases + 1e-9), i * started).mean(axis=1) / i[:, 0]
    j = np.arange(9.0, 200.0)
    far = pdtrc(np.floor(j * carried + 1e-9), j * started) / j
    return math.exp(-float(near.sum() + far.sum()))


def _binomial(n: float, p: float) -> FloatArray:
    """P(m), m = 0, 1, ..., for m ~ Binomial(n, p), real n, out to 7 standard deviations."""
    top = max(1, math.ceil(min(n, n * p + 7 * math.sqrt(n * p * (1 - p)) + 7)))
    if p >= 1:
        weights = np.zeros(top + 1)
        weights[-1] = 1.0
        return weights
    m = np.arange(top, dtype=np.float64)
    steps = np.log(np.maximum(n - m, 1e-12)) - np.log(m + 1) + math.log(p / (1 - p))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    result: FloatArray = weights / weights.sum()
    return result


def _stretched(tokens: FloatArray, odds: FloatArray, mean: float, room: float) -> FloatArray:
    """Prompt tokens per iteration, capped at `room`, stretched until their mean is `mean`.

    What the cap cuts off one iteration is processed in others: those that hold prompts anyway
    (stretch above 1) or, with prompts as long as the budget, additional ones (below 1).
    """
    if math.isinf(room):
        return tokens
    low, high = 0.0, 1.0
    while float(odds @ np.minimum(tokens * high, room)) < mean and high < 1e6:
        low, high = high, 2 * high
    for _ in range(30):
        if high - low < 1e-4 * high:
            break
        stretch = (low + high) / 2
        if float(odds @ np.minimum(tokens * stretch, room)) < mean:
            low = stretch
        else:
            high = stretch
    return np.minimum(tokens * high, room)


def _check(n: int, token_budget: float) -> None:
    if n < 1:
        raise InputError(f"n: {n} requests in the system; needs at least 1")
    if token_budget < 1:
        raise InputError(f"token_budget: {token_budget:g} must be at least 1 token")
