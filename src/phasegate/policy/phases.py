"""Exclusive phases: decode until k of N slots are free, then prefill alone (THEORY section 5)."""

from __future__ import annotations

from phasegate.policy.base import NEVER, UNLIMITED, Plan, Snapshot, StepReport
from phasegate.policy.held import Held
from phasegate.policy.options import Options


class ExclusivePhases:
    """The state machine behind every exclusive policy. No iteration holds prefill and decode (I8).

    A refill starts when
      - nothing decodes, or
      - k requests wait for k free slots, or fewer at light load: min(q, N-n)*(N-k) >= n*k, the
        same share of those in use (q waiting, n running), or
      - a request that had a slot and KV was held back for `max_hold`, or
      - all such requests together were held back for `patience` per running one: they have
        waited longer than a refill of their own would have made the others wait, or
      - a more urgent request waits.
    It admits min(q, N-n) requests and prefills them to their end. If KV stops it short, "k free"
    is measured against the number that did fit, until a refill is not stopped any more. A long
    refill is interrupted by one decode iteration whenever those that decode have waited for
    `max_stall` at the end of a prefill iteration.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._quota = 0  # requests that the current refill may still admit
        self._held = Held()
        self._fit = UNLIMITED  # running requests when KV last stopped a refill
        self._stalled_since = 0.0  # those that decode wait for a token since then ...
        self._stalled = False  # ... because of a prefill iteration

    def plan(
        self, now: Snapshot, k: int, n: int, of: int | None = None, patience: float = NEVER
    ) -> Plan:
        """Decide one iteration.

        Args:
            now: the state.
            k: threshold, freed slots ...
            n: N, slots.
            of: ... of so many (default n; fewer when fewer requests are in the system).
            patience: seconds per running request, see the class.
        """
        options = self._options
        budget = options.budget(now)
        n = min(n, now.slots, budget)
        running = now.running
        room = n - running
        can_admit = now.waiting > 0 and not now.kv_blocked

        if not now.decoding:
            self._stalled_since = now.now
        elif now.prefilling and self._stalled and self._waited(now) >= options.max_stall:
            return Plan(True, 0, 0, n)
        if now.prefilling or (self._quota > 0 and can_admit and room > 0):
            admit = max(min(self._quota, room), 1 if now.urgent else 0)
            return Plan(False, admit, budget, n, options.chunk)

        self._quota = 0
        together = patience * running
        if not can_admit:
            self._held.clear()
        elif now.urgent or self._refill(now, k, n, min(of or n, n), together):
            self._held.clear()
            if now.urgent or self._fits(now):
                self._quota = max(min(now.waiting, room), 1)
                return Plan(False, self._quota, budget, n, options.chunk)
            self._fit = running
        review = self._held.end(options.max_hold, together)
        return Plan(True, 0, 0, n, repeat=UNLIMITED, review_at=review)

    def _refill(self, now: Snapshot, k: int, n: int, of: int, together: float) -> bool:
        """Whether the decode phase ends here."""
        running = now.running
        if not running:
            return True
        if self._fit <= running < n and self._fits(now):
            self._fit = UNLIMITED  # what did not fit was another request
        fit = min(n, self._fit)
        slots = min(of, fit)
        k = max(1, round(k * slots / of)) if slots < of else min(k, of)
        free = min(now.waiting, fit - running)
        if free <= 0:
            self._held.clear()
            return False
        # More may be in the system now than `of`, which is a mean.
        slots = max(slots, running + free)
        if free * (slots - k) >= running * k:
            return True
        self._held.note(now.now, free)
        return now.now >= self._held.end(self._options.max_hold, together)

    def _waited(self, now: Snapshot) -> float:
        """Seconds since those that decode got their last token."""
        return now.now - self._stalled_since

    def _fits(self, now: Snapshot) -> bool:
        """Whether KV has room for the head of the queue (alone it always fits)."""
        return not now.running or now.head(1)[0] <= now.kv_free

    def observe(self, step: StepReport) -> None:
        """Follow what was admitted, where KV stopped it, and when there were tokens."""
        self._stalled = not step.decodes
        if step.decodes:
            self._stalled_since = step.end
        if step.admitted:
            self._quota = max(0, self._quota - step.admitted)
        if step.kv_blocked and self._quota:
            self._fit = max(step.slots_busy, 1)
            self._quota = 0
        elif step.admitted:
            self._fit = UNLIMITED
