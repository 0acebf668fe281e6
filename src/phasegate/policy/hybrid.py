"""EB+: mixed or exclusive batching, whichever is faster for the traffic seen."""

from __future__ import annotations

from phasegate.cost.model import CostModel
from phasegate.policy.base import Decision, Plan, Snapshot, StepReport
from phasegate.policy.capacity import Capacity
from phasegate.policy.mixed import mixed_plan
from phasegate.policy.options import Options
from phasegate.policy.phases import ExclusivePhases
from phasegate.policy.switch import ModeSwitch
from phasegate.policy.threshold import ThresholdRule
from phasegate.policy.traffic import TrafficMonitor
from phasegate.theory.crossover import exclusive_rate, mixed_rate


class Hybrid:
    """Online crossover of X_MB and X_EB (THEORY 4) with hysteresis, evaluated every 100
    completions on current estimates; the same N in both modes."""

    def __init__(
        self,
        options: Options,
        cost: CostModel,
        capacity: Capacity,
        monitor: TrafficMonitor,
        spec: str,
    ) -> None:
        self._options, self._cost = options, cost
        self._capacity, self._monitor = capacity, monitor
        self._phases = ExclusivePhases(options)
        self._rule = ThresholdRule(cost, monitor)
        self._switch = ModeSwitch()
        self._version = 0
        self._guessed = False
        self.spec = spec

    def plan(self, now: Snapshot) -> Plan:
        """Plan in the current mode, after weighing the two if the estimates are new."""
        n = self._capacity.limit(now)
        budget = self._options.budget(now)
        self._rule.update(self._capacity.running, budget)
        monitor = self._monitor
        if monitor.version != self._version:
            self._version = monitor.version
            gain = self._gain(self._rule.of, self._rule.k, budget)
            self._switch.weigh(gain, monitor.completions)
        elif not self._guessed and monitor.in_system > 0.0:
            self._guessed = True
            most = self._capacity.running
            of = min(most, max(1, round(monitor.in_system)))
            self._switch.guess(self._gain(of, max(1, self._rule.k * of // most), budget))
        if self._switch.exclusive:
            rule = self._rule
            return self._phases.plan(now, rule.k, n, rule.of, rule.patience)
        return mixed_plan(now, n, self._options)

    def _gain(self, of: int, k: int, budget: int) -> float:
        """Relative throughput gain of EB(k) over mixed batching with `of` requests in the
        system, by the cost model."""
        traffic = self._monitor.traffic()
        exclusive = exclusive_rate(self._cost, of, k, traffic, budget)
        mixed = mixed_rate(self._cost, of, traffic, budget)
        return exclusive / mixed - 1.0

    def observe(self, step: StepReport) -> None:
        """Traffic and phases follow what happened."""
        self._monitor.observe(step)
        self._phases.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "mixed" or "exclusive"."""
        if self._switch.exclusive:
            return Decision("exclusive", self._rule.k, self._capacity.n)
        return Decision("mixed", None, self._capacity.n)
