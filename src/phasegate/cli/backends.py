"""What `bench` and `calibrate` measure on: the embedded engine, or vLLM in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Protocol

import typer

from phasegate.calibrate.fit import Fit
from phasegate.cli.comparison import progress_bar
from phasegate.cli.engine_options import PANEL, EngineOptions
from phasegate.cost.profile import Profile
from phasegate.engine.record import RunRecord
from phasegate.errors import InputError
from phasegate.policy.base import Policy
from phasegate.scheduler.limits import Limits
from phasegate.workload.source import Source
from phasegate.workload.table import RequestTable


class BackendName(StrEnum):
    """The engines there are."""

    engine = "engine"
    vllm = "vllm"


BackendOption = Annotated[
    BackendName,
    typer.Option(help="The embedded engine, or vLLM in this process.", rich_help_panel=PANEL),
]
EngineArgsOption = Annotated[
    str | None,
    typer.Option(
        help="More arguments for vLLM's engine, as a JSON object.",
        metavar="JSON",
        rich_help_panel=PANEL,
    ),
]


class Backend(Protocol):
    """An engine with a model in it.

    Attributes:
        limits: slots, token budget and KV cache.
        name: of the model.
        longest: the most tokens of prompt and output together.
    """

    limits: Limits
    name: str
    longest: int

    def calibrate(
        self, time_limit: float, progress: Callable[[float], None]
    ) -> tuple[Profile, Fit]:
        """Measure what iterations cost for about `time_limit` seconds; progress from 0 to 1."""
        ...

    def run(
        self,
        source: Source,
        policy: Policy | None,
        *,
        profile: str,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> RunRecord:
        """Serve all requests of `source` in real time; policy None: the engine's own scheduler."""
        ...


class _Embedded:
    """Our engine."""

    def __init__(self, options: EngineOptions) -> None:
        self._runner, self.limits = options.build()
        from phasegate.model import measured

        self._measured = measured
        self.name, self.longest = self._runner.loaded.name, self._runner.loaded.max_length

    def calibrate(
        self, time_limit: float, progress: Callable[[float], None]
    ) -> tuple[Profile, Fit]:
        """See Backend."""
        return self._measured.calibrate(self._runner, self.limits, time_limit, progress)

    def run(
        self,
        source: Source,
        policy: Policy | None,
        *,
        profile: str,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> RunRecord:
        """See Backend."""
        assert policy is not None
        return self._measured.run_workload(
            self._runner, source, policy, self.limits, profile=profile, seed=seed, progress=progress
        )


class _Vllm:
    """vLLM in this process."""

    def __init__(self, options: EngineOptions, engine_args: dict[str, Any]) -> None:
        from phasegate.vllm_engine.engine import VllmEngine

        if options.model is None:
            raise InputError("--backend vllm needs --model: a folder or a hub id, as `vllm serve`")
        self._engine = VllmEngine(
            options.model,
            options.n,
            options.token_budget,
            **{"dtype": options.dtype, **engine_args},
        )
        self.limits, self.longest = self._engine.limits, self._engine.longest
        self.name = self._engine.model

    def calibrate(
        self, time_limit: float, progress: Callable[[float], None]
    ) -> tuple[Profile, Fit]:
        """See Backend."""
        from phasegate.vllm_engine.calibrate import calibrate

        return calibrate(self._engine, time_limit, progress)

    def run(
        self,
        source: Source,
        policy: Policy | None,
        *,
        profile: str,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> RunRecord:
        """See Backend."""
        from phasegate.vllm_engine.serve import run_workload

        return run_workload(
            self._engine, source, policy, profile=profile, seed=seed, progress=progress
        )


_SET_BY = {
    "model": "--model",
    "dtype": "--dtype",
    "max_num_seqs": "--n",
    "max_num_batched_tokens": "--token-budget",
    "scheduler_cls": "--policy",
}
_ENGINE_ONLY = ("device", "threads", "kv", "page")


def check_backend(
    context: typer.Context, backend: BackendName, engine_args: str | None
) -> dict[str, Any]:
    """The engine arguments. Raises InputError for options that the backend has no use for."""
    if backend is BackendName.engine:
        if engine_args is not None:
            raise InputError("--engine-args has no use here; it belongs to --backend vllm")
        return {}
    refuse_given(
        context,
        _ENGINE_ONLY,
        "has no use with --backend vllm; say it to vLLM, by its own variables or --engine-args",
    )
    try:
        values = json.loads(engine_args or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"--engine-args {engine_args}: not JSON ({error.msg})") from None
    if not isinstance(values, dict):
        raise InputError(f"--engine-args {engine_args}: must be a JSON object")
    for name in values:
        if name in _SET_BY:
            raise InputError(f"--engine-args names {name}; use {_SET_BY[name]} for that")
    return values


def refuse_given(context: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raise InputError if a person gave one of these parameters of the command."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise InputError(f"--{name.replace('_', '-')} {reason}")


def load(backend: BackendName, options: EngineOptions, engine_args: dict[str, Any]) -> Backend:
    """Load the model. Raises InputError if that fails, or if what it needs is not installed."""
    return _Embedded(options) if backend is BackendName.engine else _Vllm(options, engine_args)


def calibrated(backend: Backend, seconds: float) -> tuple[Profile, Fit]:
    """Calibrate with a progress bar."""
    with progress_bar("seconds") as bar:
        task = bar.add_task("calibrate", total=seconds)
        return backend.calibrate(seconds, lambda share: bar.update(task, completed=share * seconds))


def check_fits(table: RequestTable, name: str, longest: int) -> None:
    """Say before the work that a request is too long for the model. Raises InputError."""
    total = table.prompt + table.output
    worst = int(total.argmax())
    if total[worst] > longest:
        raise InputError(
            f"request {worst} of {table.label} has {table.prompt[worst]} prompt and "
            f"{table.output[worst]} output tokens, {name} takes {longest} "
            "in all; use shorter requests or another model"
        )
