"""The engine loop: whose time is whose, what a policy is told, and when a jump ends."""

from __future__ import annotations

import pytest

from phasegate.cost.model import InterferenceCost
from phasegate.engine.clock import VirtualClock, WallClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.loop import Engine
from phasegate.engine.record import Recorder
from phasegate.engine.step import Batch, StepResult
from phasegate.policy.base import Decision, Finished, Plan, Snapshot, Started, StepReport
from phasegate.policy.capacity import FixedCapacity
from phasegate.policy.mixed import Mixed
from phasegate.policy.options import Options
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request
from phasegate.scheduler.scheduler import Scheduler
from phasegate.workload import OpenSource, RequestTable

COST = InterferenceCost(alpha_p=1.0, alpha_d=2.0, beta_p=1 / 8, b_d=1 / 4, k_d=0.0)
LIMITS = Limits(64, slots=2)


class Listener:
    """Mixed batching that keeps what it is told."""

    spec = "listener"

    def __init__(self) -> None:
        self._mixed = Mixed(Options(), FixedCapacity(8), None, "mixed")
        self.reports: list[StepReport] = []

    def plan(self, now: Snapshot) -> Plan:
        return self._mixed.plan(now)

    def observe(self, step: StepReport) -> None:
        self.reports.append(step)

    @property
    def decision(self) -> Decision:
        return self._mixed.decision


class SlowModel:
    """A real model as the engine sees it: time passes while it runs, and it says nothing.
    Only requests for a single token come to an end here."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.released: list[int] = []

    def run(self, batch: Batch) -> StepResult:
        self.clock.advance(self.seconds)
        return StepResult((), [s.request for s in batch.prefill if s.request.max_tokens == 1])

    def release(self, request: Request) -> None:
        self.released.append(request.id)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def live(clock: VirtualClock) -> Engine:
    """An engine on a model that takes 3 s per iteration."""
    return Engine(Listener(), Scheduler(LIMITS), SlowModel(clock, 3.0), clock, Recorder())


def simulated(policy: Listener | None = None) -> Engine:
    return Engine(
        policy or Listener(), Scheduler(LIMITS), CostModelRunner(COST), VirtualClock(), Recorder()
    )


def reports(engine: Engine) -> list[StepReport]:
    assert isinstance(engine.policy, Listener)
    return engine.policy.reports


class TestTime:
    def test_host_work_between_two_steps_belongs_to_the_later_one(
        self, live: Engine, clock: VirtualClock
    ) -> None:
        live.submit(Request(0, 8, 5))
        live.step()
        clock.advance(0.5)  # tokens are sent, requests are read, ...
        live.step()
        first, second = reports(live)
        assert (first.start, first.end, first.durations) == (0.0, 3.0, (3.0,))
        assert (second.start, second.end, second.durations) == (3.0, 6.5, (3.5,))

    def test_idle_time_belongs_to_nobody(self, live: Engine, clock: VirtualClock) -> None:
        live.submit(Request(0, 8, 1))
        live.step()
        assert not live.step()
        clock.advance(100.0)
        live.submit(Request(1, 8, 1, arrival=103.0))
        live.step()
        assert (reports(live)[1].start, reports(live)[1].end) == (103.0, 106.0)

    def test_time_after_everything_was_aborted_is_idle(
        self, live: Engine, clock: VirtualClock
    ) -> None:
        """Whoever drives the engine need not call `step` when there is no work."""
        live.submit(Request(0, 8, 5))
        live.step()
        live.abort(0)
        clock.advance(100.0)
        live.submit(Request(1, 8, 1, arrival=103.0))
        live.step()
        assert reports(live)[1].durations == (3.0,)

    def test_a_virtual_clock_never_goes_back(self, clock: VirtualClock) -> None:
        clock.advance(5.0)
        clock.wait_until(3.0)
        assert clock.now() == 5.0
        clock.wait_until(7.25)
        assert clock.now() == 7.25
        for seconds in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="cannot advance"):
                clock.advance(seconds)

    def test_a_wall_clock_does_not_wait_for_the_past(self) -> None:
        clock = WallClock()
        before = clock.now()
        clock.wait_until(before - 100.0)
        clock.advance(-100.0)
        assert before <= clock.now() < before + 50.0


class TestReports:
    def test_a_policy_is_told_who_came_started_and_left(self) -> None:
        engine = simulated()
        engine.submit(Request(0, 8, 2))
        engine.submit(Request(1, 4, 9))
        engine.submit(Request(2, 6, 9))
        engine.step()
        engine.step(until=0.0)
        engine.abort(1)
        engine.submit(Request(3, 5, 1))
        engine.step()
        one, two, three = reports(engine)
        assert (one.arrived, one.admitted, one.prefill_tokens) == ([8, 4, 6], 2, 12)
        assert one.started == [Started(0, 8, 1, 8), Started(1, 4, 1, 4)]
        assert (one.slots_busy, one.waiting, one.decodes) == (2, 1, 0)
        assert (two.arrived, two.started, two.decodes, two.context_tokens) == ([], [], 2, 12)
        assert two.finished == [Finished(0, 8, 2)]
        assert three.finished[0] == Finished(1, 4, 2, complete=False)
        assert three.finished[1:] == [Finished(3, 5, 1)], "one token: the end of its prefill"
        assert three.arrived == [5]

    def test_whoever_ends_is_announced_once(self) -> None:
        ended: list[tuple[int, str]] = []
        engine = simulated()
        engine.on_end = lambda request: ended.append((request.id, request.state.value))
        engine.submit(Request(0, 1000, 1))
        engine.submit(Request(1, 8, 2))
        engine.submit(Request(2, 8, 2))
        assert engine.abort(2)
        assert not engine.abort(2)
        assert not engine.abort(77)
        while engine.step():
            pass
        assert ended == [(0, "rejected"), (2, "aborted"), (1, "finished")]
        assert (engine.submitted, engine.ended) == (3, 3)

    def test_progress_counts_everyone(self) -> None:
        shown: list[int] = []
        simulated().run(OpenSource(RequestTable.of([8] * 250, [2] * 250, arrival=[0.0] * 250)),
                        shown.append)  # fmt: skip
        assert sum(shown) == 250
        assert len(shown) == 3


class TestJumps:
    """A decode iteration of one request takes 2.25 s here, its prefill 2 s."""

    def test_ends_after_the_iteration_in_which_somebody_arrives(self) -> None:
        engine = simulated()
        engine.submit(Request(0, 8, 50))
        engine.step()
        engine.step(until=5.0)
        assert engine.clock.now() == 2.0 + 2 * 2.25
        assert reports(engine)[1].iterations == 2
        assert reports(engine)[1].durations == [2.25, 2.25]

    def test_an_arrival_at_the_very_end_of_an_iteration_is_in_time_for_the_next(self) -> None:
        engine = simulated()
        engine.submit(Request(0, 8, 50))
        engine.step()
        engine.step(until=4.25)
        assert engine.clock.now() == 4.25

    def test_ends_with_the_first_request_that_ends(self) -> None:
        engine = simulated()
        engine.submit(Request(0, 8, 50, output=7))
        engine.submit(Request(1, 8, 50, output=4))
        engine.step()
        engine.step()
        assert reports(engine)[1].iterations == 3
        assert reports(engine)[1].finished == [Finished(1, 8, 4)]

    def test_max_tokens_ends_a_request_of_unknown_length(self) -> None:
        engine = simulated()
        engine.submit(Request(0, 8, 5))
        while engine.step():
            pass
        assert reports(engine)[-1].finished == [Finished(0, 8, 5)]


def test_a_runner_is_told_to_release_whoever_leaves(live: Engine) -> None:
    runner = live.runner
    assert isinstance(runner, SlowModel)
    live.submit(Request(0, 8, 1))
    live.submit(Request(1, 8, 9))
    live.submit(Request(2, 8, 9))
    live.step()
    assert runner.released == [0]
    live.abort(1)
    assert runner.released == [0, 1]
    live.abort(2)
    assert runner.released == [0, 1], "it was waiting: the runner never heard of it"


def test_a_cost_model_runner_forgets_whoever_is_released() -> None:
    runner = CostModelRunner(COST)
    engine = Engine(Listener(), Scheduler(LIMITS), runner, VirtualClock())
    for i in range(2):
        engine.submit(Request(i, 8, 9))
    engine.step()
    engine.step(until=0.0)
    engine.abort(0)
    while engine.step():
        pass
    assert engine.ended == 2
    assert not runner._ends
    assert not runner._end_of
