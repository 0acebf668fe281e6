"""Running workloads and calibration on a real model: the engine loop with a wall clock."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np
import torch

from phasegate.calibrate.fit import Fit, Sample, fit_interference
from phasegate.calibrate.measure import Design, measure
from phasegate.cost.profile import Fit as ProfileFit
from phasegate.cost.profile import InterferenceConstants, Profile, Provenance
from phasegate.engine.clock import WallClock
from phasegate.engine.loop import Engine
from phasegate.engine.record import Recorder, RunRecord
from phasegate.model.generation import Generation
from phasegate.model.params import SamplingParams
from phasegate.model.runner import TorchRunner
from phasegate.policy.base import Policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request
from phasegate.scheduler.scheduler import Scheduler
from phasegate.workload.source import Source


class PromptSource:
    """Gives the requests of a workload random prompts of their length, and makes the model
    generate exactly their output length (greedy, end of sequence ignored)."""

    def __init__(self, source: Source, vocabulary: int, seed: int = 0) -> None:
        self._source, self._vocabulary, self._seed = source, vocabulary, seed
        self.total, self.label = source.total, source.label

    def next_arrival(self) -> float:
        """See Source."""
        return self._source.next_arrival()

    def take(self, now: float) -> list[Request]:
        """See Source."""
        requests = self._source.take(now)
        for request in requests:
            length = request.output if request.output is not None else request.max_tokens
            request.max_tokens = length
            request.payload = random_generation(
                request.id, request.prompt, length, self._vocabulary, self._seed
            )
        return requests

    def finished(self, count: int, now: float) -> None:
        """See Source."""
        self._source.finished(count, now)


def random_generation(
    request: int, prompt: int, max_tokens: int, vocabulary: int, seed: int = 0
) -> Generation:
    """A greedy generation of exactly `max_tokens` tokens behind `prompt` random ones."""
    ids = np.random.default_rng((seed, request)).integers(0, vocabulary, prompt).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Generation(ids, params)


def run_workload(
    runner: TorchRunner,
    source: Source,
    policy: Policy,
    limits: Limits,
    *,
    profile: str = "",
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> RunRecord:
    """Serve all requests of `source` on a real model under `policy`, in real time.

    Args:
        runner: the model; free of requests, and free again afterwards.
        source: where requests come from; their token ids are drawn from `seed`.
        policy: a fresh policy.
        limits: slots, token budget, KV (that of the runner).
        profile: name for the record.
        progress: called with the number of requests that ended since the last call.
    """
    recorder = Recorder()
    scheduler = Scheduler(limits)
    prompts = PromptSource(source, runner.loaded.model.config.get_text_config().vocab_size, seed)
    gc.collect()
    gc.freeze()  # model and libraries: nothing there to look through during the run
    try:
        clock = WallClock()
        engine = Engine(policy, scheduler, runner, clock, recorder)
        engine.run(prompts, progress)
        duration = clock.now()
    finally:
        gc.unfreeze()
    return recorder.record(
        policy=policy.spec,
        profile=profile,
        workload=source.label,
        kv_capacity=scheduler.kv.capacity,
        slots=limits.running,
        submitted=engine.submitted,
        duration=duration,
    )


def measure_samples(
    runner: TorchRunner,
    limits: Limits,
    time_limit: float,
    progress: Callable[[float], None] | None = None,
    design: Design | None = None,
    seed: int = 0,
) -> list[Sample]:
    """Measure iterations of the model on this machine for about `time_limit` seconds.

    Args:
        runner, limits: the model and its limits; nothing else may use it.
        time_limit: seconds.
        progress: called with the share of it that has passed.
        design: what to measure; None: what fits of the usual one.
        seed: of the order.

    Raises:
        InputError: KV or model are too small to vary context and chunk.
    """
    vocabulary = runner.loaded.model.config.get_text_config().vocab_size

    def make_request(request: int, prompt: int, max_tokens: int) -> Request:
        generation = random_generation(request, prompt, max_tokens, vocabulary)
        return Request(request, prompt, max_tokens, payload=generation)

    if design is None:
        design = Design().within(limits, runner.loaded.max_length)
    return measure(
        runner,
        WallClock(),
        limits,
        make_request,
        design,
        time_limit=time_limit,
        seed=seed,
        progress=progress,
    )


def measure_costs(
    runner: TorchRunner,
    limits: Limits,
    time_limit: float,
    progress: Callable[[float], None] | None = None,
) -> Fit:
    """`measure_samples`, and the costs fitted to them."""
    return fit_interference(measure_samples(runner, limits, time_limit, progress))


def calibrate(
    runner: TorchRunner,
    limits: Limits,
    time_limit: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[Profile, Fit]:
    """As `measure_costs`, with a profile of the result."""
    fit = measure_costs(runner, limits, time_limit, progress)
    device = device_name(torch.device(runner.loaded.model.device))
    model = Path(runner.loaded.name).name or runner.loaded.name
    threads = f", {torch.get_num_threads()} threads" if not torch.cuda.is_available() else ""
    return (
        profile_of(fit, model, device, limits.kv_capacity, f"phasegate calibrate{threads}"),
        fit,
    )


def profile_of(fit: Fit, model: str, device: str, kv_capacity: int, source: str) -> Profile:
    """A fit as a profile."""
    return Profile(
        schema=1,
        name=f"{device}/{model}",
        model=model,
        device=device,
        cost=InterferenceConstants(**asdict(fit.cost)),
        kv_capacity_tokens=kv_capacity,
        provenance=Provenance(
            how="measured",
            source=f"{source}, {fit.samples} iterations, host time inside alpha",
            date=date.today(),
        ),
        fit=ProfileFit(r2=fit.r2, worst_residual=abs(fit.worst), confidence=dict(fit.intervals)),
    )


def device_name(device: torch.device) -> str:
    """Name of a device, for profiles."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "CPU"
