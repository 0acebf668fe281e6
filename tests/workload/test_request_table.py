"""RequestTable: building one, and changing when its requests arrive."""

import math

import numpy as np
import pytest

from phasegate.errors import WorkloadError
from phasegate.workload.lengths import MAX_LENGTH
from phasegate.workload.table import RequestTable

TABLE = RequestTable.of([10, 20, 30, 40], [1, 2, 3, 4], arrival=[0.0, 1.0, 1.0, 4.0], label="t")


def test_rows_are_sorted_by_arrival_and_ties_keep_their_order():
    table = RequestTable.of([1, 2, 3], [4, 5, 6], arrival=[2.0, 1.0, 1.0], priority=[7, 8, 9])
    assert table.prompt.tolist() == [2, 3, 1]
    assert table.output.tolist() == [5, 6, 4]
    assert table.priority.tolist() == [8, 9, 7]
    assert table.arrival.tolist() == [1.0, 1.0, 2.0]


def test_an_output_is_cut_at_what_the_client_declares():
    table = RequestTable.of([1, 1], [5, 50], max_tokens=10)
    assert table.output.tolist() == [5, 10]
    assert table.max_tokens.tolist() == [10, 10]
    assert TABLE.declaring(2).output.tolist() == [1, 2, 2, 2]
    assert TABLE.max_tokens.tolist() == TABLE.output.tolist()


def test_first_window_and_scale():
    assert TABLE.first(2).prompt.tolist() == [10, 20]
    assert TABLE.first(9) is TABLE
    window = TABLE.window(1.0, 4.0)
    assert (window.prompt.tolist(), window.arrival.tolist()) == ([20, 30], [0.0, 0.0])
    assert TABLE.scaled(4.0).arrival.tolist() == [0.0, 0.25, 0.25, 1.0]
    assert TABLE.scaled(4.0).label == "t x4"
    assert TABLE.duration == 4.0


def test_new_arrivals_leave_the_lengths_alone():
    at_rate = TABLE.at_rate(100.0, seed=3)
    closed = TABLE.closed(2)
    assert at_rate.prompt is closed.prompt is TABLE.prompt
    assert at_rate.arrival.tolist() == TABLE.at_rate(100.0, seed=3).arrival.tolist()
    assert at_rate.arrival.tolist() != TABLE.at_rate(100.0, seed=4).arrival.tolist()
    assert math.isnan(closed.duration)
    assert (at_rate.label, closed.label) == ("t, 100 requests/s", "t, 2 concurrent")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"prompt": [], "output": []}, "0 prompt lengths"),
        ({"prompt": [1, 2], "output": [1]}, "2 prompt lengths and 1 output lengths"),
        ({"prompt": [0], "output": [1]}, "every prompt has to be from 1"),
        ({"prompt": [1], "output": [MAX_LENGTH + 1]}, "every output has to be from 1"),
        ({"prompt": [1.0], "output": [1]}, "prompt: needs whole numbers"),
        ({"prompt": [[1]], "output": [1]}, "flat list"),
        ({"prompt": [1], "output": [1], "max_tokens": 0}, "every max_tokens"),
        ({"prompt": [1], "output": [1], "priority": [1, 2]}, "one for each of 1 requests"),
        ({"prompt": [1], "output": [1], "arrival": [-1.0]}, "finite times >= 0"),
        ({"prompt": [1], "output": [1], "arrival": [np.nan]}, "finite times >= 0"),
        ({"prompt": [1], "output": [1], "arrival": [1.0, 2.0]}, "needs 1 finite times"),
    ],
)
def test_wrong_columns_are_refused(arguments, complaint):
    with pytest.raises(WorkloadError, match=complaint):
        RequestTable.of(**arguments)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda: TABLE.first(0), "requests=0: has to be at least 1"),
        (lambda: TABLE.window(5.0), "no request arrives from 5.0 s"),
        (lambda: TABLE.window(3.0, 2.0), "no request arrives"),
        (lambda: TABLE.window(-1.0), "no request arrives"),
        (lambda: TABLE.window(math.nan), "no request arrives"),
        (lambda: TABLE.scaled(0.0), "rate_scale=0: has to be from 1e-06 to"),
        (lambda: TABLE.scaled(math.inf), "rate_scale=inf: has to be from 1e-06 to"),
        (lambda: TABLE.scaled(math.nan), "rate_scale=nan: has to be from 1e-06 to"),
        (lambda: TABLE.at_rate(0.0), "rate=0: has to be from 1e-06 to"),
        (lambda: TABLE.at_rate(1.0, seed=-1), "seed=-1"),
        (lambda: TABLE.closed(0), "concurrency=0"),
        (lambda: TABLE.declaring(0), "max_tokens=0"),
        (lambda: TABLE.closed(1).scaled(2.0), "no arrival times, so a rate scale means nothing"),
        (lambda: TABLE.closed(1).window(2.0), "no arrival times, so a time window means nothing"),
    ],
)
def test_changes_that_make_no_sense_are_refused(change, complaint):
    with pytest.raises(WorkloadError, match=complaint):
        change()
