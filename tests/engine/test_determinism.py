"""I6: the same run gives the same records; jumping over decode iterations does not change them."""

from __future__ import annotations

import numpy as np
import pytest

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import make_source

PROFILE = load_profile("rtx-pro-6000/qwen3-8b")
COST = PROFILE.cost_model()
WORKLOAD = "prompt=300,output=120,output_dist=geometric"
SPECS = ("mixed", "exclusive:k=1", "exclusive:k=6,max_hold=0.4", "static:n=12")
LEARNING = ("mixed:n=safe", "threshold", "hybrid", "threshold:rule=paper", "hybrid:rule=paper")
AUTO = ("auto", "auto:itl=0.1,ttft=2")


class OneByOne:
    """The same policy, but every iteration is a step of its own."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def spec(self) -> str:
        return self._policy.spec

    @property
    def decision(self) -> Decision:
        return self._policy.decision

    def plan(self, now: Snapshot) -> Plan:
        return self._policy.plan(now)._replace(repeat=1)

    def observe(self, step: StepReport) -> None:
        self._policy.observe(step)


def run(
    spec: str, page: int, *, rate: float | None, jump: bool = True, requests: int = 200
) -> RunRecord:
    """Requests on KV for about a dozen of them: some are preempted."""
    limits = Limits(5000, slots=16, token_budget=512, page=page)
    policy = build_policy(spec, COST, limits)
    concurrency = None if rate else 20
    source = make_source(WORKLOAD, rate=rate, concurrency=concurrency, requests=requests, seed=7)
    return simulate(COST, source, policy if jump else OneByOne(policy), limits)


def assert_same(one: RunRecord, other: RunRecord) -> None:
    """Equal to the last bit."""
    for table in ("requests", "iterations"):
        ones, others = getattr(one, table), getattr(other, table)
        for name in ones:
            np.testing.assert_array_equal(ones[name], others[name], err_msg=name)
    for mine, theirs in zip(one.itl(), other.itl(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for row in range(len(one.requests["id"])):
        np.testing.assert_array_equal(one.itl_values(row), other.itl_values(row))
    assert one.decisions == other.decisions
    assert one.duration == other.duration


@pytest.mark.parametrize("rate", [None, 2.5])
@pytest.mark.parametrize("spec", SPECS + LEARNING + AUTO)
def test_same_seed_same_records(spec: str, rate: float | None) -> None:
    assert_same(run(spec, 16, rate=rate), run(spec, 16, rate=rate))


@pytest.mark.parametrize("rate", [None, 2.5])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("spec", SPECS + LEARNING + AUTO)
def test_jumping_leaves_the_same_records(spec: str, page: int, rate: float | None) -> None:
    jumped = run(spec, page, rate=rate)
    assert_same(jumped, run(spec, page, rate=rate, jump=False))
    assert jumped.counts["finished"] == 200


@pytest.mark.parametrize("spec", AUTO)
def test_jumping_over_checks_of_the_safety_net(spec: str) -> None:
    jumped = run(spec, 16, rate=None, requests=1500)
    assert_same(jumped, run(spec, 16, rate=None, requests=1500, jump=False))
