"""The invariants of DESIGN.md, checked after every step (I1 to I5, I8, I9) and on the record.

`CheckedEngine` is an `Engine` that keeps a second set of books, by brute force: which request
has which tokens, since when, and what it should hold. It looks at every snapshot, plan, batch
and report on their way through, and raises AssertionError where the two disagree.

    engine = CheckedEngine(policy, scheduler, runner, clock, recorder)
    engine.run(source)
    engine.check_drained()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phasegate.cost.model import CostModel
from phasegate.engine.clock import Clock, VirtualClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.loop import Engine
from phasegate.engine.record import ITL_EDGES, Recorder, RunRecord
from phasegate.engine.step import Batch, Runner, StepResult
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request, State
from phasegate.scheduler.scheduler import Scheduler

ENDS = (State.FINISHED, State.ABORTED, State.REJECTED)


@dataclass
class Page:
    """One request in the second set of books."""

    request: Request
    processed: int = 0  # prompt tokens, since the last admission
    tokens: int = 0  # output tokens
    decoding: bool = False
    running: bool = False
    preemptions: int = 0

    @property
    def to_process(self) -> int:
        """Tokens to prefill before it can decode: the prompt and what it generated so far."""
        return self.request.prompt + self.tokens

    @property
    def held(self) -> int:
        """KV tokens: all of the prefill from admission on; the last output token is not in KV."""
        return self.request.prompt + self.tokens - 1 if self.decoding else self.to_process


class CheckedEngine(Engine):
    """An engine whose every step is checked.

    Args:
        exclusive: no iteration may hold prefill and decode (I8).
        max_hold: the head of the queue may be held back so long although it has room (I5).
        whatever_n: the engine's slots count as room, also those beyond the N of the policy.

    Attributes:
        books: the second set of books, by request id.
        token_times: the clock of every output token of every request, by id (virtual time only).
        preemptions: all of them.
    """

    def __init__(
        self,
        policy: Policy,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        recorder: Recorder | None = None,
        on_end: Callable[[Request], None] | None = None,
        *,
        exclusive: bool = False,
        max_hold: float = math.inf,
        whatever_n: bool = False,
    ) -> None:
        super().__init__(
            _PolicyProbe(policy, self), scheduler, _RunnerProbe(runner, self), clock, recorder
        )
        self.on_end = self._note_end
        self._and_then = on_end
        self.exclusive, self.max_hold = exclusive, max_hold
        self.whatever_n = whatever_n
        self.books: dict[int, Page] = {}
        self.token_times: dict[int, list[float]] = {}
        self.preemptions = 0
        self._live: dict[int, Page] = {}  # those that have not ended
        self._ended_ids: set[int] = set()
        self._time = clock.now()
        self._processed = 0  # tokens, prompt and output
        self._last_start = clock.now()
        self._running_as_told = 0  # what a policy can work out from its reports
        self._held: tuple[int, float] | None = None  # head of the queue with room, since when
        self._head_with_room: int | None = None

    # ------------------------------------------------------------------ what comes in
    def submit(self, request: Request) -> bool:
        """Submit, and enter the request into the books."""
        assert request.id not in self.books, f"request id {request.id} is used twice"
        self.books[request.id] = self._live[request.id] = Page(request)
        self.token_times[request.id] = []
        taken = super().submit(request)
        assert taken == (request.state is State.WAITING)
        assert taken or request.reason, "a rejection needs a reason"
        self.check_books()
        return taken

    def abort(self, request_id: int) -> bool:
        """Abort, and strike the request from the books."""
        page = self.books[request_id]
        live = page.request.state not in ENDS
        assert super().abort(request_id) == live
        if live:
            page.running = page.decoding = False
        self.check_books()
        return live

    def _note_end(self, request: Request) -> None:
        assert request.state in ENDS
        assert request.id not in self._ended_ids, "I1: it ended twice"
        self._ended_ids.add(request.id)
        del self._live[request.id]
        if self._and_then is not None:
            self._and_then(request)

    def step(self, until: float = float("inf")) -> bool:
        """One step, checked."""
        had_work = self.scheduler.has_work
        before = self._processed
        worked = super().step(until)
        assert worked == had_work, "I4: a step runs if and only if there is work"
        if worked:
            assert self._processed > before, "I4: every step processes at least one token"
            assert self.clock.now() >= self._time, "I3: time went back"
            self._time = self.clock.now()
        self.check_books()
        return worked

    # ------------------------------------------------------------------ on the way through
    def check_snapshot(self, seen: Snapshot) -> None:
        """The numbers a policy sees are the numbers in the books."""
        limits, pages = self.scheduler.limits, list(self._live.values())
        waiting = sorted(
            (p for p in pages if p.request.state is State.WAITING),
            key=lambda p: (p.request.order, p.request.id),
        )
        running = [p for p in pages if p.running]
        prefilling = [p for p in running if not p.decoding]
        decoding = [p for p in running if p.decoding]
        capacity = limits.kv_capacity // limits.page * limits.page
        assert seen.now == self.clock.now()
        assert (seen.waiting, seen.prefilling, seen.decoding) == (
            len(waiting),
            len(prefilling),
            len(decoding),
        )
        assert seen.pending_tokens == sum(p.to_process - p.processed for p in prefilling)
        assert seen.context_tokens == sum(p.held for p in decoding)
        assert seen.kv_capacity == capacity
        assert seen.kv_free == capacity - limits.page * self._pages(running)
        assert (seen.slots, seen.token_budget) == (limits.running, limits.token_budget)
        assert list(seen.head(3)) == [p.to_process for p in waiting[:3]]
        head = waiting[0].request if waiting else None
        assert seen.oldest_wait == (seen.now - head.arrival if head else 0.0)
        if seen.kv_blocked:
            assert running, "with an empty cache nothing can be blocked by KV"
        displaceable = head is not None and any(
            p.request.priority > head.priority and p.request.order > head.order for p in running
        )
        priorities = limits.order == "priority"
        assert seen.urgent == (priorities and displaceable and not seen.kv_blocked)
        self._head_with_room = None
        if head is not None:
            need = -(-waiting[0].to_process // limits.page)
            if self._pages(running, 1) + need <= self.scheduler.kv.pages:
                self._head_with_room = head.id

    def check_batch(self, batch: Batch, plan: Plan, overridden: bool, n: int) -> None:
        """A batch is not empty, keeps within limits and plan, and continues where prompts are.

        `n` requests were running before it was formed.
        """
        scheduler, limits = self.scheduler, self.scheduler.limits
        for request in scheduler.preempted:
            page = self.books[request.id]
            assert page.running
            page.running = page.decoding = False
            page.processed = 0
            page.preemptions += 1
            self.preemptions += 1
        admitted = [
            p for p in self._live.values() if p.request.state is State.PREFILLING and not p.running
        ]
        for page in admitted:
            page.running = True
            page.processed = 0
        assert len(admitted) == scheduler.admitted
        running = [p for p in self._live.values() if p.running]
        decoding = [p for p in running if p.decoding]

        assert batch.prefill or batch.decodes, "I4: an empty batch although there is work"
        assert batch.decodes in (0, len(decoding))
        if batch.decodes:
            assert {r.id for r in batch.decoding} == {p.request.id for p in decoding}
            assert batch.context_tokens == sum(p.held for p in decoding)
        attention = 0.0
        assert len({s.request.id for s in batch.prefill}) == len(batch.prefill)
        for request, start, length, last in batch.prefill:
            page = self.books[request.id]
            assert page.running
            assert not page.decoding, "I3: prefill of a request that decodes"
            assert start == page.processed, "I3: prefill has to be in one piece"
            assert 1 <= length <= page.to_process - start
            assert last == (start + length == page.to_process)
            attention += length * (start + 0.5 * length)
        assert batch.prefill_tokens == sum(s.length for s in batch.prefill)
        assert math.isclose(batch.prefill_attention, attention)

        assert batch.prefill_tokens + batch.decodes <= limits.token_budget, "I9: token budget"
        assert len(running) <= limits.running, "I9: slots"
        if not overridden:
            assert plan.decode or not batch.decodes
            assert batch.prefill_tokens <= max(0, plan.prefill_tokens)
            assert all(s.length <= max(1, plan.chunk) for s in batch.prefill), "I9: chunk"
            assert len(admitted) <= max(0, plan.admit)
            assert not admitted or len(running) <= max(plan.capacity, n), "I9: N"
            if admitted and len(running) > 1:
                free = scheduler.kv.free_pages * limits.page
                assert free >= plan.kv_reserve, "I9: KV that has to stay free"
        if self.exclusive:
            assert not (batch.prefill and batch.decodes), "I8: a mixed iteration"
        # Pages are taken before the tokens of this iteration are written to them.
        used = self._pages(running, 1 if batch.decodes else 0)
        assert used == scheduler.kv.used_pages <= scheduler.kv.pages, "I2"
        self._check_hold(batch)

    def check_result(self, batch: Batch, result: StepResult) -> None:
        """Write up what the iterations produced."""
        assert 1 <= result.iterations <= max(1, batch.repeat)
        assert result.iterations == 1 or not batch.prefill
        if result.durations:
            assert len(result.durations) == result.iterations
        times = []
        time = batch.now
        for seconds in result.durations:
            assert seconds > 0.0, "I3: an iteration takes time"
            time += seconds
            times.append(time)
        if batch.decodes:
            for request in batch.decoding:
                self.books[request.id].tokens += result.iterations
                self.token_times[request.id] += times
        self._processed += batch.prefill_tokens + batch.decodes * result.iterations
        for request, _, length, last in batch.prefill:
            page = self.books[request.id]
            page.processed += length
            if last:
                page.decoding = True
                page.tokens += 1
                self.token_times[request.id] += times
        produced = {r.id for r in batch.decoding} if batch.decodes else set()
        produced |= {s.request.id for s in batch.prefill if s.last}
        for request in result.finished:
            assert request.id in produced, "I3: it ended without producing a token"
        for page in self._live.values():
            assert page.tokens <= page.request.max_tokens

    def check_report(self, step: StepReport) -> None:
        """A policy learns what happened, and can work out what is running."""
        finished = [f for f in step.finished if f.complete]
        for f in finished:
            page = self.books[f.id]
            page.running = page.decoding = False
        for f in step.finished:
            assert (f.prompt, f.generated) == (self.books[f.id].request.prompt,
                                               self.books[f.id].tokens)  # fmt: skip
        for s in step.started:
            assert s.generated == self.books[s.id].tokens
            assert s.context == s.prompt + s.generated - 1
        assert step.end > step.start
        assert len(step.durations) == step.iterations
        assert math.isclose(sum(step.durations), step.end - step.start)
        self._running_as_told += step.admitted - len(step.preempted) - len(step.finished)
        assert self._running_as_told == sum(p.running for p in self._live.values())

    def _check_hold(self, batch: Batch) -> None:
        """I5. Hold: nothing is prefilled although the head of the queue has a slot and KV."""
        head = self._head_with_room
        scheduler = self.scheduler
        n = scheduler.limits.running if self.whatever_n else scheduler.capacity
        slot = scheduler.running < n
        if head is None or batch.prefill or not slot:
            self._held = None
        elif self._held is None or self._held[0] != head:
            self._held = (head, batch.now)
        else:
            held = batch.now - self._held[1]
            last = batch.now - self._last_start
            assert held <= self.max_hold + last, f"I5: {head} was held for {held} s"
        self._last_start = batch.now

    # ------------------------------------------------------------------ at rest
    def _pages(self, running: list[Page], growth: int = 0) -> int:
        page = self.scheduler.limits.page
        return sum(-(-(p.held + (growth if p.decoding else 0)) // page) for p in running)

    def check_books(self) -> None:
        """I1 and I2: between two steps the scheduler's sums are those of the books."""
        scheduler = self.scheduler
        assert scheduler.requests.keys() == self._live.keys(), "I1: lost"
        for page in self._live.values():
            request = page.request
            where = request.state
            assert where not in ENDS
            assert (where is State.PREFILLING) == (request.id in scheduler.prefilling)
            assert (where is State.DECODING) == (request.id in scheduler.decoding)
            assert page.running == (where in (State.PREFILLING, State.DECODING))
            assert page.decoding == (where is State.DECODING)
            assert scheduler.generated(request) == page.tokens
            assert request.preemptions == page.preemptions
        assert self.submitted == len(self._live) + len(self._ended_ids) == len(self.books)
        assert self.ended == len(self._ended_ids)

        running = [p for p in self._live.values() if p.running]
        waiting = sum(p.request.state is State.WAITING for p in self._live.values())
        assert len(scheduler.queue) == waiting
        assert scheduler.running == len(running) <= scheduler.limits.running
        kv = scheduler.kv
        assert kv.used_pages == self._pages(running) <= kv.pages, "I2: used pages"
        assert kv.used_pages + kv.free_pages == kv.pages
        grows = self._pages(running, 1) - kv.used_pages
        assert kv.growth(scheduler.tick) == grows, "I2: pages of the next tick"
        assert scheduler.context == sum(p.held for p in running if p.decoding)
        assert scheduler.kv_tokens == sum(p.held for p in running)

    def check_drained(self) -> None:
        """Everything has ended, and nothing is held any more."""
        self.check_books()
        scheduler = self.scheduler
        assert not scheduler.has_work
        assert self.ended == self.submitted
        assert scheduler.kv.used_pages == scheduler.context == scheduler.pending == 0
        assert scheduler.queue.peek() is None
        for page in self.books.values():
            request = page.request
            assert request.generated == page.tokens
            if request.state is State.FINISHED and request.output is not None:
                assert page.tokens == request.output, "it generated what it was to generate"


class _PolicyProbe:
    """Stands between engine and policy."""

    def __init__(self, policy: Policy, engine: CheckedEngine) -> None:
        self.policy, self.engine = policy, engine
        self.last = Plan(True, 0, 0, 0)
        self.running = 0

    @property
    def spec(self) -> str:
        return self.policy.spec

    @property
    def decision(self) -> Decision:
        return self.policy.decision

    def plan(self, now: Snapshot) -> Plan:
        self.engine.check_snapshot(now)
        self.last = self.policy.plan(now)
        self.running = now.running
        self.overridden = self.engine.scheduler.overridden
        return self.last

    def observe(self, step: StepReport) -> None:
        self.engine.check_report(step)
        self.policy.observe(step)


class _RunnerProbe:
    """Stands between engine and runner."""

    def __init__(self, runner: Runner, engine: CheckedEngine) -> None:
        self.runner, self.engine = runner, engine

    def run(self, batch: Batch) -> StepResult:
        probe = self.engine.policy
        assert isinstance(probe, _PolicyProbe)
        overridden = self.engine.scheduler.overridden > probe.overridden
        self.engine.check_batch(batch, probe.last, overridden, probe.running)
        result = self.runner.run(batch)
        self.engine.check_result(batch, result)
        return result

    def release(self, request: Request) -> None:
        self.runner.release(request)


def checked_simulation(
    policy: Policy,
    limits: Limits,
    cost: CostModel,
    *,
    exclusive: bool = False,
    max_hold: float = math.inf,
    whatever_n: bool = False,
) -> CheckedEngine:
    """A checked engine in virtual time with a recorder, ready for requests."""
    return CheckedEngine(
        policy,
        Scheduler(limits),
        CostModelRunner(cost),
        VirtualClock(),
        Recorder(),
        exclusive=exclusive,
        max_hold=max_hold,
        whatever_n=whatever_n,
    )


def record_of(engine: Engine) -> RunRecord:
    """The record of an engine that ran in virtual time."""
    assert engine.recorder is not None
    return engine.recorder.record(
        policy=engine.policy.spec,
        profile="",
        workload="",
        kv_capacity=engine.scheduler.kv.capacity,
        slots=engine.scheduler.limits.running,
        submitted=engine.submitted,
        duration=engine.clock.now(),
    )


def check_record(record: RunRecord) -> None:
    """What has to hold for any run in which everything ended: sums, order of times, limits."""
    requests, iterations = record.requests, record.iterations
    ids = requests["id"]
    assert len(ids) == len(set(ids)) == record.submitted == sum(record.counts.values()), "I1"
    status = requests["status"]
    done, rejected = status == 0, status == 2

    # I3: arrival <= admission < first token <= end, as far as it came.
    began = ~np.isnan(requests["first_token"])
    admitted = ~np.isnan(requests["admitted"])
    assert np.all(admitted[began])
    assert np.all(began[done])
    assert not admitted[rejected].any()
    assert np.all(requests["arrival"] <= requests["end"])
    assert np.all(requests["arrival"][admitted] <= requests["admitted"][admitted])
    assert np.all(requests["admitted"][began] < requests["first_token"][began])
    assert np.all(requests["first_token"][done] <= requests["end"][done])
    assert np.all((requests["output"] > 0) == began)
    assert requests["end"].max(initial=0.0) <= record.duration

    # Iterations follow each other without overlap, and hold what the limits allow.
    ends = iterations["start"] + iterations["duration"]
    assert np.all(iterations["duration"] > 0)
    assert np.all(iterations["start"][1:] >= ends[:-1] - 1e-9)
    assert iterations["kv_used"].max(initial=0) <= record.kv_capacity, "I2"
    assert iterations["slots"].max(initial=0) <= record.slots, "I9"
    assert np.all((iterations["kind"] != 1) == (iterations["prefill_tokens"] > 0))
    assert np.all((iterations["kind"] != 0) == (iterations["decodes"] > 0))
    assert np.all(iterations["decodes"] <= iterations["slots"])

    # Every token is made once: in a decode, or at the end of a prefill (one per stay).
    generated = int(requests["output"].sum())
    stays = generated - int(iterations["decodes"].sum())
    assert int(began.sum()) <= stays <= int(began.sum() + requests["preemptions"].sum())
    needed = requests["prompt"][done].sum() + requests["recomputed"][done].sum()
    assert iterations["prefill_tokens"].sum() >= needed

    # There is one gap less than there are tokens.
    values, weights = record.itl()
    assert int(weights.sum()) == generated - int(began.sum())
    assert values.size == 0 or values.min() > 0.0
    per_request = [int(record.itl_histogram(i).sum()) for i in range(len(ids))]
    assert per_request == np.maximum(requests["output"] - 1, 0).tolist()


def check_itl(engine: CheckedEngine, record: RunRecord) -> None:
    """Every inter-token latency in the record is the gap between two tokens, to the last bit."""
    gaps = {i: np.diff(times) for i, times in engine.token_times.items()}
    for row, request in enumerate(record.requests["id"]):
        expected = gaps[int(request)]
        np.testing.assert_array_equal(record.itl_values(row), expected)
        np.testing.assert_array_equal(
            record.itl_histogram(row), np.histogram(expected, ITL_EDGES)[0]
        )
        times = engine.token_times[int(request)]
        if times:
            assert times[0] == record.requests["first_token"][row]
            if record.requests["status"][row] == 0:
                assert times[-1] == record.requests["end"][row]
    values, weights = record.itl()
    together = np.sort(np.concatenate([*gaps.values(), np.empty(0)]))
    np.testing.assert_array_equal(np.sort(np.repeat(values, weights)), together)
