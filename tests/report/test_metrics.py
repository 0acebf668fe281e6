"""How numbers are printed, and which run is best."""

from __future__ import annotations

import pytest
from synthetic_run import summary_of

from phasegate.report.metrics import BY_PATH, METRICS, best_runs, duration, figures, show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
    ],
)
def test_figures(value: float, text: str) -> None:
    assert figures(value) == text


def test_durations_carry_the_unit_that_reads_best() -> None:
    assert duration(0.0456) == "45.6 ms"
    assert duration(0.999) == "999 ms"
    assert duration(12.3) == "12.3 s"


def test_unknown_values_are_a_dash() -> None:
    assert show(None, "seconds") == "-"


def test_every_metric_can_be_read() -> None:
    run = summary_of("mixed")
    assert all(metric.read(run) is not None for metric in METRICS)


def test_best_is_decided_by_what_is_seen() -> None:
    runs = [summary_of("a", throughput__requests_s=x) for x in (9.001, 9.002, 8.0)]
    assert best_runs(BY_PATH["throughput.requests_s"], runs) == {0, 1}


def test_none_is_best_when_all_are_alike_or_alone_or_nothing_is_better() -> None:
    runs = [summary_of("a"), summary_of("b")]
    assert best_runs(BY_PATH["throughput.requests_s"], runs) == set()
    assert best_runs(BY_PATH["throughput.requests_s"], runs[:1]) == set()
    assert best_runs(BY_PATH["final.k"], runs) == set()


def test_missing_values_are_never_best() -> None:
    runs = [summary_of("a", ttft_s__mean=None), summary_of("b"), summary_of("c", ttft_s__mean=9.0)]
    assert best_runs(BY_PATH["ttft_s.mean"], runs) == {1}
