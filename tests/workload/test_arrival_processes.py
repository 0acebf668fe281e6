"""Arrival processes: rates, burstiness, closed loops."""

import math

import numpy as np
import pytest

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import ClosedLoop, OpenLoop


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(cv):
    gaps = OpenLoop(rate=4.0, cv=cv).gaps(np.random.default_rng(2), 200_000)
    assert gaps.min() >= 0.0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_poisson_gaps_are_exponential():
    gaps = OpenLoop(rate=1.0).gaps(np.random.default_rng(3), 100_000)
    assert (gaps > 1.0).mean() == pytest.approx(math.exp(-1), abs=0.01)


def test_a_burst_of_zero_is_a_metronome_and_an_infinite_rate_is_all_at_once():
    rng = np.random.default_rng(0)
    assert OpenLoop(5.0, cv=0.0).gaps(rng, 3).tolist() == [0.2, 0.2, 0.2]
    assert OpenLoop(5.0, cv=1e-200).gaps(rng, 1).tolist() == [0.2]
    assert OpenLoop(math.inf, cv=2.0).gaps(rng, 3).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_is_above_zero(rate):
    with pytest.raises(WorkloadError, match="rate="):
        OpenLoop(rate)


@pytest.mark.parametrize("cv", [-0.1, math.nan, 101.0])
def test_burstiness_has_bounds(cv):
    with pytest.raises(WorkloadError, match="burst="):
        OpenLoop(1.0, cv)


def test_a_closed_loop_changes_its_concurrency_at_given_requests():
    loop = ClosedLoop(((0, 4), (100, 16)))
    assert loop.stages(250) == [(100, 4), (250, 16)]
    assert loop.before(100) == ClosedLoop(((0, 4),))


@pytest.mark.parametrize("steps", [(), ((1, 4),), ((0, 4), (0, 8)), ((0, 4), (9, 8), (5, 1))])
def test_the_steps_of_a_closed_loop_start_at_zero_and_grow(steps):
    with pytest.raises(ValueError, match="start at request 0"):
        ClosedLoop(steps)


def test_a_closed_loop_holds_at_least_one_request():
    with pytest.raises(WorkloadError, match="concurrency=0"):
        ClosedLoop(((0, 0),))
