"""make_source and trace_source: from what a person writes to what the engine pulls."""

import math

import pytest

from phasegate.errors import WorkloadError
from phasegate.workload import ClosedSource, OpenSource, RequestTable, make_source, trace_source

TRACE = RequestTable.of([10, 20, 30, 40], [1, 2, 3, 4], arrival=[0.0, 1.0, 2.0, 9.0], label="t")


def drain(source):
    """All requests of a source; in a closed loop, each one ends a second after it came."""
    taken, now = [], 0.0
    while (now := source.next_arrival()) < math.inf:
        new = source.take(now)
        taken += new
        source.finished(len(new), now + 1.0)
    return taken


def test_a_spec_becomes_an_open_or_a_closed_source():
    text = "prompt=8,output=4,output_dist=geometric"
    opened = make_source(text, rate=50.0, requests=3000, seed=5)
    closed = make_source(text, concurrency=7, requests=3000, seed=5)
    assert isinstance(opened, OpenSource)
    assert isinstance(closed, ClosedSource)
    assert opened.total == closed.total == 3000
    a, b = drain(opened), drain(closed)
    assert [r.id for r in a] == [r.id for r in b] == list(range(3000))
    assert [r.output for r in a] == [r.output for r in b]
    assert a[-1].arrival == pytest.approx(60.0, rel=0.1)
    assert b[-1].arrival == pytest.approx(3000 // 7)


def test_a_mistake_in_the_spec_is_a_workload_error():
    with pytest.raises(WorkloadError, match="unknown key"):
        make_source("prompt=8,outptu=4", rate=1.0)


def test_a_trace_is_replayed_as_recorded():
    source = trace_source(TRACE)
    assert source.label == "t"
    assert [(r.arrival, r.prompt) for r in drain(source)] == [(0, 10), (1, 20), (2, 30), (9, 40)]


def test_a_trace_from_a_file(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5,1,1\n7,2,2\n9,3,3\nbad\n")
    assert [r.arrival for r in drain(trace_source(path, requests=3, rate_scale=2.0))] == [0, 1, 2]


def test_the_window_is_cut_before_the_requests_are_counted():
    source = trace_source(TRACE, start=1.0, requests=2)
    assert [(r.arrival, r.prompt) for r in drain(source)] == [(0.0, 20), (1.0, 30)]


def test_lengths_of_a_trace_under_other_arrivals():
    at_rate = trace_source(TRACE, rate=2.0, burst=0.0)
    closed = trace_source(TRACE, concurrency=2, max_tokens=3)
    assert [(r.arrival, r.prompt) for r in drain(at_rate)] == [
        (0.5, 10),
        (1.0, 20),
        (1.5, 30),
        (2.0, 40),
    ]
    assert [(r.arrival, r.output, r.max_tokens) for r in drain(closed)] == [
        (0.0, 1, 3),
        (0.0, 2, 3),
        (1.0, 3, 3),
        (1.0, 3, 3),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rate": 1.0, "rate_scale": 2.0}, "rate_scale=2.0 and rate=1.0 exclude each other"),
        ({"rate": 1.0, "concurrency": 2}, "exclude each other"),
        ({"burst": 2.0}, "burst=2.0: needs a rate"),
        ({"requests": 0}, "requests=0"),
        ({"start": 10.0}, "no request arrives"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, complaint):
    with pytest.raises(WorkloadError, match=complaint):
        trace_source(TRACE, **arguments)


def test_lengths_without_times_need_a_rate_or_a_concurrency():
    lengths = RequestTable.of([1, 2], [3, 4])
    with pytest.raises(WorkloadError, match="give a rate or a concurrency"):
        trace_source(lengths)
    assert len(drain(trace_source(lengths, concurrency=1))) == 2
