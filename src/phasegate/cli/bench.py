"""`phasegate bench`: how policies compare on a real model, on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from phasegate.calibrate.table import print_fit
from phasegate.cli import bench_url
from phasegate.cli.backends import (
    BackendName,
    BackendOption,
    EngineArgsOption,
    calibrated,
    check_backend,
    check_fits,
    load,
    refuse_given,
)
from phasegate.cli.comparison import (
    STDOUT,
    check_outputs,
    check_policies,
    command_line,
    introduce,
    present,
    run_all,
)
from phasegate.cli.engine_options import (
    PAGE,
    SLOTS,
    TOKEN_BUDGET,
    BudgetOption,
    DeviceOption,
    DtypeOption,
    EngineOptions,
    KVOption,
    ModelOption,
    PageOption,
    SlotsOption,
    ThreadsOption,
)
from phasegate.cli.traffic import Traffic
from phasegate.cost.profile import Profile, load_profile, profile_file
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.errors import InputError
from phasegate.policy.spec import build_policy, parse_spec
from phasegate.report.disturbance import disturbed, longest_stall, slowness
from phasegate.report.fidelity import print_fidelity
from phasegate.report.html import Context
from phasegate.report.summary import summarise
from phasegate.vllm_engine import STOCK
from phasegate.workload.describe import describe
from phasegate.workload.source import source_of

DEFAULT_POLICIES = ("mixed", "exclusive:k=1", "threshold", "hybrid", "auto")
DEFAULT_VLLM_POLICIES = (STOCK, "hybrid", "auto")
DEFAULT_WORKLOAD = "prompt=96,output=48,prompt_dist=lognormal:0.8,output_dist=lognormal:0.8"
DEFAULT_REQUESTS = 96

_WORKLOAD = f"Synthetic traffic, e.g. '{DEFAULT_WORKLOAD}'."
_TRACE = "Recorded traffic: an Azure, BurstGPT, Mooncake or ShareGPT file, .gz accepted."
_PROFILE = "Costs for the policies (from `phasegate calibrate`); without it, calibrate first."
_POLICY = "Policy to compare; repeat for more (`phasegate policies` lists them)."
_URL = "Measure a running OpenAI-compatible server instead; [NAME=]URL, repeat to compare servers."
_ROUNDS = "Run each policy so many times, in turns; shown is its run of median throughput."
_TRAFFIC, _OUTPUT = "Traffic", "Output"


def command(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=_POLICY, show_default=" ".join(DEFAULT_POLICIES), metavar="SPEC"),
    ] = None,
    profile: Annotated[str | None, typer.Option(help=_PROFILE, metavar="NAME|FILE")] = None,
    calibrate: Annotated[
        float,
        typer.Option(help="Seconds to calibrate if there is no profile.", min=1.0),
    ] = 30.0,
    url: Annotated[list[str] | None, typer.Option(help=_URL, metavar="URL")] = None,
    rounds: Annotated[int, typer.Option(help=_ROUNDS, min=1)] = 1,
    compare_sim: Annotated[
        bool, typer.Option("--compare-sim", help="Replay in the simulator; predicted vs measured.")
    ] = False,
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
            help="Seed of traffic and prompts.", show_default="0", min=0, rich_help_panel=_TRAFFIC
        ),
    ] = None,
    backend: BackendOption = BackendName.engine,
    model: ModelOption = None,
    engine_args: EngineArgsOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    n: SlotsOption = SLOTS,
    token_budget: BudgetOption = TOKEN_BUDGET,
    kv: KVOption = None,
    page: PageOption = PAGE,
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
    """Compare policies on a real model, in real time: on the embedded engine or inside vLLM.

    With no traffic options: a small conversation-like workload, as many requests in flight as
    there are slots. With --backend vllm the policy `stock` is vLLM's own scheduler.
    """
    traffic = _traffic(workload, trace, concurrency, rate, rate_scale, requests, seed, n)
    check_outputs(json, html, [*traffic.files, profile_file(profile), Path(model or "demo")])
    console = Console(stderr=json == STDOUT, highlight=False)
    if url:
        refuse_given(context, _NOT_WITH_URL, "has no use with --url: the server has its own")
        bench_url.compare(context, url, model, traffic, rounds, console, json, html)
        return
    arguments = check_backend(context, backend, engine_args)
    table = traffic.table()
    costs = load_profile(profile) if profile is not None else None
    specs = policy or list(_DEFAULTS[backend])
    ours = _ours(specs, backend)
    options = EngineOptions(model, device, dtype, threads, n, token_budget, kv, page)
    engine = load(backend, options, arguments)
    limits = engine.limits
    if costs is not None:
        check_policies(ours, costs.cost_model(), limits)
    check_fits(table, engine.name, engine.longest)
    if costs is None:
        costs, fit = calibrated(engine, calibrate)
        print_fit(fit, console)
        check_policies(ours, costs.cost_model(), limits)
    elif backend is BackendName.vllm:  # what calibration would have done: start everything up
        engine.run(source_of(table.first(min(n, len(table)))), None, profile="", seed=seed or 0)
    device_profile: Profile = costs
    cost = device_profile.cost_model()
    shape = describe(table)
    about_traffic = [*str(shape).splitlines(), *table.notes]
    introduce(console, device_profile, limits, about_traffic)

    steadiness: dict[str, list[tuple[float, float]]] = {}

    def run_one(spec: str, advance: Callable[[int], None]) -> RunRecord:
        record = engine.run(
            source_of(table),
            None if spec == STOCK else build_policy(spec, cost, limits),
            profile=device_profile.name,
            seed=seed or 0,
            progress=advance,
        )
        steadiness.setdefault(spec, []).append((slowness(record, cost), longest_stall(record)))
        return record

    runs, series = run_all(specs, run_one, len(table), html is not None, rounds)
    offered = shape.rate if math.isfinite(shape.rate) else None
    words = command_line(context)
    about = Context(device_profile, limits, about_traffic, words, offered, measured=True)
    present(runs, series, about, console, json, html)
    caution = disturbed({spec: sorted(r)[len(r) // 2] for spec, r in steadiness.items()})
    if caution:
        console.print(Text(caution, style="bold red"))
    if compare_sim:
        predicted = [
            summarise(
                simulate(
                    cost,
                    source_of(table),
                    build_policy("mixed" if spec == STOCK else spec, cost, limits),
                    limits,
                    profile=device_profile.name,
                )
            )
            for spec in specs
        ]
        console.print()
        console.print(Text("Simulated with the same costs, scheduler and requests:", style="bold"))
        print_fidelity(predicted, runs, console)


_DEFAULTS = {BackendName.engine: DEFAULT_POLICIES, BackendName.vllm: DEFAULT_VLLM_POLICIES}
_NOT_WITH_URL = (
    "backend", "policy", "profile", "calibrate", "compare_sim", "engine_args", "device", "dtype",
    "threads", "token_budget", "kv", "page",
)  # fmt: skip


def _ours(specs: list[str], backend: BackendName) -> list[str]:
    """The specs that are policies of ours. Raises InputError for what this backend cannot run."""
    for spec in specs:
        if spec != STOCK:
            parse_spec(spec)
        elif backend is BackendName.engine:
            raise InputError(f"--policy {STOCK} is vLLM's own scheduler; add --backend vllm")
        if specs.count(spec) > 1:
            raise InputError(f"--policy {spec} is given twice; once is enough")
    return [spec for spec in specs if spec != STOCK]


def _traffic(
    workload: str | None,
    trace: Path | None,
    concurrency: int | None,
    rate: float | None,
    rate_scale: float | None,
    requests: int | None,
    seed: int | None,
    slots: int,
) -> Traffic:
    """The traffic options, with what is small enough for this machine where nothing is said."""
    if workload is None and trace is None:
        workload = DEFAULT_WORKLOAD
        requests = requests or DEFAULT_REQUESTS
        if rate is None and concurrency is None and rate_scale is None:
            concurrency = slots
    traffic = Traffic(workload, trace, concurrency, rate, rate_scale, requests, seed)
    traffic.check()
    return traffic
