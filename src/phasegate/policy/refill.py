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

    J_E(x) = (alpha_p*i_E + flip + alpha_d*(mu_O-1)*ln(1/(1-x))) / k,   k = x*n_e
    J_M(x) = (pen*i_M + alpha_d*((mu_O-1)*ln(1/(1-x)) + x*(i_M+1)/2)) / k

(ours; the decode phase that frees a share x of geometric lengths takes (mu_O-1)*ln(1/(1-x))
iterations, THEORY section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phasegate.cost.online import OnlineCost

_GRID = 24
_WIDEST = 0.7  # the largest share of slots worth leaving empty
_CLOSE = 1e-3  # of the whole cost of a request: not worth holding anybody for


@dataclass(frozen=True, slots=True)
class StepCosts:
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


@dataclass(frozen=True, slots=True)
class Room:
    """Prompt tokens that one iteration can take: alone, and beside the decodes."""

    exclusive: float
    mixed: float


@dataclass(frozen=True, slots=True)
class Refill:
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


def best_share(
    costs: StepCosts,
    in_system: int,
    mean_prompt: float,
    mean_output: float,
    mean_context: float,
    room: Room,
) -> float:
    """x*: the share of `in_system` slots to let run empty before a refill.

    The smallest one whose cost per request is within 0.1 % of the best, all work included:
    beyond that, holding requests back is not worth it.
    """
    decodes = max(mean_output - 1.0, 1.0)
    work = costs.token * mean_prompt
    work += (costs.request + costs.context * mean_context) * decodes
    if in_system <= 1:
        return 1.0
    ratio = (_WIDEST * in_system) ** (1.0 / (_GRID - 1))
    found: list[tuple[float, float]] = []
    k = 1
    while k < in_system and (k == 1 or k <= _WIDEST * in_system):
        x = k / in_system
        tokens = k * mean_prompt
        exclusive = costs.alpha_p * math.ceil(tokens / room.exclusive) + costs.flip
        passes = math.ceil(tokens / room.mixed)
        context = mean_context * (in_system - k)
        mixed = costs.penalty(tokens, passes, context) + costs.alpha_d * x * (passes + 1) / 2
        idle = costs.alpha_d * decodes * -math.log1p(-x)
        found.append(((min(exclusive, mixed) + idle) / k, x))
        k = max(k + 1, round(k * ratio))
    good_enough = min(found)[0]
    good_enough += _CLOSE * (good_enough + work)
    return next(x for each, x in found if each <= good_enough)
