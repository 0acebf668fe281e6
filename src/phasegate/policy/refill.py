"""When to refill free slots, and how: by marginal cost.

A refill of f requests costs what it takes beyond the work that its tokens need anyway:

    exclusive   c_E = alpha_p * i_E                            i_E = ceil(f*mu_L / B)
    mixed       c_M = pen * i_M + alpha_d * (f/n_e)*(i_M+1)/2  i_M = ceil(f*mu_L / (B-n))

with pen = what a decode iteration takes longer when it also prefills, n decoding requests and
n_e = n + f. Waiting longer shares a refill among more requests but leaves slots idle, which costs
alpha_d * f/n_e per decode iteration. The best share x of free slots minimises the cost per request

    J_E(x) = (alpha_p*i_E + alpha_d*(mu_O-1)*ln(1/(1-x))) / k,   k = x*n_e
    J_M(x) = (pen*i_M*(1-x) + alpha_d*((mu_O-1)*ln(1/(1-x)) + x*(i_M+1)/2)) / k

(ours; the decode phase that frees a share x of geometric lengths takes (mu_O-1)*ln(1/(1-x))
iterations, THEORY section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_GRID = 24
_WIDEST = 0.7  # the largest share of slots worth leaving empty


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What decides between modes, seconds.

    Attributes:
        alpha_p, alpha_d: fixed cost of a prefill-only / decode-only iteration.
        pen_fixed, pen_context: a mixed iteration takes pen_fixed + pen_context*context longer
            than its prefill tokens and a decode-only iteration account for; per iteration and
            per context token.
    """

    alpha_p: float
    alpha_d: float
    pen_fixed: float
    pen_context: float

    def penalty(self, context: float) -> float:
        """Extra seconds of a mixed iteration over `context` tokens; may be negative."""
        return self.pen_fixed + self.pen_context * context


@dataclass(frozen=True, slots=True)
class Refill:
    """What a refill would cost now.

    Attributes:
        exclusive, mixed: seconds.
    """

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
    costs: StepCosts, tokens: float, count: int, decoding: int, context: float, budget: int
) -> Refill:
    """Cost of refilling `count` slots with `tokens` prompt tokens beside `decoding` requests."""
    exclusive = costs.alpha_p * math.ceil(tokens / budget)
    passes = math.ceil(tokens / max(budget - decoding, 1))
    idle = count / max(count + decoding, 1) * (passes + 1) / 2
    mixed = passes * costs.penalty(context) + costs.alpha_d * idle
    return Refill(exclusive, mixed)


def best_share(
    costs: StepCosts,
    in_system: int,
    mean_prompt: float,
    mean_output: float,
    mean_context: float,
    budget: int,
) -> float:
    """x*: the share of `in_system` slots to let run empty before a refill, by J_E and J_M."""
    decodes = max(mean_output - 1.0, 1.0)
    context = mean_context * in_system
    start = 1.0 / max(in_system, 1)
    if start >= _WIDEST:
        return _WIDEST
    ratio = (_WIDEST / start) ** (1.0 / (_GRID - 1))
    best, share = math.inf, start
    x = start
    for _ in range(_GRID):
        k = max(1, round(x * in_system))
        x = k / in_system
        if x < 1.0:
            idle = costs.alpha_d * decodes * -math.log1p(-x)
            exclusive = costs.alpha_p * math.ceil(k * mean_prompt / budget) + idle
            room = max(budget - (1.0 - x) * in_system, 1.0)
            passes = math.ceil(k * mean_prompt / room)
            mixed = passes * costs.penalty(context * (1.0 - x)) + idle
            mixed += costs.alpha_d * x * (passes + 1) / 2
            each = min(exclusive, mixed) / k
            if each < best:
                best, share = each, x
        x = max(x * ratio, (k + 1) / in_system)
        if x > _WIDEST:
            break
    return share
