"""`auto`: at every refill whatever costs least, on costs learned while serving.

    Snapshot ─► MarginalRule: how many fit? now or later? exclusive or mixed? ─► Plan
    StepReport ─► OnlineCost, TrafficMonitor, Admission, Guard

It never fails: an internal error, or a number that is not finite, makes it plain mixed batching
from then on. That is logged once and shows in `decision` ("fallback").
"""

from __future__ import annotations

import logging
import math

from phasegate.cost.online import OnlineCost, Prior
from phasegate.policy.base import Decision, Plan, Snapshot, StepReport
from phasegate.policy.explain import explain
from phasegate.policy.guard import Guard
from phasegate.policy.marginal import MarginalRule
from phasegate.policy.mixed import mixed_plan
from phasegate.policy.options import Options
from phasegate.policy.slo import LatencyTargets

logger = logging.getLogger("phasegate")

FALLBACK = "fallback"
"""Mode after an internal error: plain mixed batching."""

_MOVED = 0.1  # relative change of k or N that is worth a note in the records


class Auto:
    """Marginal costs, learned online, with a safety net.

    Attributes:
        rule: what decides; its parts are open to metrics.
        guard: compares it with mixed batching now and then.
        error: why it fell back to mixed batching; "" as long as it did not.
    """

    def __init__(
        self,
        options: Options,
        prior: Prior,
        page: int,
        spec: str,
        *,
        targets: LatencyTargets | None = None,
        max_hold: float | None = None,
    ) -> None:
        """
        Args:
            options: `max_hold` in it is not used, see below.
            prior: what iterations are thought to cost, to begin with.
            page: KV page, tokens.
            spec: spec string.
            targets: latency targets; None: throughput.
            max_hold: longest time a request is held back although it could run, seconds;
                None: 0.1 where requests come by themselves, 2 where clients wait for answers.
        """
        self.spec = spec
        self.rule = MarginalRule(
            options, OnlineCost(prior), page, targets or LatencyTargets(), max_hold
        )
        self.guard = Guard(self.rule)
        self.error = ""
        self._options = options
        self._decision = Decision("auto", None, 0)
        self._refills = 0

    def plan(self, now: Snapshot) -> Plan:
        """Decide the next iteration."""
        if not self.error:
            try:
                plan = self.rule.plan(now)
                if plan.repeat > 1 and (steady := self.guard.steady_for) < plan.repeat:
                    return plan._replace(repeat=steady)
                return plan
            except Exception as error:
                self._fall_back(error)
        return mixed_plan(now, now.slots, self._options)

    def observe(self, step: StepReport) -> None:
        """Learn from a finished step."""
        if self.error:
            return
        try:
            rule = self.rule
            rule.observe(step)
            self.guard.observe(step)
            if rule.refills != self._refills and not self.guard.checking:
                self._refills = rule.refills
                self._note()
        except Exception as error:
            self._fall_back(error)

    def _note(self) -> None:
        """Follow the rule, but not every wiggle of it: records keep each change."""
        rule, last = self.rule, self._decision
        if not math.isfinite(rule.choice.share):
            raise ArithmeticError(f"the refill threshold is {rule.choice.share}")
        mode = "exclusive" if rule.exclusive else "mixed"
        k = last.k or 0
        moved = abs(rule.n - last.n) > _MOVED * last.n + 1 or abs(rule.k - k) > _MOVED * k + 1
        if moved or mode != last.mode:
            self._decision = Decision(mode, rule.k, rule.n)

    def _fall_back(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"
        self._decision = Decision(FALLBACK, None, self._decision.n)
        logger.error("auto: plain mixed batching from now on, because of %s", self.error)

    @property
    def decision(self) -> Decision:
        """How the last refill was done ("exclusive", "mixed", or "fallback" after an error),
        the refill size worth waiting for, and the requests in the system that fit."""
        return self._decision

    def explain(self) -> list[str]:
        """Why it did what it did last, in words and numbers."""
        if self.error:
            return [f"plain mixed batching, because of an internal error: {self.error}"]
        return explain(self.rule, self.guard)
