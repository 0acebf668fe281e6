"""A run that other work slowed down is told from a policy that is slow."""

from __future__ import annotations

import pytest

from phasegate.cost.model import InterferenceCost
from phasegate.engine.simulate import simulate
from phasegate.policy.spec import build_policy
from phasegate.report.disturbance import disturbed, longest_stall, slowness
from phasegate.scheduler.limits import Limits
from phasegate.workload import make_source

COST = InterferenceCost(alpha_p=5e-3, alpha_d=8e-3, beta_p=4e-5, b_d=5e-5, k_d=1e-7, kappa=3.0)
SLOW = InterferenceCost(alpha_p=4e-2, alpha_d=6e-2, beta_p=3e-4, b_d=4e-4, k_d=8e-7, kappa=3.0)
LIMITS = Limits(20_000, slots=16, page=1)


def run(engine: InterferenceCost, policy: str):
    source = make_source("prompt=200,output=50", concurrency=24, requests=100)
    return simulate(engine, source, build_policy(policy, COST, LIMITS), LIMITS)


def test_a_policy_that_is_slow_by_itself_is_not_disturbed() -> None:
    records = {policy: run(COST, policy) for policy in ("static:n=2", "mixed")}
    assert records["static:n=2"].duration > 2 * records["mixed"].duration
    seen = {name: (slowness(r, COST), longest_stall(r)) for name, r in records.items()}
    assert [slow for slow, _ in seen.values()] == pytest.approx([1.0, 1.0], abs=0.1)
    assert disturbed(seen) == ""


def test_a_machine_that_is_slower_meanwhile_is_named() -> None:
    records = {"mixed": run(SLOW, "mixed"), "hybrid": run(COST, "hybrid")}
    seen = {name: (slowness(r, COST), longest_stall(r)) for name, r in records.items()}
    sentence = disturbed(seen)
    assert "Do not trust this comparison" in sentence
    assert "mixed: 7." in sentence
    assert "hybrid" not in sentence


def test_without_iterations_there_is_nothing_to_say() -> None:
    assert disturbed({"stock": (1.0, 0.0)}) == ""
