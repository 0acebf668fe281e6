"""`phasegate calibrate`: what an iteration costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from phasegate.calibrate.fit import Fit
from phasegate.calibrate.table import print_fit
from phasegate.cli.comparison import progress_bar
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
from phasegate.cost.profile import Profile
from phasegate.files import check_apart, check_writable


def command(
    out: Annotated[Path, typer.Option(help="Profile to write.", metavar="FILE")] = Path(
        "profile.json"
    ),
    time_limit: Annotated[
        float, typer.Option(help="Seconds to measure, about.", min=1.0, metavar="SECONDS")
    ] = 60.0,
    model: ModelOption = None,
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
    options = EngineOptions(model, device, dtype, threads, n, token_budget, kv, page)
    console = Console(highlight=False)
    profile, fit = measured_profile(options, time_limit)
    console.print(Text(f"{profile.model} on {profile.device}", style="dim"))
    print_fit(fit, console)
    profile.save(out)
    console.print(Text(f"wrote {out}", style="dim"))


def measured_profile(options: EngineOptions, time_limit: float) -> tuple[Profile, Fit]:
    """Load the model and calibrate, with a progress bar."""
    runner, limits = options.build()
    from phasegate.model.measured import calibrate

    with progress_bar("seconds") as bar:
        task = bar.add_task("calibrate", total=time_limit)
        return calibrate(
            runner,
            limits,
            time_limit,
            lambda share: bar.update(task, completed=share * time_limit),
        )
