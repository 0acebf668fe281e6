"""What iterations of a vLLM engine cost: measured as they come, fitted to the usual model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date
from random import Random
from time import perf_counter

from phasegate.calibrate.fit import Fit, Sample, fit_interference
from phasegate.calibrate.measure import Design
from phasegate.cost.profile import Fit as ProfileFit
from phasegate.cost.profile import InterferenceConstants, Profile, Provenance
from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.vllm_engine.engine import VllmEngine

_DECODE = Plan(True, 0, 0, UNLIMITED)


class _Obedient:
    """A policy that runs the plan it was handed and keeps the report."""

    spec = "calibrate"
    decision = Decision("calibrate", None, 0)

    def __init__(self) -> None:
        self.next = _DECODE
        self.report: StepReport | None = None

    def plan(self, now: Snapshot) -> Plan:
        return self.next

    def observe(self, step: StepReport) -> None:
        self.report = step


class _Bench:
    """The engine under measurement."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
        self.engine = engine
        self._policy, self._draw, self._count = _Obedient(), Random(seed), 0
        engine.use(self._policy)

    def submit(self, prompt: int, max_tokens: int) -> str:
        """Queue a request with random tokens."""
        self._count += 1
        ids = [self._draw.randrange(self.engine.vocabulary) for _ in range(prompt)]
        self.engine.add(f"calibrate-{self._count}", ids, max_tokens)
        return f"calibrate-{self._count}"

    def step(self, plan: Plan) -> Sample:
        """Run one iteration."""
        self._policy.next = plan
        self.engine.step()
        report = self._policy.report
        assert report is not None
        return Sample(
            report.prefill_tokens,
            report.prefill_attention,
            report.decodes,
            report.context_tokens,
            report.durations[0],
        )

    def decoders(self, count: int, context: int, ticks: int) -> list[str]:
        """`count` requests that decode at `context`, with room for `ticks` more tokens."""
        names = [self.submit(context, ticks + 2) for _ in range(count)]
        plan = Plan(False, UNLIMITED, self.engine.limits.token_budget, UNLIMITED)
        scheduler = self.engine.scheduler
        while len(scheduler.running) < count or any(r.is_prefill_chunk for r in scheduler.running):
            self.step(plan)
        return names

    def prefill(self, start: int, chunk: int, decode: bool) -> Sample:
        """One iteration that processes `chunk` prompt tokens behind `start` present ones."""
        name = self.submit(start + chunk + 1, 1)
        if start:
            self.step(Plan(False, 1, start, UNLIMITED))
        sample = self.step(Plan(decode, 1, chunk, UNLIMITED, chunk))
        self.engine.abort([name])
        self.engine.step()  # tells the worker
        return sample


def calibrate(
    engine: VllmEngine,
    time_limit: float,
    progress: Callable[[float], None] | None = None,
    seed: int = 0,
) -> tuple[Profile, Fit]:
    """Measure for about `time_limit` seconds; returns a profile and how well it fits.

    Raises InputError if KV or model are too small to vary context and chunk.
    """
    samples = measure(engine, time_limit, progress, seed)
    fit = fit_interference(samples)
    name = engine.model.rstrip("/").rsplit("/", 1)[-1]
    profile = Profile(
        schema=1,
        name=f"{engine.device}/{name}",
        model=name,
        device=engine.device,
        cost=InterferenceConstants(**asdict(fit.cost)),
        kv_capacity_tokens=engine.limits.kv_capacity,
        provenance=Provenance(
            how="measured",
            source=f"phasegate calibrate --backend vllm, {fit.samples} iterations, "
            "host time inside alpha",
            date=date.today(),
        ),
        fit=ProfileFit(r2=fit.r2, worst_residual=abs(fit.worst), confidence=dict(fit.intervals)),
    )
    return profile, fit


def measure(
    engine: VllmEngine,
    time_limit: float,
    progress: Callable[[float], None] | None = None,
    seed: int = 0,
) -> list[Sample]:
    """Iterations of all kinds, in rounds of random order, for about `time_limit` seconds. The
    first round, which warms up, does not count if there is time for another."""
    bench, began, order = _Bench(engine, seed), perf_counter(), Random(seed)
    design = Design().within(engine.limits, engine.longest)
    room = engine.limits.kv_capacity - 2 * max(design.chunks) - max(design.starts)
    groups = [(0, 0)] + [
        (count, context)
        for count in design.decodes
        for context in design.contexts
        if count * (context + 64 + engine.limits.page) <= room
    ]
    kept: list[Sample] = []
    first = True
    while True:
        fresh: list[Sample] = []
        for count, context in groups:
            fresh += _visit(bench, design, count, context)
            passed = perf_counter() - began
            if progress is not None:
                progress(min(1.0, passed / time_limit))
            if passed >= time_limit and not first:
                return kept + fresh
        kept = fresh if first else kept + fresh
        if perf_counter() - began >= time_limit:
            return kept
        if first:
            kept, first = [], False
        order.shuffle(groups)


def _visit(bench: _Bench, design: Design, count: int, context: int) -> Iterator[Sample]:
    """Samples with `count` requests decoding at `context`; (0, 0): prefill alone."""
    budget = bench.engine.limits.token_budget
    chunks = [chunk for chunk in design.chunks if chunk + count <= budget]
    if not count:
        for chunk in chunks:
            for start in design.starts:
                if start <= budget:
                    yield bench.prefill(start, chunk, decode=False)
        return
    names = bench.decoders(count, context, design.repeat + 2 * len(chunks) + 2)
    for _ in range(design.repeat):
        yield bench.step(_DECODE)
    if count < bench.engine.limits.slots:
        for chunk in chunks:
            yield bench.prefill(0, chunk, decode=True)
    bench.engine.abort(names)
    bench.engine.step()
