"""Whatever arrives, is aborted, or is planned: the invariants hold and the engine never stalls."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariants import CheckedEngine, check_itl, check_record, checked_simulation, record_of

from phasegate.cost.model import InterferenceCost
from phasegate.policy.base import NEVER, UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request

COST = InterferenceCost(0.01, 0.02, 1e-4, 1e-4, 1e-6, 2.0, 1e-7)

EXCLUSIVE = {
    "static:n=4": NEVER,
    "exclusive:k=1": 2.0,
    "exclusive:k=3,max_hold=0.3": 0.3,
    "exclusive:theta=0.5,max_hold=0": 0.0,
    "threshold:max_hold=0.1": 0.1,
    "threshold:rule=paper,max_hold=0.1": 0.1,
}
MIXED = {
    "mixed": 0.0,
    "mixed:n=safe,token_budget=8,chunk=3": 0.0,
    "hybrid:max_hold=0.1": 0.1,
    "hybrid:rule=paper,max_hold=0.1": 0.1,
    "auto:max_hold=0.1": 0.1,
    "auto:itl=0.05,ttft=1,max_hold=0.2": 0.2,
    "auto:max_hold=0,chunk=3": 0.0,
}
HOLDS = EXCLUSIVE | MIXED
"""Policies, and how long each may hold back a request that has a slot and KV (I5), seconds."""


class Scripted:
    """A policy that cycles through given plans, however silly they are."""

    spec = "scripted"
    decision = Decision("scripted", None, 0)

    def __init__(self, plans: list[Plan]) -> None:
        self._plans = deque(plans)

    def plan(self, now: Snapshot) -> Plan:
        self._plans.rotate(-1)
        return self._plans[0]

    def observe(self, step: StepReport) -> None:
        pass


SILLY = {
    "never decodes": Plan(False, UNLIMITED, UNLIMITED, UNLIMITED),
    "never prefills": Plan(True, UNLIMITED, 0, UNLIMITED, repeat=UNLIMITED),
    "plans nothing": Plan(False, 0, 0, 0),
    "admits what it does not prefill": Plan(True, UNLIMITED, 0, UNLIMITED),
    "prefills without end": Plan(False, 0, UNLIMITED, 0, chunk=1),
    "has a chunk of zero": Plan(True, UNLIMITED, UNLIMITED, UNLIMITED, chunk=0),
    "negative": Plan(True, -1, -1, -1, chunk=-1, kv_reserve=-1000, repeat=-1, review_at=-1.0),
    "reserves more KV than there is": Plan(True, UNLIMITED, UNLIMITED, UNLIMITED, kv_reserve=10**9),
}


@dataclass
class Traffic:
    """Requests by arrival, and which of them are aborted before which step."""

    requests: list[Request]
    aborts: dict[int, list[int]] = field(default_factory=dict)


def checked(spec: str, limits: Limits) -> CheckedEngine:
    """An engine under a policy, which has to keep exclusive phases and its guard."""
    policy = build_policy(spec, COST, limits)
    return checked_simulation(
        policy, limits, COST, exclusive=spec in EXCLUSIVE, max_hold=HOLDS[spec]
    )


def drive(engine: CheckedEngine, traffic: Traffic) -> None:
    """Run to the end, checking everything; fails if it takes more steps than make sense."""
    pending = deque(sorted(traffic.requests, key=lambda r: r.arrival))
    tokens = sum(r.prompt + r.max_tokens for r in pending)
    for step in range(100 + 20 * tokens):
        while pending and pending[0].arrival <= engine.clock.now():
            engine.submit(pending.popleft())
        for request in traffic.aborts.get(step, ()):
            if request in engine.books:
                engine.abort(request)
        if not engine.step(pending[0].arrival if pending else float("inf")):
            if not pending:
                break
            engine.clock.wait_until(pending[0].arrival)
    else:
        pytest.fail("the engine makes no headway")
    engine.check_drained()
    record = record_of(engine)
    check_record(record)
    check_itl(engine, record)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Small machines: KV for one to a dozen requests, few slots, hardly any token budget."""
    page = draw(st.sampled_from((1, 16, 256)))
    pages = draw(st.integers(1, {1: 250, 16: 20, 256: 5}[page]))
    return Limits(
        kv_capacity=page * pages + draw(st.integers(0, page - 1)),
        slots=draw(st.integers(1, 8)),
        token_budget=draw(st.sampled_from((1, 3, 8, 50, 1000))),
        page=page,
        queue_limit=draw(st.sampled_from((None, 1, 3))),
        order=draw(st.sampled_from(("fcfs", "priority"))),
        ageing=draw(st.sampled_from((0.05, 1.0, 30.0))),
    )


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Up to a dozen requests, in bursts and apart; some aborted at some step, some twice."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from((0.0, 0.0, 0.02, 0.3, 5.0)),  # seconds after the one before
                st.integers(1, 90),  # prompt
                st.integers(1, 40),  # output
                st.sampled_from((0, 0, 1, 30)),  # max_tokens beyond it
                st.integers(0, 2),  # priority
            ),
            min_size=1,
            max_size=12,
        )
    )
    requests = []
    clock = 0.0
    for i, (gap, prompt, output, extra, priority) in enumerate(rows):
        clock += gap
        requests.append(Request(i, prompt, output + extra, clock, priority, output))
    aborts: dict[int, list[int]] = {}
    victims = st.tuples(st.integers(0, 60), st.integers(0, len(rows) - 1))
    for step, victim in draw(st.lists(victims, max_size=6)):
        aborts.setdefault(step, []).append(victim)
    return Traffic(requests, aborts)


plans = st.builds(
    Plan,
    decode=st.booleans(),
    admit=st.sampled_from((-1, 0, 1, 2, UNLIMITED)),
    prefill_tokens=st.sampled_from((-1, 0, 1, 7, 64, UNLIMITED)),
    capacity=st.sampled_from((-1, 0, 1, 3, UNLIMITED)),
    chunk=st.sampled_from((-1, 0, 1, 5, UNLIMITED)),
    kv_reserve=st.sampled_from((-100, 0, 10, 1000)),
    repeat=st.sampled_from((-1, 0, 1, 3, UNLIMITED)),
    review_at=st.sampled_from((-1.0, 0.5, NEVER, float("nan"))),
)

fuzzed = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("spec", [spec for spec in HOLDS if "paper" not in spec])
@fuzzed
@given(limits=limits(), traffic=traffics())
def test_every_policy_on_small_machines(spec: str, limits: Limits, traffic: Traffic) -> None:
    drive(checked(spec, limits), traffic)


@pytest.mark.parametrize("itl", [0.021, 0.03, 0.05])
@fuzzed
@given(traffic=traffics(), slots=st.integers(2, 8), budget=st.sampled_from((8, 50, 1000)))
def test_latency_targets_hold_nobody_back_for_long(
    itl: float, traffic: Traffic, slots: int, budget: int
) -> None:
    """With KV for all and a free slot, the head of the queue starts after `max_hold` at the
    latest, also where the target leaves hardly any time for prefill."""
    limits = Limits(1_000_000, slots, budget)
    policy = build_policy(f"auto:itl={itl},max_hold=0.2", COST, limits)
    drive(checked_simulation(policy, limits, COST, max_hold=0.2, whatever_n=True), traffic)


@pytest.mark.parametrize("itl", [0.03, 0.05])
def test_latency_targets_hold_nobody_back_for_long_in_overload(itl: float) -> None:
    """Hundreds of requests, more than slices can feed."""
    rng = random.Random(5)
    limits = Limits(1_000_000, 64, 500)
    requests = []
    clock = 0.0
    for i in range(300):
        clock += rng.expovariate(20.0)
        output = 1 + int(rng.expovariate(1 / 40))
        requests.append(Request(i, rng.randrange(1, 300), 400, clock, 0, output))
    policy = build_policy(f"auto:itl={itl},max_hold=0.2", COST, limits)
    engine = checked_simulation(policy, limits, COST, max_hold=0.2, whatever_n=True)
    drive(engine, Traffic(requests))


@fuzzed
@given(limits=limits(), traffic=traffics(), answers=st.lists(plans, min_size=1, max_size=8))
def test_any_sequence_of_plans(limits: Limits, traffic: Traffic, answers: list[Plan]) -> None:
    drive(checked_simulation(Scripted(answers), limits, COST), traffic)


@pytest.mark.parametrize("silly", SILLY)
@settings(fuzzed, max_examples=15)
@given(limits=limits(), traffic=traffics())
def test_a_policy_that_is_of_no_use(silly: str, limits: Limits, traffic: Traffic) -> None:
    drive(checked_simulation(Scripted([SILLY[silly]]), limits, COST), traffic)


@pytest.mark.parametrize("spec", HOLDS)
@pytest.mark.parametrize("seed", range(2))
def test_long_runs_with_aborts_on_tight_kv(spec: str, seed: int) -> None:
    """Hundreds of requests: estimates change, modes switch, KV overflows now and then."""
    rng = random.Random(seed)
    page = (1, 16)[seed]
    limits = Limits(1500, 12, 96, page, order=("fcfs", "priority")[seed], ageing=2.0)
    clock = 0.0
    requests = []
    aborts: dict[int, list[int]] = {}
    for i in range(250):
        clock += rng.expovariate(4.0)
        output = min(1 + int(rng.expovariate(1 / 60)), 400)
        requests.append(Request(i, rng.randrange(1, 150), 400, clock, rng.randrange(3), output))
        if rng.random() < 0.2:
            aborts.setdefault(rng.randrange(20 * i, 20 * i + 400), []).append(i)
    engine = checked(spec, limits)
    drive(engine, Traffic(requests, aborts))
    if spec == "mixed" or spec.startswith("exclusive"):
        assert engine.preemptions > 0, "KV was not tight after all"
