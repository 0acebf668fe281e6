"""The mechanism: who waits, who runs, who holds which KV, and what the next batch is.

It obeys a `Plan` within its `Limits`. All decoding requests advance together, so what a request
has generated and holds follows from a batch clock (`tick`): an iteration costs
O(admitted + finished), not O(running).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phasegate.engine.step import Batch, Slice
from phasegate.policy.base import Plan, Snapshot
from phasegate.scheduler.kv import KVCache
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.queue import FcfsQueue, PriorityQueue, WaitingQueue
from phasegate.scheduler.request import Request, State


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
        self._submitted = 0
        self._priorities = limits.order == "priority"
        self._classes: Counter[int] = (
            Counter()
        )  # running requests by priority, if that is the order

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
                f"prompt {request.prompt} + max_tokens {request.max_tokens} needs {need} KV "
                f"tokens, the cache holds {self.kv.capacity}; shorten the prompt or lower max_tokens"
            )
        elif request.prompt < 1 or request.max_tokens < 1:
            request.reason = (
                f"prompt {request.prompt} and max_tokens {request.max_tokens} must be at least 1"
            )
        elif limit is not None and len(self.queue) >= limit:
            request.reason = f"{limit} requests are waiting already (queue_limit); retry later"
        else:
            request.state = State.WAITING
            self.requests[request.id] = request
            self.queue.add(request)
            return True
        request.state = State.REJECTED
        request.finished_at = now
        return False

    def abort(self, request_id: int, now: float) -> Request | None:
        """Drop a request in whatever state it is; returns it, or None if it has ended already."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request.state is State.WAITING:
            self.queue.forget()
            self.kv_blocked = False  # the blocked head may be the one that left
        else:
            self._vacate(request)
        self._end(request, State.ABORTED, now)
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
            held = request.to_prefill + self.tick - request.joined
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
        )

    def _urgent(self, head: Request | None) -> bool:
        """Whether the head of the queue may push a running request out of its slot."""
        return head is not None and self._displaceable(head) is not None

    def _displaceable(self, head: Request) -> Request | None:
        """The running request that `head` may displace. It must be of a lower class *and* behind
        `head` in the aged order, so that an old low-priority request is left alone."""
        if not any(self._classes[c] for c in self._classes if c > head.priority):
            return None
        victim: Request | None = None
        for group in (self.prefilling, self.decoding):
            for request in group.values():
                if (
                    request.priority > head.priority
                    and request.order > head.order
                    and (victim is None or request.order > victim.order)
                ):
                    victim = request
        return victim

    # ---------------------------------------------------------------- batches
    def form(self, plan: Plan, now: float) -> Batch:
        """Form the next batch: decodes, then started prompts, then new ones.

        Growth of what decodes comes first; if KV has no room for it, the latest (lowest priority)
        running requests are preempted and recomputed later.
        """
        self.preempted = []
        self.admitted = 0
        limits = self.limits
        self.capacity = capacity = min(plan.capacity, limits.running)
        decodes = 0
        repeat = 1
        if plan.decode and self.decoding:
            kv = self.kv
            while kv.growth(self.tick) > kv.free_pages:
                self._preempt(self._last_running())
            decodes = len(self.decoding)

        slices: list[Slice] = []
        tokens = 0
        attention = 0.0
        budget = min(plan.prefill_tokens, limits.token_budget - decodes)
        if budget > 0:
            chunk = plan.chunk
            for request in self.prefilling.values():
                if tokens >= budget:
                    break
                length = min(chunk, budget - tokens, request.to_prefill - request.prefilled)
                attention += length * (request.prefilled + 0.5 * length)
                tokens += length
                slices.append(_slice(request, length))
            if plan.admit > 0 and not self.preempted:
                admit = plan.admit
                reserve = self.kv.pages_for(plan.kv_reserve)
                if decodes:
                    reserve += self.kv.growth(self.tick)
                while admit > 0 and tokens < budget:
                    head = self.queue.peek()
                    if head is None or not self._make_room(head, capacity, reserve):
                        break
                    self._admit(head, now)
                    admit -= 1
                    length = min(chunk, budget - tokens, head.to_prefill)
                    attention += 0.5 * length * length
                    tokens += length
                    slices.append(_slice(head, length))
        if decodes:
            # A more urgent head may have displaced decoding requests in _make_room.
            decodes = len(self.decoding)
        if decodes:
            if not slices and plan.repeat > 1:
                repeat = max(1, min(plan.repeat, self.kv.ticks_that_fit(decodes)))
            self.kv.grow(self.tick)
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

    def _make_room(self, head: Request, capacity: int, reserve: int) -> bool:
        """Whether `head` can be admitted now; a more urgent head displaces a running request."""
        while True:
            need = self.kv.pages_for(head.to_prefill)
            # Alone in the cache a request always fits, whatever a policy wants to keep free.
            fits = need + reserve <= self.kv.free_pages or not self.kv.used_pages
            if fits and self.running < capacity:
                return True
            victim = self._displaceable(head) if self._priorities else None
            if victim is None:
                if not fits:
                    self.kv_blocked = True
                return False
            self._preempt(victim)

    def _admit(self, request: Request, now: float) -> None:
        self.queue.pop()
        if self._priorities:
            self._classes[request.priority] += 1
        self.kv.take(request.to_prefill)
        self.pending += request.to_prefill
        self._prefill_held += request.to_prefill
        self.prefilling[request.id] = request
        self.admitted += 1
        request.state = State.PREFILLING
        if request.admitted_at < 0.0:
            request.admitted_at = now

    def _last_running(self) -> Request | None:
        """The running request that comes last in the order of the queue."""
        last: Request | None = None
        for group in (self.prefilling, self.decoding):
            for request in group.values():
                if last is None or request.order > last.order:
                    last = request
        return last

    def _preempt(self, request: Request | None) -> None:
        """Back to the queue; prompt and generated tokens are recomputed at the next admission."""
        if request is None:
            raise RuntimeError("KV cache overcommitted: nobody to preempt")
        lost = request.prefilled
        if request.state is State.DECODING:
            lost = request.to_prefill + self.tick - request.joined
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


def _slice(request: Request, length: int) -> Slice:
    start = request.prefilled
    return Slice(request, start, length, start + length == request.to_prefill)
