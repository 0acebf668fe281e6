"""Safety net: does the rule really beat mixed batching? Asked of the clock, not of the cost model.

Windows of mixed batching (after some iterations to settle) are put between windows of the rule,
while there is work enough for both (more requests wait than fit, or clients send a new one for
each that ends). All begin and end with full slots. Compared is decode throughput, with the time
for prompts beyond the usual number per decode taken out, so that a window with many long prompts
does not look slow:

    score = D / (T - beta_p*(P - D*mu_L/(mu_O - 1)))      T s, D decodes, P prompt tokens

Checks come after 4,096 iterations, then four times as many (with windows four times as long, for
what shows late only), and when 256 iterations took another time than the cost model says (by
3 %): then it is broken, or the engine has changed. Each such alarm makes the next one wait twice
as long. A check ends as soon as the answer is clear. If mixed batching wins, it stays until the
next check.
"""

from __future__ import annotations

import math

from phasegate.policy.base import StepReport
from phasegate.policy.marginal import MarginalRule

_FIRST, _SPACING, _RARER = 4096, 512, 4
_LONGEST = 1 << 20
_BLOCK = 256  # iterations of which the cost model is checked
_OFF = 0.03
_SHORT, _LONG = 12, 24  # iterations of mixed batching in the first and in later windows ...
_SETTLE = 8  # iterations of mixed batching before each, which do not count
_BALANCED, _TOO_LONG = 0.8, 256  # ... and until it has had its share of prompts, or for so many
_REFILLS, _ITERATIONS = 4, 48  # at least so many in a window of the rule
_NOISE = 0.02  # least scatter of one comparison
_CLEAR, _DISASTER = 0.02, -0.1  # a first window that wins or loses by so much is enough
_TOLERATED, _WORSE = -0.03, -0.01
_MOST = 10  # comparisons


class _Window:
    """What happened in a stretch of time."""

    __slots__ = ("decodes", "iterations", "prompts", "refills", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.decodes = self.prompts = self.iterations = self.refills = 0

    def add(self, step: StepReport) -> None:
        self.seconds += step.end - step.start
        self.iterations += step.iterations
        self.decodes += step.decodes * step.iterations
        self.prompts += step.prefill_tokens

    def score(self, beta: float, prompt: float, decodes: float) -> float:
        """Decodes per second of a usual mix; 0 if that cannot be told."""
        extra = self.prompts - self.decodes * prompt / max(decodes, 1.0)
        seconds = self.seconds - beta * extra
        return self.decodes / seconds if seconds > 0.1 * self.seconds else 0.0


class Guard:
    """Sets `MarginalRule.always_mixed` where the rule loses.

    Attributes:
        tripped: mixed batching won the last check.
        checks, trips: how many there were.
        gains: log ratios (rule over mixed) of the current or last check.
    """

    def __init__(self, rule: MarginalRule) -> None:
        self.tripped = False
        self.checks = self.trips = 0
        self.gains: list[float] = []
        self._rule = rule
        self._iterations = 0
        self._next = _FIRST
        self._gap = _FIRST
        self._checking = False
        self._mine: _Window | None = None  # current window of the rule
        self._mixed: _Window | None = None  # current window of mixed batching
        self._settling = 0  # iterations of mixed batching that do not count yet
        self._score = 0.0  # of the last window of the rule
        self._refills = 0
        self._spacing = self._alarm_after = _SPACING
        self._block = 0
        self._real = self._modelled = 0.0

    @property
    def checking(self) -> bool:
        """A check is going on."""
        return self._checking

    def observe(self, step: StepReport) -> None:
        """Follow a step; called after the rule has."""
        self._iterations += step.iterations
        self._audit(step)
        if not self._checking:
            if self._iterations < self._next:
                return
            self._begin()
        if not self._rule.saturated:
            # Who waits for requests to come cannot compare throughput.
            self._drop()
            return
        self._compare(step)

    def _audit(self, step: StepReport) -> None:
        middle = step.context_tokens + step.decodes * (step.iterations - 1) / 2
        self._modelled += step.iterations * self._rule.cost.seconds(
            step.prefill_tokens, step.prefill_attention, step.decodes, middle
        )
        self._real += step.end - step.start
        self._block += step.iterations
        if self._block >= _BLOCK:
            off = abs(self._real - self._modelled) > _OFF * self._real
            if off and self._iterations >= self._alarm_after and not self._checking:
                self._next = self._iterations
                self._spacing *= 2
                self._alarm_after = self._iterations + self._spacing
            self._block, self._real, self._modelled = 0, 0.0, 0.0

    def _begin(self) -> None:
        self._checking = True
        self.checks += 1
        self.gains = []
        self._drop()

    def _drop(self) -> None:
        self._mine = self._mixed = None
        self._settling = 0
        self._rule.always_mixed = self.tripped and not self._checking

    def _compare(self, step: StepReport) -> None:
        full = step.prefill_tokens > 0 and not self._rule.refilling
        if self._settling > 0:
            self._settling -= step.iterations
            return
        if self._mixed is not None:
            self._mixed.add(step)
            if full and self._is_full(self._mixed):
                self._weigh(self._mixed)
                self._mixed = None
                if self._checking:
                    self._rule.always_mixed = False
                    self._mine = None
            return
        if self._mine is None:
            if full:
                self._mine = _Window()
                self._refills = self._rule.refills
            return
        self._mine.add(step)
        enough = self._mine.iterations >= _ITERATIONS
        if full and enough and self._rule.refills - self._refills >= _REFILLS:
            self._score = self._rated(self._mine)
            self._mine = None
            self._mixed = _Window()
            self._settling = _SETTLE * self._gap // _FIRST
            self._rule.always_mixed = True

    def _is_full(self, window: _Window) -> bool:
        length = (_LONG if self.gains else _SHORT) * self._gap // _FIRST
        if window.iterations < length:
            return False
        monitor = self._rule.monitor
        usual = window.decodes * monitor.mean_prompt / max(monitor.mean_output - 1.0, 1.0)
        return window.prompts >= _BALANCED * usual or window.iterations >= length + _TOO_LONG

    def _rated(self, window: _Window) -> float:
        monitor = self._rule.monitor
        beta = self._rule.cost["beta_p"]
        return window.score(beta, monitor.mean_prompt, monitor.mean_output - 1.0)

    def _weigh(self, window: _Window) -> None:
        score = self._rated(window)
        if score <= 0.0 or self._score <= 0.0:
            self._end(self.tripped)
            return
        gains = self.gains
        gains.append(math.log(self._score / score))
        count = len(gains)
        mean = sum(gains) / count
        scatter = math.sqrt(sum((g - mean) ** 2 for g in gains) / max(count - 1, 1))
        error = 2.0 * max(scatter, _NOISE) / math.sqrt(count)
        if count == 1 and not _DISASTER < mean < _CLEAR:
            self._end(mean < 0.0)
        elif count >= 2 and mean - error > _TOLERATED:
            self._end(False)
        elif count >= 2 and mean + error < _WORSE:
            self._end(True)
        elif count >= _MOST:
            self._end(mean < _WORSE)

    def _end(self, tripped: bool) -> None:
        if tripped:
            self.trips += 1
            # What was learned from the rule's ways is stale: no alarms on that account.
            self._alarm_after = self._iterations + self._gap
        self.tripped = tripped
        self._checking = False
        self._drop()
        self._gap = min(self._gap * _RARER, _LONGEST)
        self._next = self._iterations + self._gap
