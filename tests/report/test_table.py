"""The table in the terminal, at any width, with and without colour."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from synthetic_run import summary_of

from phasegate.report.summary import RunSummary
from phasegate.report.table import print_table

LONG = "threshold:rule=paper,n=256,token_budget=8192,max_hold=0.5"


def shown(runs: list[RunSummary], width: int, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    print_table(runs, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


RUNS = [
    summary_of("mixed", throughput__requests_s=8.0),
    summary_of(LONG, throughput__requests_s=12.5),
    summary_of("exclusive:k=16", throughput__requests_s=9.0, ttft_s__mean=0.2),
]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_console(width: int) -> None:
    assert max(len(line) for line in shown(RUNS, width).splitlines()) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_number_is_cut(width: int) -> None:
    text = shown(RUNS, width)
    assert "…" not in text
    for cell in ("12.5*", "200*", "exclusive", "1/8"):
        assert cell in text


def test_a_wide_console_gets_one_table_and_a_narrow_one_two() -> None:
    assert shown(RUNS, 120).count("policy") == 1
    assert shown(RUNS, 80).count("policy") == 2


def test_long_specs_are_broken_at_their_commas() -> None:
    lines = [line.rstrip() for line in shown([summary_of(LONG)], 120).splitlines()]
    assert lines[4].startswith("threshold:")
    assert lines[5:8] == ["  rule=paper,n=256,", "  token_budget=8192,", "  max_hold=0.5"]


def test_the_best_is_starred_or_green() -> None:
    assert "12.5*" in shown(RUNS, 120)
    coloured = shown(RUNS, 120, colour=True)
    assert "\x1b[1;32m12.5\x1b[0m" in coloured
    assert "12.5*" not in coloured


def test_failed_requests_get_a_column_only_if_there_are_any() -> None:
    assert "rejected" not in shown(RUNS, 120)
    failing = summary_of("mixed", requests__rejected=17)
    assert "rejected" in shown([failing, RUNS[1]], 120)


def test_latencies_of_ten_seconds_are_shown_in_seconds() -> None:
    text = shown([summary_of("mixed", ttft_s__mean=0.25), summary_of("b", ttft_s__mean=12.0)], 120)
    assert "0.250" in text
    assert "12.0" in text


def test_it_ends_with_the_verdict() -> None:
    assert "serves most: 12.5 requests/s" in " ".join(shown(RUNS, 80).split())
