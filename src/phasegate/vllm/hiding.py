"""Hiding running requests from one call of vLLM's `schedule()`.

A hidden request keeps its slot and its KV and gets no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

LEASE = 32
"""Iterations after which a mark ends by itself, whatever happens to us."""


class MarkHiding:
    """From vLLM 0.26: a request sits out while `current_step < next_decode_eligible_step`.

    Hidden requests stay in `running`, visible to preemption, watermark and statistics. Marks of
    the first iteration of a refill end by themselves. If it goes on, they are made to last for
    LEASE iterations, so that each costs O(new) and not O(all), and are ended after it.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._marked: list[Any] = []
        self._until = self._next = 0  # a refill that goes on hides again in step `_next`
        self._async = scheduler.scheduler_config.async_scheduling

    def hide_decodes(self, prefilling: Sequence[Any], started: Sequence[Any]) -> int:
        """Hide all running requests but `prefilling`; `started` decode since the last iteration."""
        step, running = self._scheduler.current_step, self._scheduler.running
        if self._marked and step + 1 < self._until:
            self._marked.extend(started)
        else:
            self._until = step + 2 + (LEASE if step == self._next else 0)
            started = self._marked = (
                [r for r in running if not r.is_prefill_chunk] if prefilling else running.copy()
            )
        until, self._next = self._until, step + 1
        for request in started:
            request.next_decode_eligible_step = until
        return 0

    def hide_once(self, requests: Iterable[Any]) -> int:
        """Hide these for the next iteration only (`schedule()` counts up before it compares)."""
        for request in requests:
            request.next_decode_eligible_step = self._scheduler.current_step + 2
        return 0

    def show(self) -> None:
        """End all marks."""
        if not self._marked:
            return
        marked, self._marked = self._marked, []
        if self._scheduler.current_step + 1 < self._until:
            for request in marked:
                request.next_decode_eligible_step = 0
        if self._async and not getattr(self._scheduler, "use_v2_model_runner", False):
            # The V1 model runner rebuilds the row of a request that comes back from the tokens
            # known by then: none of its output may be in flight.
            last = self._scheduler.prev_step_scheduled_req_ids
            self.hide_once(
                r for r in marked if r.num_output_placeholders and r.request_id not in last
            )


class SwapHiding:
    """Before vLLM 0.26 there is no such mark: `running` is swapped for the part that may run.

    Returns the number of requests that are out of sight, for the caller to lower the cap by.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._all: list[Any] | None = None

    def hide_decodes(self, prefilling: Sequence[Any], started: Sequence[Any]) -> int:
        """Hide all running requests but `prefilling`."""
        return self.hide_once([r for r in self._scheduler.running if not r.is_prefill_chunk])

    def hide_once(self, requests: Iterable[Any]) -> int:
        """Hide these for the next iteration."""
        hidden = {id(r) for r in requests}
        self._all = self._scheduler.running
        self._scheduler.running = [r for r in self._all if id(r) not in hidden]
        return len(hidden)

    def show(self) -> None:
        """Nothing is hidden between two iterations."""

    def merge(self) -> None:
        """Merge, in the old order: who was preempted stays out, who was admitted comes last."""
        before, self._all = self._all, None
        if before is not None:
            known = {id(r) for r in before}
            new = [r for r in self._scheduler.running if id(r) not in known]
            self._scheduler.running = [r for r in before if r.status.name == "RUNNING"] + new
