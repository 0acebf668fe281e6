"""Capacity: N, the most requests that run at once."""

from __future__ import annotations

from typing import Protocol

from phasegate.policy.base import Snapshot
from phasegate.policy.traffic import TrafficMonitor
from phasegate.theory.memory import memory_safe_n


class Capacity(Protocol):
    """Says N before each iteration."""

    n: int
    """The last answer."""

    def limit(self, now: Snapshot) -> int:
        """N for the next iteration, within the engine's slots."""
        ...


class FixedCapacity:
    """N is given (and never more than the engine has)."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.n = n

    def limit(self, now: Snapshot) -> int:
        """The given N, or the engine's slots if there are fewer."""
        self.n = min(self._n, now.slots, now.token_budget)
        return self.n


BACK_OFF, RECOVER = 0.95, 1.01
"""With every new estimate N shrinks by 5 %, as a share of that estimate, if KV overflowed since
the one before, and recovers by 1 % if not."""


class MemorySafeCapacity:
    """The largest N whose KV need stays within capacity with probability 1 - eps (THEORY 3).

    An estimate can be wrong for long: of heavy-tailed lengths, the longest are seen last. So N
    backs off while KV overflows. It does so slowly: a cold start overflows once, however good the
    estimate.
    """

    def __init__(self, monitor: TrafficMonitor, page: int, eps: float) -> None:
        self._monitor, self._page, self._eps = monitor, page, eps
        self._version = -1
        self._overflows = 0
        self._share = 1.0
        self.n = 1

    def limit(self, now: Snapshot) -> int:
        """N by the traffic seen so far, within the engine's slots."""
        monitor = self._monitor
        if monitor.version != self._version or not monitor.version:
            self._version = monitor.version
            if monitor.version:
                calm = monitor.overflows == self._overflows
                self._share = min(1.0, self._share * (RECOVER if calm else BACK_OFF))
            self._overflows = monitor.overflows
            safe = memory_safe_n(monitor.slot_load(self._page), now.kv_capacity, self._eps)
            self.n = max(1, min(int(safe * self._share), now.slots, now.token_budget))
        return self.n
