"""`phasegate simulate`: how policies compare on one device under one workload."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from phasegate.cli.traffic import (
    DEFAULT_CONCURRENCY,
    DEFAULT_REQUESTS,
    DEFAULT_WORKLOAD,
    Traffic,
)
from phasegate.cost.presets import DEFAULT_PRESET
from phasegate.cost.profile import Profile, load_profile
from phasegate.engine.simulate import simulate
from phasegate.errors import InputError
from phasegate.files import check_writable, write_atomic
from phasegate.policy.spec import build_policy
from phasegate.report.html import Context, render
from phasegate.report.series import run_series
from phasegate.report.summary import RunSummary, summarise, to_json
from phasegate.report.table import print_table
from phasegate.scheduler.limits import Limits
from phasegate.workload.describe import describe
from phasegate.workload.source import source_of
from phasegate.workload.table import RequestTable

DEFAULT_POLICIES = ("mixed", "threshold", "hybrid")
_LIMITS = Limits(kv_capacity=1 << 30)  # for the defaults of everything else

_PROFILE = "Device and model: a preset (`phasegate profile list`) or a JSON file."
_WORKLOAD = f"Synthetic traffic, e.g. '{DEFAULT_WORKLOAD}'."
_TRACE = "Recorded traffic: an Azure, BurstGPT, Mooncake or ShareGPT file, .gz accepted."
_POLICY = "Policy to compare; repeat for more (`phasegate policies` lists them)."
_TRAFFIC, _ENGINE, _OUTPUT = "Traffic", "Engine", "Output"


def command(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option(help=_PROFILE, show_default=DEFAULT_PRESET, metavar="NAME|FILE")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=_POLICY, show_default=" ".join(DEFAULT_POLICIES), metavar="SPEC"),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help=_WORKLOAD, metavar="SPEC", rich_help_panel=_TRAFFIC)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help=_TRACE, metavar="FILE", rich_help_panel=_TRAFFIC)
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Closed loop: requests in flight.", min=1, rich_help_panel=_TRAFFIC),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Open loop: Poisson arrivals per second.", rich_help_panel=_TRAFFIC),
    ] = None,
    rate_scale: Annotated[
        float | None,
        typer.Option(help="Replay the trace so many times as fast.", rich_help_panel=_TRAFFIC),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests of the run (of a trace: the first).", min=1, rich_help_panel=_TRAFFIC
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of synthetic traffic.", min=0, rich_help_panel=_TRAFFIC)
    ] = 0,
    n: Annotated[
        int,
        typer.Option("--n", help="Slots: most running requests.", min=1, rich_help_panel=_ENGINE),
    ] = _LIMITS.slots,
    token_budget: Annotated[
        int, typer.Option(help="Most tokens per iteration.", min=1, rich_help_panel=_ENGINE)
    ] = _LIMITS.token_budget,
    kv: Annotated[
        int | None,
        typer.Option(
            help="KV cache, tokens.", show_default="of the profile", min=1, rich_help_panel=_ENGINE
        ),
    ] = None,
    page: Annotated[
        int, typer.Option(help="KV cache page, tokens.", min=1, rich_help_panel=_ENGINE)
    ] = _LIMITS.page,
    queue_limit: Annotated[
        int | None,
        typer.Option(
            help="Reject arrivals beyond so many waiting requests.", min=1, rich_help_panel=_ENGINE
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write all numbers; - is stdout.", metavar="FILE|-", rich_help_panel=_OUTPUT
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report to look at.", metavar="FILE", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Compare policies in virtual time on the costs of a device.

    With no traffic options: 512-token prompts, 256-token answers, 256 requests in flight.
    """
    to_stdout = json == Path("-")
    _check_outputs(None if to_stdout else json, html)
    traffic = Traffic(workload, trace, concurrency, rate, rate_scale, requests, seed)
    traffic.check()
    device = load_profile(profile or DEFAULT_PRESET)
    limits = Limits(
        kv_capacity=kv or device.kv_capacity_tokens,
        slots=n,
        token_budget=token_budget,
        page=page,
        queue_limit=queue_limit,
    )
    specs = policy or list(DEFAULT_POLICIES)
    _check_policies(specs, device, limits)
    table = traffic.table()

    console = Console(stderr=to_stdout, highlight=False)
    shape = describe(table)
    offered = shape.rate if math.isfinite(shape.rate) else None
    about_traffic = [*str(shape).splitlines(), *table.notes]
    if trace is not None:
        about_traffic[0] = f"{table.label}: {about_traffic[0]}"
    _introduce(console, device, limits, about_traffic)
    if profile is None or traffic.is_default:
        _tell_defaults(console, profile is None, traffic)
    runs, series = _run_all(specs, device, limits, table, curves=html is not None)
    console.print()
    print_table(runs, console, offered)

    if html is not None:
        command_line = shlex.join(["phasegate", *(context.obj or sys.argv[1:])])
        about = Context(device, limits, about_traffic, command_line, offered)
        write_atomic(html, render(runs, series, about))
        console.print(Text(f"wrote {html}", style="dim"))
    if to_stdout:
        typer.echo(to_json(runs), nl=False)
    elif json is not None:
        write_atomic(json, to_json(runs))
        console.print(Text(f"wrote {json}", style="dim"))


def _check_outputs(json: Path | None, html: Path | None) -> None:
    """Say before the work, not after it, that a result cannot be written."""
    if html == Path("-"):
        raise InputError("--html - is not possible, the page is a file; give it a name")
    wanted = [path for path in (json, html) if path is not None]
    for path in wanted:
        check_writable(path)
    if len({path.resolve() for path in wanted}) < len(wanted):
        raise InputError(f"--json and --html both write {wanted[0]}; give two names")


def _check_policies(specs: Sequence[str], device: Profile, limits: Limits) -> None:
    for i, spec in enumerate(specs):
        build_policy(spec, device.cost_model(), limits)
        if spec in specs[:i]:
            raise InputError(f"--policy {spec} is given twice; once is enough")


def _introduce(
    console: Console, device: Profile, limits: Limits, about_traffic: Sequence[str]
) -> None:
    """What is simulated."""
    lines = [
        f"{device.model} on {device.device}, costs {device.provenance.how} ({device.name})",
        f"{limits.slots:,} slots, {limits.token_budget:,} tokens per iteration, "
        f"{limits.kv_capacity:,} tokens of KV cache",
        *about_traffic,
    ]
    for line in lines:
        console.print(Text(line, style="dim"))


def _tell_defaults(console: Console, profile: bool, traffic: Traffic) -> None:
    """What of it nobody asked for."""
    options = [f"--profile {DEFAULT_PRESET}"] if profile else []
    if traffic.is_default:
        options.append(f"--workload {DEFAULT_WORKLOAD}")
        if traffic.concurrency is None and traffic.rate is None:
            options.append(f"--concurrency {DEFAULT_CONCURRENCY}")
        if traffic.requests is None:
            options.append(f"--requests {DEFAULT_REQUESTS}")
    console.print(Text(f"by default: {' '.join(options)}", style="yellow"))


def _run_all(
    specs: Sequence[str], device: Profile, limits: Limits, table: RequestTable, curves: bool
) -> tuple[list[RunSummary], list[dict[str, Any]]]:
    """Simulate every policy on the same requests. A record is dropped as soon as its numbers are
    taken: it holds every iteration of the run."""
    cost = device.cost_model()
    runs: list[RunSummary] = []
    series: list[dict[str, Any]] = []
    with _progress() as progress:
        width = max(len(spec) for spec in specs)
        for spec in specs:
            task = progress.add_task(spec.ljust(width), total=len(table))
            try:
                record = simulate(
                    cost,
                    source_of(table),
                    build_policy(spec, cost, limits),
                    limits,
                    profile=device.name,
                    progress=partial(progress.advance, task),
                )
            except Exception as error:
                error.add_note(f"This happened while simulating {spec}; no file was written.")
                raise
            runs.append(summarise(record))
            if curves:
                series.append(run_series(record))
    return runs, series


def _progress() -> Progress:
    """A progress bar on stderr, only if a person is watching."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} requests"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
