"""vLLM's state as a policy sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from time import time
from typing import Any

from phasegate.policy.base import Snapshot
from phasegate.vllm.support import cap_attribute

RETRY = 32
"""Iterations after which an admission that KV stopped is tried again, come what may."""
RECOUNT = 64
"""Iterations between two exact counts of the decoding requests' context."""


class View:
    """Reads a scheduler in O(1) per iteration, but for requests that are deferred or in prefill.

    Attributes:
        page: tokens per KV block, over all groups of layers.
        kv_capacity: tokens that fit into KV.
        prefilling: running requests whose prompt is not completely scheduled yet.
        context: tokens that the decoding requests hold. Counted along, because counting anew is
            O(running), and recounted now and then, because drafts are counted and then rejected.
        step: iterations so far.
    """

    def __init__(self, scheduler: Any) -> None:
        self._s, self._cap = scheduler, cap_attribute(scheduler)
        self._pool = scheduler.kv_cache_manager.block_pool
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.page = 1 / (sum(1 / group.kv_cache_spec.block_size for group in groups) or 1)
        self.kv_capacity = int((self._pool.num_gpu_blocks - 1) * self.page)  # one is vLLM's own
        self._holding = "kv_holding_waiting" if hasattr(scheduler, "deferred_waiting") else ""
        self._by_priority = scheduler.policy.value == "priority"
        self.prefilling: list[Any] = []
        self.context = self.step = self._recount_at = 0
        self._blocked: tuple[int, Any, int] | None = None

    def look(self) -> tuple[int, int]:
        """Start an iteration: (occupied slots, decoding requests)."""
        s = self._s
        self.step += 1
        inflight = getattr(s, "_inflight_prefills", None)
        if inflight is None:
            self.prefilling = [r for r in s.running if r.is_prefill_chunk]
        elif inflight:
            self.prefilling = [r for r in inflight if r.status.name == "RUNNING"]
        elif self.prefilling:
            self.prefilling = []
        if self.step >= self._recount_at:
            self._recount_at = self.step + RECOUNT
            self.context = sum(r.num_computed_tokens for r in s.running if not r.is_prefill_chunk)
        running = len(s.running)
        return running + s.num_waiting_for_streaming_input, running - len(self.prefilling)

    def recount(self) -> None:
        """Count the context anew in the next iteration."""
        self._recount_at = 0

    def snapshot(self, now: float, decoding: int) -> Snapshot:
        """The numbers a policy decides on."""
        s, head = self._s, self._head()
        slots = getattr(s, self._cap)
        room = len(s.running) < slots
        urgent = head is not None and self._by_priority and room and bool(s.running)
        return Snapshot(
            now,
            self.waiting(),
            len(self.prefilling),
            decoding,
            sum(r.num_tokens - r.num_computed_tokens for r in self.prefilling),
            self.context,
            self.kv_capacity,
            int(self.free_blocks * self.page),
            max(time() - head.arrival_time, 0.0) if head is not None else 0.0,
            slots,
            min(s.max_num_scheduled_tokens, s.scheduler_config.max_num_batched_tokens),
            self._kv_blocked(head),
            self.head,
            urgent and any(r.priority > head.priority for r in s.running),
        )

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._pool.get_num_free_blocks()

    # ------------------------------------------------------------------ what waits
    def _queues(self) -> tuple[Any, Any, Any]:
        """Both waiting queues, in order, and the requests in them that may not be ready."""
        s = self._s
        if self._holding:
            return s.kv_holding_waiting, s.waiting, s.deferred_waiting
        return s.skipped_waiting, s.waiting, s.skipped_waiting

    def waiting(self) -> int:
        """Requests that could be admitted now: not those that wait for a grammar or for input."""
        first, second, deferred = self._queues()
        return len(first) + len(second) - sum(not _ready(request) for request in deferred)

    def _in_order(self) -> Iterator[Any]:
        first, second, deferred = self._queues()
        return filter(_ready, chain(first, second)) if deferred else chain(first, second)

    def _head(self) -> Any:
        first, second, deferred = self._queues()
        if deferred:
            return next(self._in_order(), None)
        queue = first or second
        return queue.peek_request() if queue else None

    def head(self, limit: int) -> Sequence[int]:
        """KV need at admission of up to `limit` waiting requests in queue order, tokens."""
        return [request.num_tokens for request in islice(self._in_order(), limit)]

    # ------------------------------------------------------------------ blocked by KV
    def block(self) -> None:
        """The head of the queue did not fit into KV."""
        self._blocked = (self.free_blocks, self._head(), self.step + RETRY)

    def unblock(self) -> None:
        """An admission went through."""
        self._blocked = None

    def _kv_blocked(self, head: Any) -> bool:
        """Whether that is still so: same head, no more room than then, and not long ago."""
        if self._blocked is None:
            return False
        free, blocked, retry_at = self._blocked
        return head is blocked and self.free_blocks <= free and self.step < retry_at


def _ready(request: Any) -> bool:
    state = request.status.name
    if state == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        return request.structured_output_request.grammar is not None
    if state in ("WAITING_FOR_STREAMING_REQ", "WAITING_FOR_REMOTE_KVS"):
        return False
    stale = getattr(request, "num_stale_output_tokens", 0)
    return not stale or request.drop_stale_output
