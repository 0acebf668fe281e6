"""Mixed batching takes over where the rule loses against it, whatever the cost model says."""

from __future__ import annotations

from dataclasses import replace

from policy_worlds import CALM, RTX, Grudging

from phasegate.cost.model import CostModel
from phasegate.engine.simulate import simulate
from phasegate.policy.auto import Auto
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import make_source

LIMITS = Limits(488_000, slots=256, token_budget=8192)
WORKLOAD = "prompt=256,output=64,prompt_dist=lognormal:1,output_dist=geometric"


def rate(policy: object, engine: CostModel, requests: int) -> float:
    source = make_source(WORKLOAD, concurrency=128, requests=requests, seed=3)
    record = simulate(engine, source, policy, LIMITS)  # type: ignore[arg-type]
    assert record.counts["finished"] == requests
    return requests / record.duration


def auto(cost: CostModel = RTX) -> Auto:
    policy = build_policy("auto", cost, LIMITS)
    assert isinstance(policy, Auto)
    return policy


def test_a_rule_that_wins_is_left_alone_after_one_look() -> None:
    policy = auto()
    rate(policy, RTX, 9_500)
    guard = policy.guard
    assert guard.checks >= 1
    assert guard.trips == 0
    assert not guard.tripped
    assert len(guard.gains) <= 2


def test_a_rule_that_loses_is_replaced() -> None:
    """Exclusive refills look cheaper, but spoil all that comes after them."""
    engine = replace(RTX, kappa=1.5)
    policy, bare = auto(engine), auto(engine)
    bare.guard.observe = lambda step: None  # type: ignore[method-assign]
    with_net, without = (rate(p, Grudging(engine, 0.5), 18_000) for p in (policy, bare))
    mixed = rate(build_policy("mixed", None, LIMITS), Grudging(engine, 0.5), 18_000)
    assert without < 0.9 * mixed, "a trap indeed"
    assert policy.guard.trips >= 1
    assert policy.guard.tripped
    assert policy.decision.mode == "mixed"
    assert with_net > 1.03 * without, "though the check came late"


def test_no_comparison_while_requests_are_few() -> None:
    """Whoever waits for requests to come cannot tell which mode is faster."""
    policy = auto(CALM)
    source = make_source(WORKLOAD, rate=2.0, requests=600, seed=3)
    simulate(CALM, source, policy, LIMITS)
    assert policy.guard.gains == []
