"""The table in the terminal: one row per policy, at any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from phasegate.report.metrics import BY_PATH, best_runs, in_seconds, show
from phasegate.report.summary import RunSummary
from phasegate.report.verdict import verdict

_POLICY_WIDTH = 22
"""Longer policy specs are broken at their commas."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()


def print_table(runs: Sequence[RunSummary], console: Console, offered: float | None = None) -> None:
    """Print the comparison and the verdict; a narrow console gets several tables below each other.

    The best of a column is bold green; where there is no colour it carries a star. `offered` is
    the arrival rate, requests/s (None: closed loop).
    """
    served = [_column(runs, title, path) for title, path in _SERVED]
    served += [_column(runs, BY_PATH[path].name, path) for path in _FAILED if _any(runs, path)]
    machine: list[_Column] = []
    if _any(runs, "kv.capacity_tokens"):  # a client knows nothing of it
        machine += [_column(runs, title, path) for title, path in _MACHINE]
        machine.append(_Column("KV\npeak", tuple(_kv_peak(run) for run in runs)))
        machine.append(_Column("k/N", tuple(_k_and_n(run) for run in runs)))
        machine.append(_column(runs, "mode", "final.mode"))
    starred = console.color_system is None or console.no_color
    policies = [_broken(run["policy"]) for run in runs]

    def fits(columns: Sequence[_Column]) -> bool:
        options = console.options.update(max_width=10_000)
        table = _table(policies, columns, starred)
        return Measurement.get(console, options, table).maximum <= console.width

    whole = [*served, *machine]
    for columns in [whole] if fits(whole) else [served, machine]:
        rest = columns
        while rest:
            count = len(rest)
            while count > 1 and not fits(rest[:count]):
                count -= 1
            console.print(_table(policies, rest[:count], starred))
            rest = rest[count:]
    console.print(Text(verdict(runs, offered), style="bold"))


_SERVED = (
    ("req/s", "throughput.requests_s"),
    ("tok/s", "throughput.total_tokens_s"),
    ("TTFT\nmean", "ttft_s.mean"),
    ("TTFT\nP99", "ttft_s.p99"),
    ("ITL\nP50", "itl_s.p50"),
    ("ITL\nP99", "itl_s.p99"),
    ("E2E\nmean", "e2e_s.mean"),
)
_FAILED = ("requests.rejected", "requests.aborted")
_MACHINE = (("slots\nbusy", "slots.mean_busy"), ("pre-\nempted", "preemptions"))


def _column(runs: Sequence[RunSummary], title: str, path: str) -> _Column:
    metric = BY_PATH[path]
    values = [metric.read(run) for run in runs]
    seconds = in_seconds(values) if metric.kind == "seconds" else True
    if metric.kind == "seconds":
        title += "\ns" if seconds else "\nms"
    cells = tuple(show(value, metric.kind, seconds) for value in values)
    return _Column(title, cells, frozenset(best_runs(metric, runs)))


def _any(runs: Sequence[RunSummary], path: str) -> bool:
    return any(BY_PATH[path].read(run) for run in runs)


def _kv_peak(run: RunSummary) -> str:
    peak, capacity = run["kv"]["peak_tokens"], run["kv"]["capacity_tokens"]
    return show(None if peak is None or not capacity else peak / capacity, "share")


def _k_and_n(run: RunSummary) -> str:
    k, n = run["final"]["k"], run["final"]["n"]
    return f"{'-' if k is None else k}/{'-' if n is None else n}"


def _broken(policy: str) -> str:
    """The spec over several lines if it is long; lines end after ":" or ","."""
    if len(policy) <= _POLICY_WIDTH:
        return policy
    name, _, options = policy.partition(":")
    lines = [name + ":" if options else name]
    for option in options.replace(",", ",\n").splitlines():
        if len(lines) > 1 and len(lines[-1]) + len(option) <= _POLICY_WIDTH:
            lines[-1] += option
        else:
            lines.append("  " + option)
    return "\n".join(lines)


def _table(policies: Sequence[str], columns: Sequence[_Column], starred: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for i, policy in enumerate(policies):
        cells = []
        for column in columns:
            text = Text(column.cells[i])
            if column.best:
                if starred:
                    text.append("*" if i in column.best else " ")
                elif i in column.best:
                    text.stylize("bold green")
            cells.append(text)
        table.add_row(policy, *cells)
    return table
