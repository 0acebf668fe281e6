"""`phasegate simulate`: how policies compare on one device under one workload."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from phasegate.cli.comparison import (
    STDOUT,
    check_outputs,
    check_policies,
    command_line,
    introduce,
    present,
    run_all,
    tell_defaults,
)
from phasegate.cli.traffic import (
    DEFAULT_WORKLOAD,
    Traffic,
)
from phasegate.cost.model import CostModel
from phasegate.cost.presets import DEFAULT_PRESET
from phasegate.cost.profile import load_profile, profile_file
from phasegate.engine.moment import ExplainingPolicy, explain_at
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.errors import InputError
from phasegate.policy.spec import build_policy
from phasegate.report.html import Context
from phasegate.scheduler.limits import Limits
from phasegate.workload.describe import describe
from phasegate.workload.source import source_of

DEFAULT_POLICIES = ("mixed", "threshold", "hybrid", "auto")
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
        int | None,
        typer.Option(
            help="Seed of synthetic traffic.", show_default="0", min=0, rich_help_panel=_TRAFFIC
        ),
    ] = None,
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
    explain: Annotated[
        float | None,
        typer.Option(
            help="Say why `auto` did what it did at this moment of the run.",
            min=0.0,
            metavar="SECONDS",
            rich_help_panel=_OUTPUT,
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
    traffic = Traffic(workload, trace, concurrency, rate, rate_scale, requests, seed)
    traffic.check(queue_limit)
    check_outputs(json, html, [*traffic.files, profile_file(profile)])
    device = load_profile(DEFAULT_PRESET if profile is None else profile)
    cost = device.cost_model()
    capacity = device.kv_capacity_tokens if kv is None else kv
    if capacity < page:
        whose = f"profile {device.name}: kv_capacity_tokens" if kv is None else "--kv"
        raise InputError(
            f"{whose} {capacity}: less than one page of {page} tokens; raise it or lower --page"
        )
    limits = Limits(
        kv_capacity=capacity,
        slots=n,
        token_budget=token_budget,
        page=page,
        queue_limit=queue_limit,
    )
    specs = policy or list(DEFAULT_POLICIES)
    check_policies(specs, cost, limits)
    if explain is not None and not any(_explains(spec, cost, limits) for spec in specs):
        raise InputError("--explain needs a policy that accounts for itself; add --policy auto")
    table = traffic.table()
    smallest = int((table.prompt + table.output).min()) - 1
    if smallest > capacity // page * page:
        raise InputError(
            f"no request fits into the KV cache: the smallest needs {smallest:,} tokens for prompt "
            f"and output, the cache holds {capacity // page * page:,}; give a larger --kv or "
            "shorter requests"
        )

    console = Console(stderr=json == STDOUT, highlight=False)
    shape = describe(table)
    about_traffic = [*str(shape).splitlines(), *table.notes]
    if trace is not None:
        about_traffic[0] = f"{table.label}: {about_traffic[0]}"
    introduce(console, device, limits, about_traffic)
    options = [] if profile is not None else [f"--profile {DEFAULT_PRESET}"]
    tell_defaults(console, [*options, *traffic.defaults], () if policy else specs)

    def run_one(spec: str, advance: Callable[[int], None]) -> RunRecord:
        return simulate(
            cost,
            source_of(table),
            build_policy(spec, cost, limits),
            limits,
            profile=device.name,
            progress=advance,
        )

    runs, series = run_all(specs, run_one, len(table), curves=html is not None)
    offered = shape.rate if math.isfinite(shape.rate) else None
    about = Context(device, limits, about_traffic, command_line(context), offered)
    present(runs, series, about, console, json, html)
    for spec in specs:
        built = build_policy(spec, cost, limits)
        if explain is not None and isinstance(built, ExplainingPolicy):
            console.print(Text(f"\n{spec} at {explain:g} s:", style="bold"))
            for line in explain_at(explain, cost, source_of(table), built, limits):
                console.print(Text(f"  {line}"))


def _explains(spec: str, cost: CostModel, limits: Limits) -> bool:
    return isinstance(build_policy(spec, cost, limits), ExplainingPolicy)
