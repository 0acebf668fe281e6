"""`phasegate calibrate`: what an iteration costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from phasegate.calibrate.table import print_fit
from phasegate.cli.backends import (
    BackendName,
    BackendOption,
    EngineArgsOption,
    calibrated,
    check_backend,
    load,
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
from phasegate.files import check_apart, check_writable


def command(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Profile to write.", metavar="FILE")] = Path(
        "profile.json"
    ),
    time_limit: Annotated[
        float, typer.Option(help="Seconds to measure, about.", min=1.0, metavar="SECONDS")
    ] = 60.0,
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
) -> None:
    """Measure prefill-only, decode-only and mixed iterations; fit and write a profile.

    The profile works wherever a profile is asked for: simulate, bench, and inside vLLM.
    """
    check_writable(out)
    check_apart({"--out": out}, [Path(model or "demo")])
    arguments = check_backend(context, backend, engine_args)
    options = EngineOptions(model, device, dtype, threads, n, token_budget, kv, page)
    console = Console(highlight=False)
    profile, fit = calibrated(load(backend, options, arguments), time_limit)
    console.print(Text(f"{profile.model} on {profile.device}", style="dim"))
    print_fit(fit, console)
    profile.save(out)
    console.print(Text(f"wrote {out}", style="dim"))
