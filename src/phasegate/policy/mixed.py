"""Mixed batching: every iteration decodes, and what is left of its budget prefills."""

from __future__ import annotations

from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.capacity import Capacity
from phasegate.policy.options import Options
from phasegate.policy.traffic import TrafficMonitor


def mixed_plan(now: Snapshot, n: int, options: Options, kv_reserve: int = 0) -> Plan:
    """Decode first, then chunked prefill up to the token budget, as vLLM does."""
    budget = options.budget(now)
    n = min(n, now.slots, budget)
    # A more urgent request displaces a running one: it gets its slot and its token of the budget.
    least = 1 if now.urgent else 0
    admit = max(least, n - now.running)
    if now.prefilling or now.urgent or (admit and now.waiting and not now.kv_blocked):
        tokens = max(least, budget - now.decoding)
        return Plan(True, admit, tokens, n, options.chunk, kv_reserve)
    return Plan(True, 0, 0, n, repeat=UNLIMITED)


class Mixed:
    """Mixed batching, the default of every engine."""

    def __init__(
        self, options: Options, capacity: Capacity, monitor: TrafficMonitor | None, spec: str
    ) -> None:
        self._options, self._capacity, self._monitor = options, capacity, monitor
        self.spec = spec

    def plan(self, now: Snapshot) -> Plan:
        """Decode everything, admit and prefill whatever fits."""
        return mixed_plan(now, self._capacity.limit(now), self._options)

    def observe(self, step: StepReport) -> None:
        """Follow the traffic, if the capacity depends on it."""
        if self._monitor is not None:
            self._monitor.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "mixed"."""
        return Decision("mixed", None, self._capacity.n)
