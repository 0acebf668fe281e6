"""Predicted against measured: how right the simulator is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from phasegate.report.metrics import BY_PATH, Kind, in_seconds, show
from phasegate.report.summary import RunSummary

COMPARED = (
    ("req/s", "throughput.requests_s", 0.05),
    ("E2E mean", "e2e_s.mean", 0.05),
    ("TTFT P50", "ttft_s.p50", 0.10),
    ("ITL P50", "itl_s.p50", 0.10),
    ("TTFT P99", "ttft_s.p99", 0.20),
    ("ITL P99", "itl_s.p99", 0.20),
)
"""Title, metric, and the relative error that counts as faithful."""


class Cell(NamedTuple):
    """One metric of one policy."""

    policy: str
    title: str
    predicted: float
    measured: float
    allowed: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def faithful(self) -> bool:
        """Whether the error is within what is allowed for this metric."""
        return abs(self.error) <= self.allowed


def cells(predicted: Sequence[RunSummary], measured: Sequence[RunSummary]) -> Iterator[Cell]:
    """All comparable metrics of runs that belong together pairwise."""
    for guess, real in zip(predicted, measured, strict=True):
        for title, path, allowed in COMPARED:
            a, b = BY_PATH[path].read(guess), BY_PATH[path].read(real)
            if a is not None and b:
                yield Cell(real["policy"], title, a, b, allowed)


def print_fidelity(
    predicted: Sequence[RunSummary], measured: Sequence[RunSummary], console: Console
) -> None:
    """Print predicted, measured and error; errors beyond the allowed are red and marked with !."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True, overflow="ellipsis")
    table.add_column("metric")
    for title in ("predicted", "measured", "error"):
        table.add_column(title, justify="right")
    last = ""
    for cell in cells(predicted, measured):
        kind: Kind = "rate" if cell.title == "req/s" else "seconds"
        seconds = in_seconds([cell.predicted, cell.measured])
        unit = "" if kind == "rate" else " s" if seconds else " ms"
        shown = [show(v, kind, seconds) + unit for v in (cell.predicted, cell.measured)]
        mark, style = ("", "green") if cell.faithful else (" !", "red")
        error = f"[{style}]{cell.error * 100:+.1f} %{mark}[/]"
        table.add_row(cell.policy if cell.policy != last else "", cell.title, *shown, error)
        last = cell.policy
    console.print(table)
