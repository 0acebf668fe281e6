"""Records: what is kept, and how it is read. That every gap is right is checked in the fuzz runs
and by hand in `test_examples.py`."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

from phasegate.cost.model import InterferenceCost
from phasegate.engine.record import ITL_EDGES, Recorder, RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Decision
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, source_of

COST = InterferenceCost(alpha_p=1.0, alpha_d=2.0, beta_p=1 / 8, b_d=1 / 4, k_d=0.0)


def run(cost: InterferenceCost, table: RequestTable, spec: str = "mixed") -> RunRecord:
    limits = Limits(100, slots=4)
    policy = build_policy(spec, cost, limits)
    return simulate(cost, source_of(table), policy, limits, profile="toy")


def test_what_was_run() -> None:
    record = run(COST, RequestTable.of([8], [3], arrival=[1.0], label="one request"))
    assert (record.policy, record.profile, record.workload) == ("mixed", "toy", "one request")
    assert (record.slots, record.submitted) == (4, 1)
    assert record.kv_capacity == 96, "whole pages"
    assert record.duration == 1.0 + 2.0 + 2 * 2.25


def test_what_never_happened_is_nan() -> None:
    record = run(COST, RequestTable.of([200, 8], [3, 1], arrival=[1.0, 2.0]))
    assert record.requests["status"].tolist() == [2, 0]
    assert math.isnan(record.requests["admitted"][0])
    assert math.isnan(record.requests["first_token"][0])
    assert record.requests["end"][0] == 1.0
    assert record.counts == {"finished": 1, "rejected": 1, "aborted": 0}


def test_a_run_without_any_gap() -> None:
    """Single tokens come out of the prefill; there are no decodes and no latencies between."""
    record = run(COST, RequestTable.of([8, 8], [1, 1], arrival=[0.0, 9.0]))
    values, weights = record.itl()
    assert values.size == weights.size == 0
    assert record.itl_values(0).size == 0
    assert record.itl_histogram(1).sum() == 0
    assert record.iterations["kind"].tolist() == [0, 0]


def test_a_run_in_which_everything_was_rejected() -> None:
    record = run(COST, RequestTable.of([200], [1], arrival=[0.0]))
    assert record.counts["rejected"] == 1
    assert record.iterations["start"].size == 0
    assert record.itl()[0].size == 0
    assert record.decisions == []


def test_histogram_bins() -> None:
    """Twenty per decade from 0.1 ms to 1,000 s; what lies outside has a bin at either end."""
    assert (ITL_EDGES[0], ITL_EDGES[1], ITL_EDGES[-2], ITL_EDGES[-1]) == (0.0, 1e-4, 1e3, np.inf)
    assert ITL_EDGES[21] == pytest.approx(1e-3)
    assert np.all(np.diff(ITL_EDGES) > 0)
    for alpha_d, where in ((1e-6, 0), (5000.0, ITL_EDGES.size - 2)):
        cost = InterferenceCost(1.0, alpha_d, 0.0, 0.0, 0.0)
        record = run(cost, RequestTable.of([8], [4], arrival=[0.0]))
        histogram = record.itl_histogram(0)
        assert histogram[where] == histogram.sum() == 3


def test_decisions_are_kept_when_they_change() -> None:
    recorder = Recorder()
    for time, n in enumerate((4, 4, 5, 5, 4)):
        recorder.decided(float(time), Decision("mixed", None, n))
    record = recorder.record(
        policy="", profile="", workload="", kv_capacity=1, slots=1, submitted=0, duration=5.0
    )
    assert [(time, decision.n) for time, decision in record.decisions] == [(0, 4), (2, 5), (4, 4)]


def test_a_simulation_leaves_garbage_collection_as_it_was() -> None:
    assert gc.isenabled()
    run(COST, RequestTable.of([8], [3], arrival=[0.0]))
    assert gc.isenabled()
    gc.disable()
    try:
        run(COST, RequestTable.of([8], [3], arrival=[0.0]))
        assert not gc.isenabled()
    finally:
        gc.enable()
