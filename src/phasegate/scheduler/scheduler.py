"""The mechanism: who waits, who runs, who holds which KV, and what the next batch is.

It obeys a `Plan` within its `Limits`. All decoding requests advance together, so what a request
has generated and holds follows from a batch clock (`tick`): an iteration costs
O(admitted + finished), not O(running).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from phasegate.engine.step import Batch, Slice
from phasegate.policy.base import UNLIMITED, Plan, Snapshot
from phasegate.scheduler.kv import KVCache
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.queue import FcfsQueue, PriorityQueue, WaitingQueue
from phasegate.scheduler.request import Request, State

_DECODE = Plan(decode=True, admit=0, prefill_tokens=0, capacity=UNLIMITED)
_PREFILL = Plan(decode=False, admit=UNLIMITED, prefill_tokens=UNLIMITED, capacity=UNLIMITED)

_by_order = attrgetter("order")


class Scheduler:
    """Queue, slots, KV and batch formation.

    Attributes:
        tick: decode iterations so far (the batch clock).
        context: sum of the KV tokens of the decoding requests.
        pending: prompt tokens of admitted requests that are not processed yet.
        prefilling, decoding: running requests by id, in order of admission / of first token.
        capacity: N of the last plan.
        kv_blocked: the head of the queue did not fit into KV and nothing has left it since.
        preempted: requests that the last `form` preempted.
        admitted: how many requests the last `form` admitted.
        overridden: batches for which the policy planned nothing although something could run.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KVCache(limits.kv_capacity, limits.page)
        self.queue: WaitingQueue = FcfsQueue() if limits.order == "fcfs" else PriorityQueue()
        self.requests: dict[int, Request] = {}
        self.prefilling: dict[int, Request] = {}
        self.decoding: dict[int, Request] = {}
        self.tick = 0
        self.context = 0
        self.pending = 0
        self._prefill_held = 0  # KV tokens of the prefilling requests, taken at admission
        self.capacity = limits.running
        self.kv_blocked = False
        self.preempted: list[Request] = []
        self.admitted = 0
        self.overridden = 0
        self._submitted = 0
        self._priorities = limits.order == "priority"
        self._classes: Counter[int] = Counter()  # running, by priority (order "priority" only)

    # ---------------------------------------------------------------- requests come and go
    def submit(self, request: Request, now: float) -> bool:
        """Take a new request into the queue.

        Returns False if it is rejected (state REJECTED, `reason` says why): a request that can
        never fit into KV, or a full queue.
        """
        request.to_prefill = request.prompt
        self._submitted += 1
        request.order = (
            request.priority * self.limits.ageing + request.arrival
            if self._priorities
            else float(self._submitted)
        )
        # The last output token is never written to KV: nothing is computed from it.
        need = request.prompt + request.max_tokens - 1
        limit = self.limits.queue_limit
        if self.kv.pages_for(need) > self.kv.pages:
            request.reason = (
                f"prompt {request.prompt} + max_tokens {request.max_tokens} needs {need} "
                f"KV tokens, the cache holds {self.kv.capacity}; shorten the prompt or lower "
                "max_tokens"
            )
        elif request.prompt < 1 or request.max_tokens < 1:
            request.reason = (
                f"prompt {request.prompt} and max_tokens {request.max_tokens} must be at least 1"
            )
        elif limit is not None and len(self.queue) >= limit + self._free_slots():
            request.reason = f"{limit} requests are waiting already (queue_limit); retry later"
        else:
            request.state = State.WAITING
            self.requests[request.id] = request
            self.queue.add(request)
            if self._priorities and self.queue.peek() is request:
                self.kv_blocked = False  # that was about another head
            return True
        request.state = State.REJECTED
        request.finished_at = now
        return False

    def _free_slots(self) -> int:
        """Slots for requests that are in the queue only because no iteration has begun since."""
        return 0 if self.kv_blocked else max(0, self.capacity - self.running)

    def abort(self, request_id: int, now: float) -> Request | None:
        """Drop a request in whatever state it is; returns it, or None if it has ended already."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        waiting = request.state is State.WAITING
        if not waiting:
            self._vacate(request)
        self._end(request, State.ABORTED, now)
        if waiting:
            self.queue.forget()
            self.kv_blocked = False  # the blocked head may be the one that left
        return request

    def finish(self, request: Request, now: float) -> None:
        """A running request produced its last token."""
        self._vacate(request)
        self._end(request, State.FINISHED, now)

    def _end(self, request: Request, state: State, now: float) -> None:
        request.state = state
        request.finished_at = now
        del self.requests[request.id]

    def _vacate(self, request: Request) -> None:
        """Take a running request out of the batch and free its KV."""
        if self._priorities:
            self._classes[request.priority] -= 1
        if request.state is State.DECODING:
            del self.decoding[request.id]
            held = self._held(request)
            request.generated += self.tick - request.joined
            self.context -= held
            self.kv.leave(held, self.tick)
            self.kv.drop(held)
        else:
            del self.prefilling[request.id]
            self.pending -= request.to_prefill - request.prefilled
            self._prefill_held -= request.to_prefill
            self.kv.drop(request.to_prefill)
        self.kv_blocked = False

    def _held(self, request: Request) -> int:
        """KV tokens that a running request holds."""
        if request.state is State.DECODING:
            return request.to_prefill + self.tick - request.joined
        return request.to_prefill

    def generated(self, request: Request) -> int:
        """Output tokens of `request` so far."""
        if request.state is State.DECODING:
            return request.generated + self.tick - request.joined
        return request.generated

    # ---------------------------------------------------------------- what a policy sees
    @property
    def running(self) -> int:
        """Occupied slots."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.requests)

    @property
    def kv_tokens(self) -> int:
        """KV tokens that running requests hold (without the unused rest of their last pages)."""
        return self.context + self._prefill_held

    def snapshot(self, now: float) -> Snapshot:
        """The numbers a policy decides on."""
        head = self.queue.peek()
        kv = self.kv
        return Snapshot(
            now,
            len(self.queue),
            len(self.prefilling),
            len(self.decoding),
            self.pending,
            self.context,
            kv.pages * kv.page,
            (kv.pages - kv.used_pages) * kv.page,
            now - head.arrival if head is not None else 0.0,
            self.limits.running,
            self.limits.token_budget,
            self.kv_blocked,
            self.queue.prompts,
            self._urgent(head) if self._priorities else False,
            self._classes,
            head.priority if head is not None else 0,
        )

    def _urgent(self, head: Request | None) -> bool:
        """Whether the head of the queue may push a running request out of its slot."""
        if head is None or self.kv_blocked:
            return False
        return next(self._below(head), None) is not None

    def _below(self, head: Request) -> Iterator[Request]:
        """The running requests that `head` may displace. They are of a lower class *and* behind
        `head` in the aged order, so that an old low-priority request is left alone."""
        if any(self._classes[c] for c in self._classes if c > head.priority):
            for request in chain(self.prefilling.values(), self.decoding.values()):
                if request.priority > head.priority and request.order > head.order:
                    yield request

    # ---------------------------------------------------------------- batches
    def form(self, plan: Plan, now: float) -> Batch:
        """Form the next batch, within plan and limits. While there is work it is never empty:
        if nothing that could run may run, the plan is overridden (invariant I4)."""
        self.preempted = []
        self.admitted = 0
        batch = self._form(plan, now)
        if not batch.decodes and not batch.prefill and self.requests:
            self.overridden += 1
            while not batch.decodes and not batch.prefill:
                batch = self._form(_DECODE if self.decoding else _PREFILL, now)
        return batch

    def _form(self, plan: Plan, now: float) -> Batch:
        """Decodes, then started prompts, then new ones; decodes get the KV they grow by first."""
        kv = self.kv
        self.capacity = min(plan.capacity, self.limits.running)
        decodes = 0
        if plan.decode and self.decoding:
            while kv.growth(self.tick) > kv.free_pages:
                # The latest (of the lowest priority) goes, and is recomputed later.
                self._preempt(self._last_running())
            decodes = len(self.decoding)

        slices: list[Slice] = []
        tokens = 0
        attention = 0.0
        budget = min(plan.prefill_tokens, self.limits.token_budget - decodes)
        if budget > 0:
            chunk = max(plan.chunk, 1)
            if plan.admit > 0 and not self.preempted:
                self._admit_waiting(plan, budget, chunk, now)
                if decodes:  # a more urgent request may have displaced some
                    decodes = len(self.decoding)
            for request in self.prefilling.values():
                start = request.prefilled
                left = request.to_prefill - start
                length = min(chunk, budget - tokens, left)
                attention += length * (start + 0.5 * length)
                tokens += length
                slices.append(Slice(request, start, length, length == left))
                if tokens >= budget:
                    break
        repeat = 1
        if decodes:
            if plan.repeat > 1 and not slices and not self.preempted:
                repeat = max(1, min(plan.repeat, kv.ticks_that_fit(decodes)))
            kv.grow(self.tick)
        return Batch(
            slices,
            self.decoding.values(),
            decodes,
            tokens,
            attention,
            self.context if decodes else 0,
            repeat,
            plan.review_at,
            now,
        )

    def _admit_waiting(self, plan: Plan, budget: int, chunk: int, now: float) -> None:
        """Admit from the head of the queue what the batch has prefill tokens for."""
        reserve = self.kv.pages_for(max(plan.kv_reserve, 0))
        if plan.decode:
            reserve += self.kv.growth(self.tick)
        admit = plan.admit
        tokens = self._started_tokens(budget, chunk)
        while admit > 0 and tokens < budget:
            head = self.queue.peek()
            if head is None or not self._make_room(head, reserve):
                break
            self._admit(head, now)
            admit -= 1
            tokens += min(chunk, head.to_prefill - head.prefilled)

    def _started_tokens(self, budget: int, chunk: int) -> int:
        """Prefill tokens of this batch that belong to requests admitted before."""
        if chunk >= self.pending:
            return self.pending
        tokens = 0
        for request in self.prefilling.values():
            if tokens >= budget:
                break
            tokens += min(chunk, request.to_prefill - request.prefilled)
        return tokens

    def _make_room(self, head: Request, reserve: int) -> bool:
        """Whether `head` can be admitted now and leave `reserve` pages free. A more urgent head
        displaces running requests, unless even that would not make it fit."""
        kv = self.kv
        running = self.running
        # Alone in the cache a request always fits, whatever a policy wants to keep free.
        missing = kv.pages_for(head.to_prefill) + reserve - kv.free_pages if running else 0
        if missing <= 0 and running < self.capacity:
            return True
        victims = []
        for victim in sorted(self._below(head), key=_by_order, reverse=True):
            victims.append(victim)
            running -= 1
            missing = missing - kv.pages_for(self._held(victim)) if running else 0
            if missing <= 0:
                break
        if missing > 0:
            self.kv_blocked = True
            return False
        for victim in victims:
            self._preempt(victim)
        return bool(victims)

    def _admit(self, request: Request, now: float) -> None:
        self.queue.pop()
        if self._priorities:
            self._classes[request.priority] += 1
        self.kv.take(request.to_prefill)
        self.pending += request.to_prefill - request.prefilled
        self._prefill_held += request.to_prefill
        self.prefilling[request.id] = request
        self.admitted += 1
        request.state = State.PREFILLING
        if request.admitted_at < 0.0:
            request.admitted_at = now

    def _last_running(self) -> Request:
        """The running request that comes last in the order of the queue."""
        return max(chain(self.prefilling.values(), self.decoding.values()), key=_by_order)

    def _preempt(self, request: Request) -> None:
        """Back to the queue; prompt and generated tokens are recomputed at the next admission."""
        lost = self._held(request) if request.state is State.DECODING else request.prefilled
        self._vacate(request)
        request.recomputed += lost
        request.preemptions += 1
        request.prefilled = 0
        request.to_prefill = request.prompt + request.generated
        request.state = State.WAITING
        self.preempted.append(request)
        self.queue.add(request)

    def commit(self, batch: Batch, iterations: int) -> Sequence[Request]:
        """Book a batch that has run; returns the requests that ended their prefill in it.

        `iterations` is how many decode iterations were run (1 unless the batch allowed more).
        """
        decodes = batch.decodes
        if decodes:
            if iterations > 1:
                self.kv.grow(self.tick + 1, iterations - 1)
            self.tick += iterations
            self.context += decodes * iterations
        if not batch.prefill:
            return ()
        started = []
        self.pending -= batch.prefill_tokens
        tick = self.tick
        for request, _, length, last in batch.prefill:
            request.prefilled += length
            if last:
                del self.prefilling[request.id]
                self.decoding[request.id] = request
                request.state = State.DECODING
                request.joined = tick
                request.generated += 1
                self.context += request.to_prefill
                self._prefill_held -= request.to_prefill
                self.kv.join(request.to_prefill, tick)
                started.append(request)
        return started
