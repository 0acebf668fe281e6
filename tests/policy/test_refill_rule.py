"""When to refill, and how: costs and the best share of idle slots."""

from __future__ import annotations

import pytest

from phasegate.cost.model import InterferenceCost
from phasegate.cost.online import NAMES, OnlineCost, Prior
from phasegate.policy.refill import Room, StepCosts, best_share, mode_weights, refill_cost
from phasegate.theory.threshold import exact_geometric_overhead
from phasegate.theory.traffic import Traffic

from policy_worlds import CALM, RTX  # isort: skip

ROOM = Room(8192, 8000)


def costs(model: object = RTX) -> StepCosts:
    return StepCosts.of(OnlineCost(Prior.of(model)))  # type: ignore[arg-type]


def test_interference_is_the_price_of_mixing() -> None:
    c = costs(RTX)
    assert c.pen == pytest.approx(0.0, abs=1e-9)
    assert c.pen_context == pytest.approx(2.5 * RTX.k_d)
    assert costs(CALM).pen_context == pytest.approx(0.0, abs=1e-15)


def test_cost_of_a_refill() -> None:
    """20,000 prompt tokens take 3 iterations either way; 10 of 100 slots are idle."""
    refill = refill_cost(costs(RTX), 20_000, 10, 90, 100_000, ROOM, sliced=False)
    assert refill.exclusive == pytest.approx(3 * RTX.alpha_p)
    penalty = 3 * 2.5 * RTX.k_d * 100_000
    assert refill.mixed == pytest.approx(penalty + RTX.alpha_d * 0.1 * (3 + 1) / 2)
    assert refill.is_exclusive
    assert refill.cost == refill.exclusive


def test_slices_leave_slots_idle_in_between() -> None:
    whole = refill_cost(costs(RTX), 20_000, 10, 90, 100_000, ROOM, sliced=False)
    sliced = refill_cost(costs(RTX), 20_000, 10, 90, 100_000, ROOM, sliced=True)
    assert sliced.exclusive == pytest.approx(whole.exclusive + RTX.alpha_d * 0.1 * (3 - 1) / 2)
    assert sliced.mixed == whole.mixed


def test_without_interference_mixing_is_free() -> None:
    assert not refill_cost(costs(CALM), 2000, 2, 98, 100_000, ROOM, sliced=False).is_exclusive


def test_weights_reproduce_the_difference() -> None:
    """All but the idle slots of a mixed refill."""
    learner = OnlineCost(Prior.of(RTX))
    refill = refill_cost(StepCosts.of(learner), 20_000, 10, 90, 100_000, ROOM, sliced=False)
    weights = mode_weights(20_000, 100_000, ROOM)
    constants = [learner[name] for name in NAMES]
    difference = sum(w * c for w, c in zip(weights, constants, strict=True))
    idle = RTX.alpha_d * 0.1 * (3 + 1) / 2
    assert difference == pytest.approx(refill.exclusive - refill.mixed + idle)


HARSH = InterferenceCost(RTX.alpha_p, RTX.alpha_d, RTX.beta_p, RTX.b_d, RTX.k_d, kappa=1000.0)
"""Never worth mixing."""


def share_of(n: int, prompt: float, output: float) -> float:
    context = prompt + output
    return best_share(costs(HARSH), n, Traffic(prompt, output, context), context, ROOM).share


@pytest.mark.parametrize("n", [32, 128, 512])
@pytest.mark.parametrize("mean_output", [32, 256, 1024])
def test_best_share_is_close_to_the_exact_optimum(n: int, mean_output: int) -> None:
    """Geometric outputs, tiny prompts: within 0.3 % of the whole cost of a request."""
    k = max(1, round(n * share_of(n, 10.0, mean_output)))
    overhead = exact_geometric_overhead(n, mean_output - 1, RTX.alpha_p, RTX.alpha_d)
    work = RTX.beta_p * 10.0 + (RTX.b_d + RTX.k_d * (10.0 + mean_output)) * mean_output
    assert overhead[k - 1] - overhead.min() <= 0.003 * (work + overhead.min())


def test_nobody_is_held_for_less_than_the_refill_is_worth() -> None:
    """Long prompts: the fixed cost of a refill hardly counts beside them."""
    assert share_of(256, 8000.0, 256.0) < share_of(256, 64.0, 256.0)


def test_alone_in_the_system() -> None:
    assert share_of(1, 512.0, 256.0) == 1.0
    assert share_of(2, 512.0, 256.0) == 0.5
