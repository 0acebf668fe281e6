"""Sources: every request exactly once, in order, at its time."""

import math
import random

import pytest

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import ClosedLoop
from phasegate.workload.source import BLOCK, ClosedSource, OpenSource, source_of
from phasegate.workload.table import RequestTable


def numbered(n, **more):
    """A table whose i-th request has a prompt of i + 1 tokens."""
    return RequestTable.of(range(1, n + 1), [5] * n, **more)


def closed(n, *steps):
    table = numbered(n).closed(1)
    object.__setattr__(table, "loop", ClosedLoop(steps))
    return ClosedSource(table)


def test_an_open_source_hands_over_what_has_arrived():
    source = OpenSource(numbered(4, arrival=[0.5, 1.0, 1.0, 3.0]))
    assert source.total == 4
    assert source.next_arrival() == 0.5
    assert source.take(0.4) == []
    (first,) = source.take(0.5)
    assert (first.id, first.arrival, first.prompt) == (0, 0.5, 1)
    assert source.next_arrival() == 1.0
    assert [r.id for r in source.take(2.0)] == [1, 2]
    source.finished(3, 2.0)
    assert source.next_arrival() == 3.0
    assert [r.id for r in source.take(math.inf)] == [3]
    assert source.next_arrival() == math.inf
    assert source.take(math.inf) == []


def test_a_request_carries_its_row_of_the_table():
    table = RequestTable.of([7], [50], max_tokens=20, priority=-1, arrival=[2.5])
    (request,) = OpenSource(table).take(3.0)
    assert (request.prompt, request.output, request.max_tokens) == (7, 20, 20)
    assert (request.priority, request.arrival) == (-1, 2.5)
    assert type(request.prompt) is int
    assert type(request.arrival) is float


@pytest.mark.parametrize("n", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_no_request_is_lost_at_the_edge_of_a_block(n):
    at_once = OpenSource(numbered(n, arrival=[0.0] * n)).take(0.0)
    one_by_one = OpenSource(numbered(n, arrival=range(n)))
    singles = []
    while (now := one_by_one.next_arrival()) < math.inf:
        singles += one_by_one.take(now)
    for taken in (at_once, singles):
        assert [r.id for r in taken] == list(range(n))
        assert [r.prompt for r in taken] == list(range(1, n + 1))


def test_a_closed_source_replaces_what_ended():
    source = closed(5, (0, 2))
    assert source.total == 5
    assert source.next_arrival() == 0.0
    assert [r.id for r in source.take(0.0)] == [0, 1]
    assert source.next_arrival() == math.inf
    source.finished(1, 3.0)
    assert source.next_arrival() == 3.0
    assert source.take(2.9) == []
    (request,) = source.take(3.0)
    assert (request.id, request.arrival) == (2, 3.0)
    source.finished(2, 4.0)
    assert [r.id for r in source.take(4.0)] == [3, 4]
    source.finished(2, 5.0)
    assert source.next_arrival() == math.inf


def test_arrivals_that_nobody_took_yet_keep_their_times():
    source = closed(5, (0, 2))
    source.take(0.0)
    source.finished(1, 1.0)
    source.finished(1, 2.0)
    assert source.next_arrival() == 1.0
    assert [(r.id, r.arrival) for r in source.take(2.0)] == [(2, 1.0), (3, 2.0)]


def test_more_concurrency_in_the_next_phase_is_sent_at_once():
    source = closed(20, (0, 2), (4, 6))
    assert len(source.take(0.0)) == 2
    source.finished(1, 1.0)
    assert [r.id for r in source.take(1.0)] == [2]
    source.finished(1, 2.0)
    assert [r.id for r in source.take(2.0)] == [3, 4, 5, 6, 7]  # 3 is the last of the first phase


def test_less_concurrency_in_the_next_phase_waits_until_enough_have_ended():
    source = closed(20, (0, 4), (5, 2))
    source.take(0.0)
    source.finished(1, 1.0)
    assert [r.id for r in source.take(1.0)] == [4]
    source.finished(2, 2.0)
    assert source.next_arrival() == math.inf  # 2 of 2 are in the system
    source.finished(1, 3.0)
    assert [r.id for r in source.take(3.0)] == [5]


def test_less_concurrency_than_requests_of_a_phase():
    source = closed(3, (0, 8))
    assert len(source.take(0.0)) == 3
    source.finished(3, 1.0)
    assert source.next_arrival() == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_in_a_closed_loop_order_of_completion_changes_nothing_but_times(seed):
    rng = random.Random(seed)
    source = closed(3000, (0, 7), (1000, 50), (2000, 3))
    level = lambda i: 7 if i < 1000 else 50 if i < 2000 else 3  # noqa: E731
    now, inside, taken = 0.0, 0, []
    while len(taken) < 3000 or inside:
        new = source.take(now)
        taken += new
        inside += len(new)
        assert all(r.arrival <= now for r in new)
        if new:
            assert inside <= level(taken[-1].id)
        now += rng.random()
        ended = rng.randint(1, inside)
        inside -= ended
        source.finished(ended, now)
    assert [(r.id, r.prompt) for r in taken] == [(i, i + 1) for i in range(3000)]


def test_more_cannot_end_than_were_sent():
    source = closed(5, (0, 2))
    with pytest.raises(ValueError, match="3 requests ended, but only 2 were sent"):
        source.finished(3, 1.0)


def test_source_of_picks_by_what_the_table_knows():
    assert isinstance(source_of(numbered(3).closed(2)), ClosedSource)
    assert isinstance(source_of(numbered(3).at_rate(2.0)), OpenSource)
    with pytest.raises(WorkloadError, match="give a rate or a concurrency"):
        source_of(numbered(3))
    with pytest.raises(WorkloadError, match="no closed loop"):
        ClosedSource(numbered(3))
    with pytest.raises(WorkloadError, match="time overflows"):
        source_of(RequestTable.of([1, 1], [1, 1], arrival=[0.0, 1e303]).scaled(1e-6))
