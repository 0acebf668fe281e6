"""N from the estimates, and what an overflow teaches: the capacity behind `n=safe`."""

from __future__ import annotations

from typing import Any

import pytest

from phasegate.policy.base import Finished, Snapshot, Started, StepReport
from phasegate.policy.capacity import MemorySafeCapacity
from phasegate.policy.traffic import TrafficMonitor

KV = 200_000


def state(running: int) -> Snapshot:
    """A server that decodes `running` requests, with 500 slots."""
    return Snapshot(0.0, 9, 0, running, 0, 0, KV, 0, 0.0, 500, 8192, False, lambda limit: [])


def step(**changes: Any) -> StepReport:
    """One decode iteration; what is not named did not happen."""
    values: dict[str, Any] = {
        "start": 0.0, "end": 1.0, "durations": (1.0,), "iterations": 1, "prefill_tokens": 0,
        "prefill_attention": 0.0, "decodes": 1, "context_tokens": 0, "slots_busy": 1,
        "arrived": (), "admitted": 0, "started": (), "finished": (), "preempted": (),
        "kv_blocked": False, "waiting": 9,
    }  # fmt: skip
    return StepReport(**(values | changes))


def complete(monitor: TrafficMonitor, count: int, output: int = 500) -> None:
    """`count` requests of 500 prompt tokens come and go."""
    for _ in range(count):
        number = 10_000 + monitor.completions
        monitor.observe(step(arrived=[500], started=[Started(number, 500, 1, 500)]))
        monitor.observe(step(finished=[Finished(number, 500, output)]))


@pytest.fixture
def monitor() -> TrafficMonitor:
    """Has seen a thousand requests of 500 + 500 tokens."""
    monitor = TrafficMonitor()
    complete(monitor, 1000)
    return monitor


def test_n_is_what_fits_on_average_less_a_margin(monitor: TrafficMonitor) -> None:
    """A running request holds 750 tokens on average: 266 of them fill 200,000."""
    n = MemorySafeCapacity(monitor, page=1, eps=0.01).limit(state(200))
    assert 240 < n < 266


def test_an_overflow_takes_n_below_what_still_runs(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1, 2]))
    assert capacity.limit(state(200)) == 196
    assert safe > 196


def test_n_recovers_by_a_hundredth_per_hundred_completions(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1]))
    capacity.limit(state(200))
    seen = []
    for _ in range(40):
        complete(monitor, 100)
        seen.append(capacity.limit(state(200)))
    assert seen[:2] == [197, 199]
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(safe, abs=2)


def test_giving_way_to_a_more_urgent_request_is_no_overflow(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1], admitted=1))
    assert capacity.limit(state(240)) == safe


def test_after_a_shift_the_lesson_is_a_share_of_the_new_estimate(monitor: TrafficMonitor) -> None:
    """Much shorter outputs: N does not have to climb there from where the overflow left it."""
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1]))
    assert capacity.limit(state(200)) < safe
    for _ in range(20):
        complete(monitor, 100, output=5)
        capacity.limit(state(200))
    assert capacity.limit(state(200)) > 1.3 * safe
