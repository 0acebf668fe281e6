"""Static batching: n requests are bound together until the last of them has finished."""

from __future__ import annotations

from phasegate.policy.base import NEVER, UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.options import Options


class Static:
    """Admit up to n requests when nothing runs, prefill them alone, decode until all are done.

    With a finite `max_hold` slots that fell free are filled once a request has waited for them
    for so long.
    """

    def __init__(self, options: Options, spec: str) -> None:
        self._options = options
        self.spec = spec
        self._quota = 0
        self._n = 0
        self._held_since = NEVER

    def plan(self, now: Snapshot) -> Plan:
        """Prefill the batch that is being put together, else decode it to its end."""
        options = self._options
        budget = options.budget(now)
        self._n = n = min(options.n, now.slots, budget)
        room = n - now.running
        can_admit = now.waiting > 0 and room > 0 and not now.kv_blocked
        if not now.running or (can_admit and now.now >= self._held_since + options.max_hold):
            self._quota = min(room, now.waiting)
        if now.prefilling or (self._quota > 0 and can_admit):
            self._held_since = NEVER
            return Plan(False, self._quota, budget, n, options.chunk)
        self._quota = 0
        if not can_admit:
            self._held_since = NEVER
        elif self._held_since == NEVER:
            self._held_since = now.now
        review = self._held_since + options.max_hold
        return Plan(True, 0, 0, n, repeat=UNLIMITED, review_at=review)

    def observe(self, step: StepReport) -> None:
        """Count down what may still join the batch."""
        self._quota = max(0, self._quota - step.admitted)

    @property
    def decision(self) -> Decision:
        """Mode "static"."""
        return Decision("static", None, self._n)
