"""Sources: what the engine loop pulls requests from.

A source is an iterator with a clock. `next_arrival` says when something will come, `take` hands
over what has come, `finished` tells a closed loop that it may send more. Requests are made in
blocks just before they are needed, so a run of a million never holds more than one block that
nobody has asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Protocol

from phasegate.errors import WorkloadError
from phasegate.scheduler.request import Request
from phasegate.workload.table import RequestTable

BLOCK = 1024
"""Requests made in one go."""


class Source(Protocol):
    """Where requests come from. Ids count from 0 in the order of sending.

    Attributes:
        total: number of requests it will send in all, None if that is not known.
        label: a few words for a person.
    """

    @property
    def total(self) -> int | None: ...

    @property
    def label(self) -> str: ...

    def next_arrival(self) -> float:
        """Clock of the next arrival, seconds; math.inf if none is known now (nothing is left,
        or a closed loop waits for requests to end)."""
        ...

    def take(self, now: float) -> list[Request]:
        """All requests not taken yet whose arrival is <= now, in the order of arrival."""
        ...

    def finished(self, count: int, now: float) -> None:
        """`count` requests ended at `now` (finished, rejected or aborted)."""
        ...


class OpenSource:
    """Sends the requests of a table at their arrival times, whatever happens to them."""

    def __init__(self, table: RequestTable) -> None:
        """Raises WorkloadError if the table has no arrival times, or has infinite ones."""
        if table.arrival is None:
            raise WorkloadError(
                f"{table.label}: there are no arrival times; give a rate or a concurrency"
            )
        if not math.isfinite(table.arrival[-1]):
            raise WorkloadError(f"{table.label}: so slow that time overflows; give a higher rate")
        self.table = table
        self.total: int | None = len(table)
        self.label = table.label
        self._blocks = _blocks(table)
        self._block: list[Request] = []
        self._arrivals: list[float] = []
        self._position = 0
        self._next = math.inf
        self._refill()

    def next_arrival(self) -> float:
        """See Source."""
        return self._next

    def take(self, now: float) -> list[Request]:
        """See Source."""
        taken: list[Request] = []
        while self._next <= now and self._block:  # the latter for now = inf
            start = self._position
            stop = self._position = bisect_right(self._arrivals, now, start)
            taken += self._block[start:stop]
            if stop == len(self._arrivals):
                self._refill()
            else:
                self._next = self._arrivals[stop]
        return taken

    def finished(self, count: int, now: float) -> None:
        """See Source. An open loop does not care."""

    def _refill(self) -> None:
        block = next(self._blocks, None)
        if block is None:
            self._block, self._arrivals, self._next = [], [], math.inf
        else:
            self._block = block
            self._arrivals = [request.arrival for request in block]
            self._next = self._arrivals[0]
        self._position = 0


class ClosedSource:
    """Keeps a given number of requests in the system: one that ends makes way for the next.

    The i-th request sent is always row i of the table, whoever ended before it. When a phase
    with more concurrency begins, the difference is sent at once; when one with less begins,
    nothing is sent until enough have ended.
    """

    def __init__(self, table: RequestTable) -> None:
        """Raises WorkloadError if the table has no closed loop."""
        if table.loop is None:
            raise WorkloadError(f"{table.label}: there is no closed loop; give a concurrency")
        self.table = table
        self.total: int | None = len(table)
        self.label = table.label
        self._rows = chain.from_iterable(_blocks(table))
        self._stages = iter(table.loop.stages(len(table)))
        self._until, self._concurrency = next(self._stages)
        self._sent = 0  # requests that were let in, taken or not
        self._in_system = 0
        self._due: deque[tuple[float, int]] = deque()  # (arrival, how many), not taken yet
        self._send(0.0)

    def next_arrival(self) -> float:
        """See Source."""
        return self._due[0][0] if self._due else math.inf

    def take(self, now: float) -> list[Request]:
        """See Source."""
        taken: list[Request] = []
        due = self._due
        while due and due[0][0] <= now:
            arrival, count = due.popleft()
            for request in islice(self._rows, count):
                request.arrival = arrival
                taken.append(request)
        return taken

    def finished(self, count: int, now: float) -> None:
        """See Source. Raises ValueError if more ended than were in the system."""
        if count > self._in_system:
            raise ValueError(f"{count} requests ended, but only {self._in_system} were sent")
        self._in_system -= count
        self._send(now)

    def _send(self, now: float) -> None:
        """Let in as many as the loop allows at `now`."""
        before = self._sent
        while True:
            room = min(self._concurrency - self._in_system, self._until - self._sent)
            if room > 0:
                self._sent += room
                self._in_system += room
            if self._sent < self._until:
                break
            stage = next(self._stages, None)
            if stage is None:
                break
            self._until, self._concurrency = stage
        if self._sent > before:
            self._due.append((now, self._sent - before))


def source_of(table: RequestTable) -> OpenSource | ClosedSource:
    """The source that sends a table: closed if it has a loop, else open.

    Raises WorkloadError if it has neither arrival times nor a loop.
    """
    return OpenSource(table) if table.loop is None else ClosedSource(table)


def _blocks(table: RequestTable) -> Iterator[list[Request]]:
    for start in range(0, len(table), BLOCK):
        rows = slice(start, start + BLOCK)
        prompts = table.prompt[rows].tolist()
        n = len(prompts)
        arrivals = [0.0] * n if table.arrival is None else table.arrival[rows].tolist()
        yield list(
            map(
                Request,
                range(start, start + n),
                prompts,
                table.max_tokens[rows].tolist(),
                arrivals,
                table.priority[rows].tolist(),
                table.output[rows].tolist(),
            )
        )
