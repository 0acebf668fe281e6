"""A long refill does not starve those that decode: `max_stall` bounds the time between tokens."""

from __future__ import annotations

import pytest

from phasegate.cost.model import InterferenceCost
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload.build import make_source

COST = InterferenceCost(4.69e-3, 8.07e-3, 46.8e-6, 56e-6, 97.3e-9, 3.5)
LIMITS = Limits(kv_capacity=488_000, slots=128, token_budget=8192)
LONGEST_PREFILL = COST.seconds(8192, 0.0, 0, 0.0)
BURST = (
    "prompt=128,output=2000,requests=36,rate=inf;"
    "prompt=4500,output=200,prompt_dist=uniform:0.3,requests=90,rate=inf"
)


def burst(spec: str) -> RunRecord:
    """36 requests that decode for long, and 90 prompts of 3-6k tokens at once."""
    policy = build_policy(spec, COST, LIMITS)
    return simulate(COST, make_source(BURST, seed=1), policy, LIMITS)


@pytest.mark.parametrize("spec", ["exclusive:k=1", "threshold"])
def test_a_burst_of_long_prompts_stalls_decodes_no_longer_than_the_guard(spec: str) -> None:
    values, _ = burst(f"{spec},max_stall=1" if ":" in spec else f"{spec}:max_stall=1").itl()
    assert values.max() <= 1.0 + LONGEST_PREFILL + 0.2


def test_without_the_guard_the_whole_refill_is_waited_for() -> None:
    values, _ = burst("exclusive:k=1,max_stall=none").itl()
    assert values.max() > 10.0


@pytest.mark.parametrize("spec", ["exclusive:k=1", "auto"])
def test_no_patience_at_all_alternates_and_starves_nobody(spec: str) -> None:
    """With max_stall=0 every prefill iteration is followed by a decode iteration, and new
    prompts still get in."""
    run = burst(f"{spec}{',' if ':' in spec else ':'}max_stall=0")
    values, _ = run.itl()
    assert values.max() <= 2 * LONGEST_PREFILL
    assert run.requests["first_token"].max() < 0.9 * run.requests["end"].max()


def test_phases_stay_exclusive() -> None:
    kinds = burst("exclusive:k=1,max_stall=0.5").iterations["kind"]
    assert set(kinds.tolist()) == {0.0, 1.0}


def test_static_batching_lets_others_in_after_max_hold() -> None:
    bound = burst("static:n=64,max_hold=3").requests
    free = burst("static:n=64").requests
    assert (bound["first_token"] - bound["arrival"]).max() < (
        free["first_token"] - free["arrival"]
    ).max()
