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


BACK_OFF = 0.02
"""After an overflow N goes to 2 % below what still runs, as a share of the estimate ..."""

RECOVER, RECOVERY = 1.01, 100
"""... and that share grows by 1 % per 100 completions without another overflow."""


class MemorySafeCapacity:
    """The largest N whose KV need stays within capacity with probability 1 - eps (THEORY 3).

    An estimate can be wrong for long: of heavy-tailed lengths, the longest are seen last. An
    overflow is proof of that; N is then the share of the estimate that did fit.
    """

    def __init__(self, monitor: TrafficMonitor, page: int, eps: float) -> None:
        self._monitor, self._page, self._eps = monitor, page, eps
        self._version = -1
        self._safe = 1
        self._share = 1.0
        self._overflows = 0
        self._moved = 0  # completions when the share last moved
        self.n = 1

    def limit(self, now: Snapshot) -> int:
        """N by the traffic seen so far, within the engine's slots."""
        monitor = self._monitor
        if monitor.version != self._version or not monitor.version:
            self._version = monitor.version
            load = monitor.slot_load(self._page)
            self._safe = memory_safe_n(load, now.kv_capacity, self._eps)
        if monitor.overflows != self._overflows:
            self._overflows, self._moved = monitor.overflows, monitor.completions
            self._share = min(1.0, now.running * (1.0 - BACK_OFF) / self._safe)
        elif self._share < 1.0 and monitor.completions >= self._moved + RECOVERY:
            self._moved = monitor.completions
            self._share = min(1.0, self._share * RECOVER)
        self.n = max(1, min(int(self._safe * self._share), now.slots, now.token_budget))
        return self.n
