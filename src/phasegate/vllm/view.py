"""vLLM's state as a policy sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from time import time
from typing import Any

from phasegate.policy.base import Snapshot

RETRY = 32
"""Iterations after which an admission that KV stopped is tried again, come what may."""
RECOUNT = 64
"""Iterations between two exact counts of the decoding requests' context."""


class View:
    """Reads a scheduler in O(1) per iteration, but for requests that are deferred or in prefill.

    Attributes:
        cap: name of the scheduler's attribute that caps admission.
        page: tokens per KV block, over all groups of layers.
        kv_capacity: tokens that fit into KV.
        prefilling: running requests whose prompt is not completely scheduled yet.
        context: tokens that the decoding requests hold. Counted along, because counting anew is
            O(running), and recounted now and then, because drafts are counted and then rejected.
        step: iterations so far.
        running: the status of a request that runs.
    """

    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.request import RequestStatus

        self._s, self.running = scheduler, RequestStatus.RUNNING
        newer = hasattr(scheduler, "max_num_active_reqs")
        self.cap = "max_num_active_reqs" if newer else "max_num_running_reqs"
        self._pool = scheduler.kv_cache_manager.block_pool
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.page = 1 / (sum(1 / group.kv_cache_spec.block_size for group in groups) or 1)
        self.kv_capacity = int((self._pool.num_gpu_blocks - 1) * self.page)  # one is vLLM's own
        newer = hasattr(scheduler, "deferred_waiting")
        self._queues = ("kv_holding_waiting" if newer else "skipped_waiting", "waiting")
        self._deferred = "deferred_waiting" if newer else "skipped_waiting"
        self._tracks_prefills = hasattr(scheduler, "_inflight_prefills")
        self._by_priority = scheduler.policy.value == "priority"
        self.prefilling: list[Any] = []
        self.context = self.step = self._recount_at = 0
        self._blocked: tuple[int, Any, int] | None = None

    def look(self) -> tuple[int, int]:
        """Start an iteration: (occupied slots, decoding requests)."""
        s = self._s
        if not self._tracks_prefills:
            self.prefilling = [r for r in s.running if r.is_prefill_chunk]
        elif s._inflight_prefills or self.prefilling:
            self.prefilling = [r for r in s._inflight_prefills if r.status is self.running]
        if self.step >= self._recount_at:
            self._recount_at = self.step + RECOUNT
            self.context = sum(r.num_computed_tokens for r in s.running if not r.is_prefill_chunk)
        running = len(s.running)
        return running + s.num_waiting_for_streaming_input, running - len(self.prefilling)

    def snapshot(self, now: float, decoding: int) -> Snapshot:
        """The numbers a policy decides on."""
        s, head, free, blocked = self._s, self._head(), self._free_blocks(), False
        if self._blocked is not None:  # same head, no more room than then, and not long ago
            room, stopped, retry_at = self._blocked
            blocked = head is stopped and free <= room and self.step < retry_at
        slots = getattr(s, self.cap)
        urgent = False
        if self._by_priority and head is not None and len(s.running) < slots:
            urgent = any(r.priority > head.priority for r in s.running)
        prefilling = self.prefilling
        pending = sum(r.num_tokens - r.num_computed_tokens for r in prefilling) if prefilling else 0
        wait = time() - head.arrival_time if head is not None else 0.0
        budget = min(s.max_num_scheduled_tokens, s.scheduler_config.max_num_batched_tokens)
        # fmt: off
        return Snapshot(
            now, self.waiting(), len(prefilling), decoding, pending, self.context,
            self.kv_capacity, int(free * self.page), wait, slots, budget, blocked,
            self.head, urgent,
        )
        # fmt: on

    @property
    def settled(self) -> bool:
        """Whether nobody waits for a grammar or for input, and may be ready at any time."""
        return not getattr(self._s, self._deferred)

    def scheduled(
        self, decodes: int, started: Sequence[Any], preempted: Any, admitted: int, blocked: bool
    ) -> None:
        """Follow an iteration: `blocked` if the head of the queue did not fit into KV."""
        self.context += decodes
        for request in started:
            self.context += request.num_computed_tokens
        if preempted:
            self._recount_at = 0
        if blocked:
            self._blocked = (self._free_blocks(), self._head(), self.step + RETRY)
        elif admitted:
            self._blocked = None

    def _free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    # ------------------------------------------------------------------ what waits
    def waiting(self) -> int:
        """Requests that could be admitted now: not those that wait for a grammar or for input."""
        s = self._s
        n = len(getattr(s, self._queues[0])) + len(s.waiting)
        deferred = getattr(s, self._deferred)
        return n - sum(not _ready(request) for request in deferred) if deferred else n

    def _in_order(self) -> Iterator[Any]:
        requests = chain(*(getattr(self._s, queue) for queue in self._queues))
        return filter(_ready, requests) if getattr(self._s, self._deferred) else requests

    def _head(self) -> Any:
        s = self._s
        if getattr(s, self._deferred) or getattr(s, self._queues[0]):
            return next(self._in_order(), None)
        return s.waiting.peek_request() if s.waiting else None

    def head(self, limit: int) -> Sequence[int]:
        """KV need at admission of up to `limit` waiting requests in queue order, tokens."""
        return [request.num_tokens for request in islice(self._in_order(), limit)]


def _ready(request: Any) -> bool:
    state = request.status.name
    if state == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        return request.structured_output_request.grammar is not None
    if state in ("WAITING_FOR_STREAMING_REQ", "WAITING_FOR_REMOTE_KVS"):
        return False
    stale = getattr(request, "num_stale_output_tokens", 0)
    return not stale or request.drop_stale_output
