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


class MemorySafeCapacity:
    """The largest N whose KV need stays within capacity with probability 1 - eps (THEORY 3)."""

    def __init__(self, monitor: TrafficMonitor, page: int, eps: float) -> None:
        self._monitor, self._page, self._eps = monitor, page, eps
        self._version = -1
        self.n = 1

    def limit(self, now: Snapshot) -> int:
        """N by the traffic seen so far, within the engine's slots."""
        monitor = self._monitor
        if monitor.version != self._version or not monitor.version:
            self._version = monitor.version
            load = monitor.slot_load(self._page)
            safe = memory_safe_n(load, now.kv_capacity, self._eps)
            self.n = min(safe, now.slots, now.token_budget)
        return self.n
