"""What the HTML report draws: exact means and quantiles, few points, close-ups."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_run import hand_record

from phasegate.engine.record import RunRecord
from phasegate.policy.base import Decision
from phasegate.report.series import BINS, MOST_DECISIONS, SHARES, run_series
from phasegate.report.window import ITERATIONS, LANES, windows


def long_record(iterations: int, requests: int) -> RunRecord:
    """Iterations of 1 s, every fourth a prefill; requests of 10 s, one per second, from 0 s on."""
    record = hand_record()
    record.duration = float(iterations)
    record.iterations = {
        "start": np.arange(iterations, dtype=float),
        "duration": np.ones(iterations),
        "kind": (np.arange(iterations) % 4 > 0).astype(float),
        "prefill_tokens": np.full(iterations, 64.0),
        "decodes": np.full(iterations, 8.0),
        "slots": np.full(iterations, 8.0),
        "kv_used": np.full(iterations, 500.0),
        "waiting": np.zeros(iterations),
    }
    admitted = np.arange(requests, dtype=float)
    same = np.zeros(requests)
    record.requests = {
        "arrival": admitted,
        "admitted": admitted,
        "first_token": admitted + 1,
        "end": admitted + 10,
        "prompt": same + 5,
        "output": same + 10,
        "preemptions": same,
        "status": same,
    }
    return record


def test_timeline_bins_are_exact_means() -> None:
    timeline = run_series(hand_record())["timeline"]
    assert timeline["end"] == 10.0
    at = [int(second / 10 * BINS) + 1 for second in (0, 2, 3, 5, 8)]
    assert [timeline["prefill"][i] for i in at] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [timeline["decode"][i] for i in at] == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert [timeline["slots"][i] for i in at] == [2.0, 2.0, 1.0, 1.0, 0.0]
    assert [timeline["kv"][i] for i in at] == [0.3, 0.302, 0.202, 0.203, 0.0]
    assert np.mean(timeline["slots"]) == pytest.approx(1.1, rel=1e-3)


def test_cdf_values_grow_from_the_smallest_to_the_largest() -> None:
    cdf = run_series(hand_record())["cdf"]
    assert (cdf["itl"][0], cdf["itl"][-1]) == (1.0, 3.0)
    assert (cdf["e2e"][0], cdf["e2e"][-1]) == (3.0, 7.5)
    assert all(len(values) == len(SHARES) for values in cdf.values())
    assert sorted(SHARES) == SHARES


def test_latencies_that_nobody_had_are_null() -> None:
    record = long_record(10, 3)
    record.requests["first_token"][:] = np.nan
    assert run_series(record)["cdf"]["ttft"] is None


def test_the_size_does_not_grow_with_the_run() -> None:
    short, long = (
        len(json.dumps(run_series(long_record(n, n)), allow_nan=False)) for n in (2000, 50_000)
    )
    assert long < 1.5 * short < 150_000


def test_few_decisions_are_kept_as_they_are() -> None:
    decisions = run_series(hand_record())["decisions"]
    assert decisions == {
        "changes": 2,
        "time": [2.0, 5.0],
        "k": [2, 1],
        "n": [8, 8],
        "mode": ["exclusive", "exclusive"],
    }


def test_of_many_decisions_those_in_force_at_even_moments_are_kept() -> None:
    record = hand_record()
    record.decisions = [(i / 1000, Decision("exclusive", i, 8)) for i in range(10_000)]
    decisions = run_series(record)["decisions"]
    assert decisions["changes"] == 10_000
    assert len(decisions["time"]) <= MOST_DECISIONS
    assert decisions["k"][0] == 0
    assert decisions["k"][-1] == 9_999


def test_a_run_without_iterations_can_be_drawn() -> None:
    record = long_record(0, 0)
    record.decisions = []
    series = run_series(record)
    assert series["windows"] == []
    assert sum(series["timeline"]["slots"]) == 0.0


def test_a_short_run_is_one_close_up_and_a_long_one_three() -> None:
    assert [view["name"] for view in windows(long_record(50, 5))] == ["all"]
    views = windows(long_record(5000, 100))
    assert [view["name"] for view in views] == ["start", "middle", "end"]
    assert [view["first"] for view in views] == [0, 2500 - ITERATIONS // 2, 5000 - ITERATIONS]
    assert all(len(view["start"]) == ITERATIONS for view in views)


def test_requests_sit_in_the_lowest_free_lane() -> None:
    (view,) = windows(long_record(50, 30))
    assert [row[0] for row in view["lanes"]] == [i % 10 for i in range(30)]
    assert view["lanes"][12][1:] == [12.0, 13.0, 22.0, 5, 10, 0]


def test_only_so_many_lanes_are_drawn() -> None:
    record = long_record(50, 100)
    record.requests["admitted"][:] = 0.0
    (view,) = windows(record)
    assert len(view["lanes"]) == LANES


def test_a_request_aborted_during_its_prefill_has_no_decode() -> None:
    record = long_record(50, 1)
    record.requests["first_token"][:] = np.nan
    (view,) = windows(record)
    assert view["lanes"][0][2] == view["lanes"][0][3] == 10.0
