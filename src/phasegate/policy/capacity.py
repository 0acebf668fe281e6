"""Capacity: N, the most requests that run at once."""

from __future__ import annotations

from typing import Protocol

from phasegate.cost.model import CostModel
from phasegate.policy.base import Snapshot
from phasegate.policy.traffic import TrafficMonitor
from phasegate.theory.memory import full_cache_gain, full_cache_preemptions, memory_safe_n


class Capacity(Protocol):
    """Says N before each iteration."""

    n: int
    """The last answer."""

    running: int
    """Requests that are expected to run at once when more wait: N, or fewer if KV is full first."""

    def limit(self, now: Snapshot) -> int:
        """N for the next iteration, within the engine's slots."""
        ...


class FixedCapacity:
    """N is given (and never more than the engine has)."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.n = self.running = n

    def limit(self, now: Snapshot) -> int:
        """The given N, or the engine's slots if there are fewer."""
        self.n = self.running = min(self._n, now.slots, now.token_budget)
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
        self.n = self.running = 1

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
            self.running = self.n
        return self.n

    def forgive(self) -> None:
        """What has overflowed so far did so on purpose."""
        self._overflows = self._monitor.overflows


_WORTH, _STAY = 0.05, 0.02
"""Part of a request's decode time that a full cache has to save, to begin with and later on:
preemptions hurt the tail of the latencies."""

_SETTLED = 50
"""Completions that tell the lengths, and how often a full cache preempts."""


class CheaperCapacity:
    """Memory-safe N, or no bound but KV itself where preemptions cost less than empty slots.

    Weighed with every new estimate (`full_cache_gain`); it has to save 5 %. How often a full cache
    preempts is seen as soon as there is one.
    """

    def __init__(self, cost: CostModel, monitor: TrafficMonitor, page: int, eps: float) -> None:
        self._safe = MemorySafeCapacity(monitor, page, eps)
        self._cost, self._monitor, self._page = cost, monitor, page
        self._version = -1
        self._full = False
        self._since = (0, 0)  # completions and overflows when the cache became full
        self._surprise = 1.0  # preemptions seen over those expected
        self.n = self.running = 1

    def limit(self, now: Snapshot) -> int:
        """N by the traffic seen so far, within the engine's slots."""
        monitor = self._monitor
        if monitor.version != self._version or not monitor.version:
            self._version = monitor.version
            self._weigh(now)
        return self.n

    def _weigh(self, now: Snapshot) -> None:
        monitor, safe = self._monitor, self._safe
        prompt, output = monitor.mean_prompt, monitor.mean_output
        expected = full_cache_preemptions(prompt, output)
        if self._full:
            safe.forgive()
            self._compare(expected)
        self.n = self.running = safe.limit(now)
        slots = min(now.slots, now.token_budget)
        wanted = monitor.in_system or float(slots)
        full = min(now.kv_capacity / monitor.slot_load(self._page).mean, slots, wanted)
        was, self._full = self._full, False
        known = monitor.version and monitor.completions >= min(4 * self.n, _SETTLED)
        if known and full > self.n:
            preemptions = expected * self._surprise
            gain = full_cache_gain(self._cost, prompt, output, self.n, full, preemptions)
            decoding = self._cost.seconds(0, 0, self.n, 0) * output / self.n
            self._full = gain > (_STAY if was else _WORTH) * decoding
        if self._full:
            self.n, self.running = slots, int(full)
            if not was:
                self._since = (monitor.completions, monitor.overflows)

    def _compare(self, expected: float) -> None:
        """Learn how often a full cache preempts, from about the last hundred requests."""
        monitor = self._monitor
        completions, overflows = self._since
        completed = monitor.completions - completions
        if completed >= _SETTLED:
            seen = (monitor.overflows - overflows) / completed
            self._surprise = seen / expected
            self._since = (monitor.completions, monitor.overflows)
