"""EB(k*): exclusive batching whose threshold follows the traffic."""

from __future__ import annotations

from phasegate.cost.model import CostModel
from phasegate.policy.base import Decision, Plan, Snapshot, StepReport
from phasegate.policy.capacity import Capacity
from phasegate.policy.options import Options
from phasegate.policy.phases import ExclusivePhases
from phasegate.policy.traffic import TrafficMonitor
from phasegate.theory.threshold import best_k


class ThresholdRule:
    """k* for the number of requests really in the system, from the traffic seen (THEORY 2).

    Attributes:
        k, of: k* of `of` slots.
        patience: seconds that a refill costs each running request beyond the work of its tokens.
    """

    def __init__(self, cost: CostModel, monitor: TrafficMonitor) -> None:
        self._cost, self._monitor = cost, monitor
        self.patience = cost.alpha_prefill
        self._seen: tuple[int, int] = (-1, -1)
        self.k = 1
        self.of = 1

    def update(self, n: int, token_budget: int) -> None:
        """Set `k` and `of`: k* of `of` slots, with at most `n` running."""
        monitor = self._monitor
        seen = (monitor.version, n)
        if seen == self._seen:
            return
        self._seen = seen
        self.of = n
        if monitor.version:
            self.of = min(n, max(1, round(monitor.in_system)))
        traffic = monitor.traffic()
        self.k = best_k(
            self.of,
            traffic.mean_output,
            self._cost.alpha_prefill,
            self._cost.alpha_decode,
            mean_prompt=traffic.mean_prompt,
            prompt_std=traffic.prompt_std,
            token_budget=token_budget,
            law=traffic.law,
        )


class Threshold:
    """Exclusive phases with k* and N, both learned online."""

    def __init__(
        self,
        options: Options,
        cost: CostModel,
        capacity: Capacity,
        monitor: TrafficMonitor,
        spec: str,
    ) -> None:
        self._options, self._capacity, self._monitor = options, capacity, monitor
        self._phases = ExclusivePhases(options)
        self._rule = ThresholdRule(cost, monitor)
        self.spec = spec

    def plan(self, now: Snapshot) -> Plan:
        """Decode or refill, by the phase rule with the current k*."""
        n = self._capacity.limit(now)
        self._rule.update(self._capacity.running, self._options.budget(now))
        rule = self._rule
        return self._phases.plan(now, rule.k, n, rule.of, rule.patience)

    def observe(self, step: StepReport) -> None:
        """Traffic and phases follow what happened."""
        self._monitor.observe(step)
        self._phases.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "exclusive"."""
        return Decision("exclusive", self._rule.k, self._capacity.n)
