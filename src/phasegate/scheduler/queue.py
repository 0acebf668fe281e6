"""Waiting queues: first come first served, and priority with ageing.

Ageing needs no clock. A request that gains one step of priority every `ageing` seconds stands at
priority - waited/ageing; all of them gain at the same pace, so the order is that of the constant
priority*ageing + arrival.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice
from typing import Protocol

from phasegate.scheduler.request import Request, State

_FEW = 32
"""Dead requests that a queue does not bother to remove."""


class WaitingQueue(Protocol):
    """Requests in the order in which they are to be admitted. An aborted request may stay inside
    for a while; it is neither counted nor returned."""

    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """Put in a new or a preempted request, by its `order`."""
        ...

    def forget(self) -> None:
        """A request inside is not WAITING any more (aborted). Amortised O(1)."""
        ...

    def peek(self) -> Request | None:
        """The head, or None."""
        ...

    def pop(self) -> Request:
        """Remove and return the head."""
        ...

    def prompts(self, limit: int) -> list[int]:
        """`to_prefill` of the first `limit` requests, tokens."""
        ...


class FcfsQueue:
    """First come, first served. A preempted request goes back to the front: whoever is preempted
    is the latest of the running ones, so it is still earlier than everyone who waits."""

    __slots__ = ("_items", "_live")

    def __init__(self) -> None:
        self._items: deque[Request] = deque()
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, request: Request) -> None:
        """Append a new request; a preempted one (earlier than the last) goes to the front."""
        self._live += 1
        items = self._items
        if items and request.order < items[-1].order:
            items.appendleft(request)
        else:
            items.append(request)

    def forget(self) -> None:
        """A request inside was aborted."""
        self._live -= 1
        if len(self._items) > 2 * self._live + _FEW:
            self._items = deque(r for r in self._items if r.state is State.WAITING)

    def peek(self) -> Request | None:
        """The head, or None."""
        items = self._items
        while items:
            if items[0].state is State.WAITING:
                return items[0]
            items.popleft()
        return None

    def pop(self) -> Request:
        """Remove and return the head (call `peek` first)."""
        self._live -= 1
        return self._items.popleft()

    def prompts(self, limit: int) -> list[int]:
        """`to_prefill` of the first `limit` requests, tokens."""
        if len(self._items) == self._live:
            return [r.to_prefill for r in islice(self._items, limit)]
        live = (r.to_prefill for r in self._items if r.state is State.WAITING)
        return list(islice(live, limit))


class PriorityQueue:
    """Smallest `order` first."""

    __slots__ = ("_items", "_live")

    def __init__(self) -> None:
        self._items: list[Request] = []  # descending, so that the head leaves in O(1)
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, request: Request) -> None:
        """Insert by `order`; equal orders keep their sequence."""
        self._live += 1
        insort(self._items, request, key=_descending)

    def forget(self) -> None:
        """A request inside was aborted."""
        self._live -= 1
        if len(self._items) > 2 * self._live + _FEW:
            self._items = [r for r in self._items if r.state is State.WAITING]

    def peek(self) -> Request | None:
        """The head, or None."""
        items = self._items
        while items:
            if items[-1].state is State.WAITING:
                return items[-1]
            items.pop()
        return None

    def pop(self) -> Request:
        """Remove and return the head (call `peek` first)."""
        self._live -= 1
        return self._items.pop()

    def prompts(self, limit: int) -> list[int]:
        """`to_prefill` of the first `limit` requests, tokens."""
        live = (r.to_prefill for r in reversed(self._items) if r.state is State.WAITING)
        return list(islice(live, limit))


def _descending(request: Request) -> tuple[float, int]:
    return (-request.order, -request.id)
