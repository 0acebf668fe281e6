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


def complete(monitor: TrafficMonitor, count: int, output: int = 500, arrivals: bool = True) -> None:
    """`count` requests of 500 prompt tokens come and go."""
    for _ in range(count):
        number = 10_000 + monitor.completions
        arrived = [500] if arrivals else []
        monitor.observe(step(arrived=arrived, started=[Started(number, 500, 1, 500)]))
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


def test_the_spread_of_prompts_is_no_reason_for_a_smaller_n() -> None:
    """KV is checked for each prompt at admission; what can overflow is the growth."""
    even, spread = TrafficMonitor(), TrafficMonitor()
    for monitor, prompts in ((even, (500, 500)), (spread, (50, 950))):
        for i in range(1000):
            monitor.observe(step(arrived=[prompts[i % 2]]))
        complete(monitor, 1000, arrivals=False)
    first, second = (
        MemorySafeCapacity(m, page=1, eps=0.01).limit(state(9)) for m in (even, spread)
    )
    assert first == second


def test_n_shrinks_with_each_estimate_before_which_kv_overflowed(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1, 2]))
    assert capacity.limit(state(238)) == safe, "no news of the lengths yet"
    complete(monitor, 100)
    assert capacity.limit(state(238)) == pytest.approx(0.95 * safe, abs=1)
    monitor.observe(step(preempted=[3]))
    complete(monitor, 100)
    assert capacity.limit(state(238)) == pytest.approx(0.95**2 * safe, abs=1)


def test_n_recovers_while_nothing_overflows(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1]))
    seen = []
    for _ in range(8):
        complete(monitor, 100)
        seen.append(capacity.limit(state(200)))
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] == safe


def test_what_a_cold_start_overflows_is_forgiven(monitor: TrafficMonitor) -> None:
    """All requests start at once with lengths unknown: the first estimate is taken as it is."""
    cold = TrafficMonitor()
    capacity = MemorySafeCapacity(cold, page=1, eps=0.01)
    cold.observe(step(preempted=range(50)))
    capacity.limit(state(250))
    complete(cold, 1000)
    calm = MemorySafeCapacity(monitor, page=1, eps=0.01)
    assert capacity.limit(state(200)) == calm.limit(state(200))


def test_giving_way_to_a_more_urgent_request_is_no_overflow(monitor: TrafficMonitor) -> None:
    capacity = MemorySafeCapacity(monitor, page=1, eps=0.01)
    safe = capacity.limit(state(240))
    monitor.observe(step(preempted=[1], admitted=1))
    complete(monitor, 100)
    assert capacity.limit(state(240)) == safe
