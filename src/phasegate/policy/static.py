"""Static batching: n requests are bound together until the last of them has finished."""

from __future__ import annotations

from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.options import Options


class Static:
    """Admit up to n requests when nothing runs, prefill them alone, decode until all are done."""

    def __init__(self, options: Options, spec: str) -> None:
        self._options = options
        self.spec = spec
        self._quota = 0
        self._n = 0

    def plan(self, now: Snapshot) -> Plan:
        """Prefill the batch that is being put together, else decode it to its end."""
        options = self._options
        budget = options.budget(now)
        self._n = n = min(options.n, now.slots, budget)
        if not now.running:
            self._quota = min(n, now.waiting)
        fill = self._quota > 0 and now.waiting > 0 and not now.kv_blocked
        if now.prefilling or fill:
            return Plan(False, self._quota, budget, n, options.chunk)
        self._quota = 0
        return Plan(True, 0, 0, n, repeat=UNLIMITED)

    def observe(self, step: StepReport) -> None:
        """Count down what may still join the batch."""
        self._quota = max(0, self._quota - step.admitted)

    @property
    def decision(self) -> Decision:
        """Mode "static"."""
        return Decision("static", None, self._n)
