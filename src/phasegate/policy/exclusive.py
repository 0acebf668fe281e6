"""Exclusive batching EB(k) with a fixed threshold."""

from __future__ import annotations

from phasegate.policy.base import Decision, Plan, Snapshot, StepReport
from phasegate.policy.capacity import Capacity
from phasegate.policy.options import Options
from phasegate.policy.phases import ExclusivePhases
from phasegate.policy.traffic import TrafficMonitor


class Exclusive:
    """Decode until k of N slots are free, then prefill alone; k fixed, or a share theta of N."""

    def __init__(
        self,
        options: Options,
        capacity: Capacity,
        monitor: TrafficMonitor | None,
        k: int | None,
        theta: float | None,
        spec: str,
    ) -> None:
        self._phases = ExclusivePhases(options)
        self._capacity, self._monitor = capacity, monitor
        self._k, self._theta, self.spec = k, theta, spec

    def _threshold(self, n: int) -> int:
        if self._theta is not None:
            return min(n, max(1, round(self._theta * n)))
        return min(n, self._k or 1)

    def plan(self, now: Snapshot) -> Plan:
        """Decode or refill, by the phase rule."""
        n = self._capacity.limit(now)
        return self._phases.plan(now, self._threshold(n), n)

    def observe(self, step: StepReport) -> None:
        """Follow the phases, and the traffic if the capacity depends on it."""
        self._phases.observe(step)
        if self._monitor is not None:
            self._monitor.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "exclusive"."""
        n = self._capacity.n
        return Decision("exclusive", self._threshold(n), n)
