"""Options of the commands that run a real model, and how they become a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from phasegate.errors import InputError
from phasegate.scheduler.limits import Limits

if TYPE_CHECKING:
    from phasegate.model.runner import TorchRunner

PANEL = "Engine"

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Model: a folder, a .gguf file, a hub id, or `demo`.",
        metavar="PATH|ID",
        show_default="demo",
        rich_help_panel=PANEL,
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="auto, cpu, cuda, cuda:1 ...", rich_help_panel=PANEL)
]
DtypeOption = Annotated[
    str, typer.Option(help="auto, float32, bfloat16, float16.", rich_help_panel=PANEL)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="CPU threads.", show_default="all usable cores", min=1, rich_help_panel=PANEL
    ),
]
SlotsOption = Annotated[
    int, typer.Option("--n", help="Slots: most running requests.", min=1, rich_help_panel=PANEL)
]
BudgetOption = Annotated[
    int, typer.Option(help="Most tokens per iteration.", min=1, rich_help_panel=PANEL)
]
KVOption = Annotated[
    int | None,
    typer.Option(
        help="KV cache, tokens.", show_default="by free memory", min=1, rich_help_panel=PANEL
    ),
]
PageOption = Annotated[
    int, typer.Option(help="KV cache page, tokens.", min=1, rich_help_panel=PANEL)
]

SLOTS = 32
TOKEN_BUDGET = 2048
PAGE = 256


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the options say."""

    model: str | None
    device: str
    dtype: str
    threads: int | None
    n: int
    token_budget: int
    kv: int | None
    page: int

    def build(self) -> tuple[TorchRunner, Limits]:
        """Load the model. Raises InputError if that fails, or if torch is not installed."""
        try:
            from transformers.utils import logging

            from phasegate.model.demo import demo_model
            from phasegate.model.loading import load_model
            from phasegate.model.runner import TorchRunner
            from phasegate.model.threads import set_threads
        except ModuleNotFoundError as error:
            raise InputError(
                f"the embedded engine needs {error.name}; pip install 'phasegate[torch]'"
            ) from None
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        set_threads(self.threads)
        wanted = self.model or "demo"
        source = demo_model() if wanted == "demo" else wanted
        loaded = load_model(source, self.device, self.dtype)
        runner = TorchRunner(loaded, self.kv, self.page, self.n)
        limits = Limits(
            kv_capacity=runner.kv_tokens,
            slots=self.n,
            token_budget=self.token_budget,
            page=runner.page,
        )
        return runner, limits
