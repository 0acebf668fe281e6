"""What `simulate` and `bench` share: run every policy on the same requests, show the comparison."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from phasegate.cost.model import CostModel
from phasegate.cost.profile import Profile
from phasegate.engine.record import RunRecord
from phasegate.errors import InputError
from phasegate.files import check_apart, check_writable, write_atomic
from phasegate.policy.spec import build_policy, check_within
from phasegate.report.html import Context, render
from phasegate.report.metrics import count
from phasegate.report.series import run_series
from phasegate.report.summary import RunSummary, summarise, to_json
from phasegate.report.table import print_table
from phasegate.scheduler.limits import Limits

STDOUT = Path("-")

RunOne = Callable[[str, Callable[[int], None]], RunRecord]
"""Run one policy spec; the second argument takes the number of requests that ended since."""


def check_outputs(json: Path | None, html: Path | None, inputs: Sequence[Path | None]) -> None:
    """Say before the work, not after it, that a result cannot be written, or would overwrite
    one of the files that are read. Raises InputError."""
    json = None if json == STDOUT else json
    if html == STDOUT:
        raise InputError("--html - is not possible, the page is a file; give it a name")
    for path in (json, html):
        if path is not None:
            check_writable(path)
    check_apart({"--json": json, "--html": html}, inputs)


def check_policies(specs: Sequence[str], cost: CostModel, limits: Limits) -> None:
    """Say before the work that a policy cannot be built. Raises InputError."""
    for i, spec in enumerate(specs):
        build_policy(spec, cost, limits)
        check_within(spec, limits)
        if spec in specs[:i]:
            raise InputError(f"--policy {spec} is given twice; once is enough")


def introduce(
    console: Console, device: Profile, limits: Limits, about_traffic: Sequence[str]
) -> None:
    """What is simulated."""
    lines = [
        f"{device.model} on {device.device}, costs {device.provenance.how} ({device.name})",
        f"{_slots(limits)}, {limits.token_budget:,} tokens per iteration, "
        f"{limits.kv_capacity:,} tokens of KV cache",
        *about_traffic,
    ]
    for line in lines:
        console.print(Text(line, style="dim"))


def tell_defaults(console: Console, options: Sequence[str], policies: Sequence[str]) -> None:
    """What of it nobody asked for: options and policies that stand in for missing ones."""
    words = [*options, *(f"--policy {spec}" for spec in policies)]
    if words:
        console.print(Text(f"by default: {' '.join(words)}", style="yellow"))


def _slots(limits: Limits) -> str:
    text = count(limits.running, "slot")
    if limits.running < limits.slots:
        text += f" (not {limits.slots:,}: each needs a token of an iteration)"
    return text


def run_all(
    specs: Sequence[str], run_one: RunOne, requests: int, curves: bool, rounds: int = 1
) -> tuple[list[RunSummary], list[dict[str, Any]]]:
    """Run every policy. A record is dropped as soon as its numbers are taken: it holds every
    iteration of the run.

    With several `rounds` the policies take turns, every other round in reverse order, so that a
    machine that drifts does so for all; of each policy the run of median throughput is returned.
    """
    results: dict[str, list[tuple[RunSummary, dict[str, Any]]]] = {spec: [] for spec in specs}
    with progress_bar("requests") as progress:
        width = max(len(spec) for spec in specs)
        tasks = {spec: progress.add_task(spec.ljust(width), total=requests) for spec in specs}
        for turn in range(rounds):
            for spec in reversed(specs) if turn % 2 else specs:
                task = tasks[spec]
                progress.reset(task)

                def advance(ended: int, task: Any = task) -> None:
                    progress.advance(task, ended)

                try:
                    record = run_one(spec, advance)
                except Exception as error:
                    error.add_note(f"This happened while running {spec}; no file was written.")
                    raise
                results[spec].append((summarise(record), run_series(record) if curves else {}))
    chosen = [_median(results[spec]) for spec in specs]
    return [run for run, _ in chosen], [series for _, series in chosen]


def _median(
    results: list[tuple[RunSummary, dict[str, Any]]],
) -> tuple[RunSummary, dict[str, Any]]:
    results.sort(key=lambda result: result[0]["throughput"]["requests_s"] or 0.0)
    return results[(len(results) - 1) // 2]


def present(
    runs: Sequence[RunSummary],
    series: Sequence[dict[str, Any]],
    context: Context,
    console: Console,
    json: Path | None,
    html: Path | None,
) -> None:
    """Print the table and the verdict, write the files."""
    console.print()
    print_table(runs, console, context.offered)
    if html is not None:
        write_atomic(html, render(runs, series, context))
        console.print(Text(f"wrote {html}", style="dim"))
    if json == STDOUT:
        typer.echo(to_json(runs), nl=False)
    elif json is not None:
        write_atomic(json, to_json(runs))
        console.print(Text(f"wrote {json}", style="dim"))


def command_line(context: typer.Context) -> str:
    """The command as typed, for the report."""
    return shlex.join(["phasegate", *(context.obj or sys.argv[1:])])


def progress_bar(unit: str) -> Progress:
    """A progress bar on stderr, only if a person is watching."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}}/{{task.total:,.0f}} {unit}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
