"""describe(): a workload in three lines."""

import math

import pytest

from phasegate.workload.describe import describe
from phasegate.workload.table import RequestTable

TABLE = RequestTable.of([100] * 99 + [1100], [5] * 100, arrival=range(100))


def test_the_numbers():
    stats = describe(TABLE)
    assert stats.requests == 100
    assert (stats.prompt.mean, stats.prompt.p50, stats.prompt.max) == (110.0, 100.0, 1100)
    assert stats.prompt.p99 == pytest.approx(110.0)
    assert stats.prompt.cv == pytest.approx(math.sqrt(0.99 * 0.01) * 1000 / 110)
    assert stats.output.cv == 0.0
    assert (stats.duration, stats.rate, stats.burst) == (99.0, 1.0, 0.0)
    assert stats.concurrency is None


def test_the_text():
    assert str(describe(TABLE)) == (
        "100 requests in 99.0 s: 1 requests/s, CV of the gaps 0.00\n"
        "prompt tokens: mean 110, p50 100, p99 110, max 1,100, CV 0.90\n"
        "output tokens: mean 5, p50 5, p99 5, max 5, CV 0.00"
    )


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (TABLE.closed(8), "100 requests, 8 concurrent"),
        (TABLE.scaled(1e9).at_rate(math.inf), "100 requests, all at once"),
        (RequestTable.of([1], [1]), "1 request, no arrival times"),
        (TABLE.first(2), "2 requests in 1.0 s: 1 requests/s"),
    ],
)
def test_traffic_of_every_kind(table, line):
    assert str(describe(table)).splitlines()[0] == line
