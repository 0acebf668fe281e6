"""Measuring iterations: prefill-only, decode-only and mixed, at several sizes and contexts.

The real engine runs with a policy that does as it is told, so what is measured is what serving
costs, host time included. Contexts are not computed: the KV of a context is declared present
(`Request.prefilled`), since its content does not change how long an iteration takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from phasegate.calibrate.fit import Sample
from phasegate.engine.clock import Clock
from phasegate.engine.loop import Engine
from phasegate.engine.step import Runner
from phasegate.errors import InputError
from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request
from phasegate.scheduler.scheduler import Scheduler

_CHUNKS_PER_VISIT = 2

MakeRequest = Callable[[int, int, int], Request]
"""(id, prompt length, max_tokens) -> a request that the runner accepts."""


@dataclass(frozen=True, slots=True)
class Design:
    """What to measure.

    Attributes:
        contexts: context lengths of the decoding requests, tokens.
        decodes: numbers of decoding requests.
        chunks: prompt tokens in an iteration.
        starts: prompt tokens already processed before a chunk (prefill attention).
        repeat: iterations per composition and round.
    """

    contexts: tuple[int, ...] = (64, 256, 1024, 2048)
    decodes: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 128, 256)
    chunks: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    starts: tuple[int, ...] = (0, 1024)
    repeat: int = 3

    def within(self, limits: Limits, longest: int) -> Design:
        """The part that fits slots, token budget, KV and a model of `longest` positions.

        Raises InputError if too little is left to fit a cost model.
        """
        kv = limits.kv_capacity
        decodes = tuple(n for n in self.decodes if n <= limits.running)
        contexts = tuple(c for c in self.contexts if c + 64 <= min(longest, kv // 2))
        chunks = tuple(
            s for s in self.chunks if s <= limits.token_budget and s + 1 <= min(longest, kv // 4)
        )
        starts = tuple(s for s in self.starts if s + max(chunks, default=0) + 2 <= longest)
        if len(contexts) < 2 or not chunks or not starts:
            raise InputError(
                f"kv_capacity {kv} tokens and {longest} positions leave no room to vary context "
                "and chunk; calibrate with more KV or a longer model"
            )
        return Design(contexts, decodes, chunks, starts, self.repeat)


class _Obedient:
    """A policy that runs the plan it was handed and keeps the report."""

    spec = "calibrate"
    decision = Decision("calibrate", None, 0)

    def __init__(self) -> None:
        self.next = Plan(True, 0, 0, UNLIMITED)
        self.report: StepReport | None = None

    def plan(self, now: Snapshot) -> Plan:
        return self.next

    def observe(self, step: StepReport) -> None:
        self.report = step


class _Bench:
    """The engine under measurement."""

    def __init__(
        self, runner: Runner, clock: Clock, limits: Limits, make_request: MakeRequest
    ) -> None:
        self._policy = _Obedient()
        self._engine = Engine(self._policy, Scheduler(limits), runner, clock)
        self._make = make_request
        self.token_budget = limits.token_budget
        self._next_id = 0

    def submit(self, present: int, prompt: int, max_tokens: int) -> int:
        """Queue a request with `present` of its `prompt` tokens declared to be in KV."""
        request = self._make(self._next_id, prompt, max_tokens)
        request.prefilled = present
        self._next_id += 1
        self._engine.submit(request)
        return request.id

    def step(self, plan: Plan) -> Sample:
        """Run one iteration."""
        self._policy.next = plan
        self._engine.step()
        report = self._policy.report
        assert report is not None
        return Sample(
            report.prefill_tokens,
            report.prefill_attention,
            report.decodes,
            report.context_tokens,
            report.durations[0],
        )

    def abort(self, *ids: int) -> None:
        """Drop requests."""
        for request_id in ids:
            self._engine.abort(request_id)

    def decoders(self, count: int, context: int, ticks: int) -> list[int]:
        """`count` requests that decode at `context`, with room for `ticks` more tokens."""
        ids = [self.submit(context - 1, context, ticks + 2) for _ in range(count)]
        while self._engine.scheduler.prefilling or len(self._engine.scheduler.queue):
            self.step(Plan(False, UNLIMITED, self.token_budget, UNLIMITED))
        return ids

    def prefill(self, start: int, chunk: int, decode: bool) -> Sample:
        """One iteration that processes `chunk` prompt tokens behind `start` present ones."""
        filler = self.submit(start, start + chunk + 2, 1)
        if start:  # its KV is put in place in an iteration of its own, which does not count
            self.step(Plan(False, 1, 1, UNLIMITED))
        sample = self.step(Plan(decode, 1, chunk, UNLIMITED, chunk))
        self.abort(filler)
        return sample

    def decode(self) -> Sample:
        """One decode-only iteration."""
        return self.step(Plan(True, 0, 0, UNLIMITED))


def measure(
    runner: Runner,
    clock: Clock,
    limits: Limits,
    make_request: MakeRequest,
    design: Design,
    *,
    time_limit: float,
    rounds: int = 1000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Sample]:
    """Measure iterations until `time_limit` seconds have passed on `clock` or `rounds` are done.

    Each round visits all numbers of decodes at all contexts, from the second on in a new random
    order; every visit also measures some prompt chunks, with these decodes and alone. So drift of
    the machine hits all kinds of iterations alike.

    Args:
        runner, clock, limits: the engine to measure; nothing else may use it.
        make_request: makes requests for this runner.
        design: what to measure, see `Design.within`.
        time_limit: seconds on `clock`; exceeded only until there is enough for a fit.
        rounds: the most rounds.
        seed: of the order.
        progress: called with the share of the time limit that has passed.
    """
    bench = _Bench(runner, clock, limits, make_request)
    began = clock.now()
    design = _affordable(bench, design, time_limit)
    groups = _groups(design, limits)
    _warm_up(bench, design, groups)
    order = Random(seed)
    mixed, alone = _Deck(design, order), _Deck(design, order)
    samples: list[Sample] = []
    for turn in range(rounds):
        if turn:
            order.shuffle(groups)
        for count, context in groups:
            for sample in _visit(bench, design, count, context, mixed, alone):
                samples.append(sample)
                passed = clock.now() - began
                if progress is not None:
                    progress(min(1.0, passed / time_limit))
                if passed >= time_limit and _enough(samples):
                    return samples
    return samples


class _Deck:
    """(chunk, start) pairs like cards: all are dealt once, then they are shuffled again."""

    def __init__(self, design: Design, order: Random) -> None:
        self._cards = [(chunk, start) for chunk in design.chunks for start in design.starts]
        self._left: list[tuple[int, int]] = []
        self._order = order

    def deal(self) -> tuple[int, int]:
        """The next pair."""
        if not self._left:
            self._left = self._cards[:]
            self._order.shuffle(self._left)
        return self._left.pop()


def _warm_up(bench: _Bench, design: Design, groups: list[tuple[int, int]]) -> None:
    """Touch all the memory and run each kind of iteration once: the first time costs extra."""
    if not groups:
        raise InputError(
            "not even one decoding request fits the KV cache next to a prompt; calibrate with more"
        )
    count, context = max(groups, key=lambda group: group[0] * group[1])
    ids = bench.decoders(count, context, 4)
    bench.decode()
    bench.prefill(0, design.chunks[0], decode=True)
    bench.abort(*ids)


def _affordable(bench: _Bench, design: Design, time_limit: float) -> Design:
    """Without the chunks that would eat up the time: each takes a thirtieth of it at most."""
    most = time_limit / 30
    chunks: list[int] = []
    seconds = 0.0
    for chunk in sorted(design.chunks):
        if chunks and seconds * chunk / chunks[-1] > most:
            break
        bench.prefill(0, chunk, decode=False)  # warm-up
        seconds = bench.prefill(0, chunk, decode=False).seconds
        chunks.append(chunk)
    return replace(design, chunks=tuple(chunks))


def _groups(design: Design, limits: Limits) -> list[tuple[int, int]]:
    """(decoding requests, context) that fit KV. What a fit cannot do without comes first: every
    number of requests at the extreme contexts."""
    spare = max(design.chunks) + max(design.starts) + 2 * limits.page
    fitting = [
        (count, context)
        for context in design.contexts
        for count in design.decodes
        if count * (context + 64 + limits.page) + spare <= limits.kv_capacity
    ]
    extremes = (design.contexts[0], max((context for _, context in fitting), default=0))
    return sorted(fitting, key=lambda g: (g[1] not in extremes, -g[0]))


def _visit(
    bench: _Bench, design: Design, count: int, context: int, mixed: _Deck, alone: _Deck
) -> Iterator[Sample]:
    """Samples with `count` requests decoding at `context`, and of prefill alone."""
    ids = bench.decoders(count, context, design.repeat + _CHUNKS_PER_VISIT + 1)
    try:
        for _ in range(design.repeat):
            yield bench.decode()
        for _ in range(_CHUNKS_PER_VISIT):
            chunk, start = mixed.deal()
            if chunk + count <= bench.token_budget:
                yield bench.prefill(start, chunk, decode=True)
            chunk, start = alone.deal()
            yield bench.prefill(start, chunk, decode=False)
    finally:
        bench.abort(*ids)


def _enough(samples: list[Sample]) -> bool:
    """Whether these samples can be fitted."""
    alone = any(s.decodes == 0 for s in samples)
    contexts = {s.context_tokens // s.decodes // 32 for s in samples if s.decodes}
    return alone and len(contexts) >= 2 and len(samples) >= 24
