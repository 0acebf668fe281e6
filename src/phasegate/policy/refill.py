"""When to refill free slots, and how: by marginal cost.

A refill of f requests costs what it takes beyond the work that its tokens need anyway:

    exclusive   c_E = alpha_p * i_E + flip                       i_E = ceil(f*mu_L / B)
    mixed       c_M = pen * i_M + alpha_d * (f/n_e)*(i_M+1)/2    i_M = ceil(f*mu_L / (B-n))
    sliced      c_S = (alpha_p + flip) * i_S + alpha_d * (f/n_e)*(i_S-1)/2

with n decoding requests, n_e = n + f, pen = what a decode iteration takes longer when it also
prefills, flip = what the first decode iteration after a prefill takes longer, and sliced = with
a decode iteration after each prefill iteration. Waiting longer shares a refill among more
requests but leaves slots idle, which costs alpha_d * f/n_e per decode iteration. The best share x
of free slots minimises the cost per request

    J_E(x) = (alpha_p*i_E + flip + alpha_d*tau(x)) / k,   k = x*n_e
    J_M(x) = (pen*i_M + alpha_d*(tau(x) + x*(i_M+1)/2)) / k

with tau(x) the length of the decode phase that frees a share x of the slots (ours; THEORY
section 2 and `phasegate.theory.cycle`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phasegate.cost.online import NAMES, OnlineCost
from phasegate.theory.cycle import cycle, prefill_iterations
from phasegate.theory.traffic import Traffic

_GRID = 24
_WIDEST = 0.7  # the largest share of slots worth leaving empty
_CLOSE = 3e-4  # of the whole cost of a request: not worth holding anybody for


class StepCosts(NamedTuple):
    """What decides between modes, seconds.

    Attributes:
        alpha_p, alpha_d: fixed cost of a prefill-only / decode-only iteration.
        flip: what the first decode-only iteration after a prefill-only one takes longer.
        pen, pen_token, pen_context: what a mixed iteration takes longer than its prefill tokens
            and a decode-only iteration account for: fixed, per prompt token, and per context
            token of the decoding requests. May be negative.
        token, request, context: work that is the same in all modes: per prompt token, per
            decode, per context token of a decode.
    """

    alpha_p: float
    alpha_d: float
    flip: float
    pen: float
    pen_token: float
    pen_context: float
    token: float
    request: float
    context: float

    @classmethod
    def of(cls, cost: OnlineCost) -> StepCosts:
        """From the constants as they are known now."""
        c = cost.constants
        return cls(
            alpha_p=c["alpha_p"],
            alpha_d=c["alpha_d"],
            flip=c["flip"],
            pen=c["alpha_m"] - c["alpha_d"],
            pen_token=c["beta_m"] - c["beta_p"],
            pen_context=c["k_m"] - c["k_d"],
            token=c["beta_p"],
            request=c["b_d"],
            context=c["k_d"],
        )

    def penalty(self, tokens: float, passes: float, context: float) -> float:
        """Extra seconds of `tokens` prompt tokens in `passes` mixed iterations over `context`."""
        return passes * (self.pen + self.pen_context * context) + self.pen_token * tokens


class Room(NamedTuple):
    """Prompt tokens that one iteration can take: alone, and beside the decodes."""

    exclusive: float
    mixed: float


class Share(NamedTuple):
    """x*, and what refilling by it saves against mixing in every request at once, relative."""

    share: float
    gain: float


class Refill(NamedTuple):
    """What a refill would cost now, seconds, by either way."""

    exclusive: float
    mixed: float

    @property
    def is_exclusive(self) -> bool:
        """Whether the exclusive way is cheaper."""
        return self.exclusive < self.mixed

    @property
    def cost(self) -> float:
        """Seconds of the cheaper way."""
        return min(self.exclusive, self.mixed)


def refill_cost(
    costs: StepCosts,
    tokens: float,
    count: int,
    decoding: int,
    context: float,
    room: Room,
    sliced: bool,
) -> Refill:
    """Cost of a refill of `count` slots, exclusive (or sliced) and mixed.

    Args:
        costs: constants.
        tokens: prompt tokens of the refill.
        count: requests, f.
        decoding: n.
        context: sum of the contexts of the decoding requests, tokens.
        room: prompt tokens per iteration.
        sliced: an exclusive refill lets the others decode after each iteration.
    """
    idle = costs.alpha_d * count / max(count + decoding, 1) / 2
    passes = math.ceil(tokens / room.exclusive)
    exclusive = costs.alpha_p * passes + costs.flip
    if sliced:
        exclusive += (costs.flip + idle) * (passes - 1)
    passes = math.ceil(tokens / room.mixed)
    mixed = costs.penalty(tokens, passes, context) + idle * (passes + 1)
    return Refill(exclusive, mixed)


def mode_weights(tokens: float, context: float, room: Room) -> tuple[float, ...]:
    """c_E - c_M as weights of the learned constants (order of `NAMES`), idle slots left out."""
    alone = math.ceil(tokens / room.exclusive)
    passes = math.ceil(tokens / room.mixed)
    mine = {
        "alpha_p": alone,
        "flip": 1.0,
        "alpha_m": -passes,
        "alpha_d": passes,
        "beta_m": -tokens,
        "beta_p": tokens,
        "k_m": -passes * context,
        "k_d": passes * context,
    }
    return tuple(mine.get(name, 0.0) for name in NAMES)


def best_share(
    costs: StepCosts,
    in_system: int,
    traffic: Traffic,
    mean_context: float,
    room: Room,
) -> Share:
    """x*: the share of `in_system` slots to let run empty before a refill.

    The smallest one whose cost per request is within 0.03 % of the best, all work included:
    beyond that, holding requests back is not worth it.
    """
    if in_system <= 1:
        return Share(1.0, 0.0)
    k = np.unique(np.round(np.geomspace(1.0, max(1.0, _WIDEST * in_system), _GRID)))
    mean_prompt, mean_output = traffic.mean_prompt, traffic.mean_output
    phases = cycle(
        k,
        in_system,
        mean_output,
        memoryless=costs.alpha_p > costs.alpha_d * mean_output / 8.0,
    )
    freed, idle = phases.freed, costs.alpha_d * phases.decode_iterations
    tokens, variance = freed * mean_prompt, freed * traffic.prompt_std**2
    passes = prefill_iterations(tokens, variance, room.exclusive)
    exclusive = costs.alpha_p * passes + costs.flip
    if room.mixed < 0.98 * room.exclusive:
        passes = prefill_iterations(tokens, variance, room.mixed)
    context = mean_context * (in_system - freed)
    mixed = passes * (costs.pen + costs.pen_context * context) + costs.pen_token * tokens
    mixed += costs.alpha_d * freed / in_system * (passes + 1.0) / 2.0
    each = (np.minimum(exclusive, mixed) + idle) / freed
    work = costs.token * mean_prompt
    work += (costs.request + costs.context * mean_context) * max(mean_output - 1.0, 1.0)
    least = float(each.min())
    good_enough = np.flatnonzero(each <= least + _CLOSE * (least + work))
    at_once = float((mixed[0] + idle[0]) / freed[0])
    gain = max(0.0, math.log((at_once + work) / (least + work)))
    return Share(float(k[good_enough[0]]) / in_system, gain)
