"""Safety net: does the rule really beat mixed batching? Asked of the clock.

Windows of mixed batching (after some iterations to settle) are put between windows of the rule,
while there is work enough for both: more requests wait than fit, or clients send a new one for
each that ends. What happens in a window differs from one to the next (long prompts, old
requests), so the time it takes is set against what the cost model, held fixed during a check,
expects for the same iterations:

    gain = promised - ( ln(real/expected of the rule) - ln(real/expected of mixed batching) )

`promised` is what the rule saves by that model. If the model is right in both windows, or wrong
by the same factor, the promise is kept; if the rule has costs that no iteration shows by itself,
or mixed batching is faster than single looks at it suggest, the gain is negative.

Checks come after 4,096 iterations, then four times as many (with windows four times as long, for
what shows late only), and when 256 iterations took another time than the cost model says (by
3 %): then it is broken, or the engine has changed. Each such alarm makes the next one wait twice
as long. A check ends as soon as the answer is clear. If mixed batching wins, it stays until the
next check.
"""

from __future__ import annotations

import copy
import math

from phasegate.cost.online import OnlineCost
from phasegate.policy.base import StepReport
from phasegate.policy.marginal import MarginalRule

_FIRST, _SPACING, _RARER, _LONGEST = 4096, 512, 4, 1 << 20  # iterations between checks
_BLOCK = 256  # iterations of which the cost model is checked
_OFF = 0.03
_RULE, _MIXED, _SETTLE = 48, 12, 8  # iterations in a window; those before it do not count
_REFILLS = 4  # prefill iterations at least in any window, ...
_TOO_LONG = 512  # ... unless it gets so much longer
_NOISE = 0.01  # least scatter of one comparison
_CLEAR, _DISASTER = 0.02, -0.1  # a first comparison that wins or loses by so much is enough
_TOLERATED, _WORSE = -0.03, -0.01
_MOST = 10  # comparisons


class _Window:
    """A stretch of time: real and expected seconds."""

    __slots__ = ("expected", "iterations", "prefills", "real")

    def __init__(self) -> None:
        self.real = self.expected = 0.0
        self.iterations = self.prefills = 0

    def add(self, step: StepReport, expected: float) -> None:
        self.real += step.end - step.start
        self.expected += expected
        self.iterations += step.iterations
        self.prefills += step.prefill_tokens > 0

    def full(self, iterations: int) -> bool:
        if self.iterations < iterations:
            return False
        return self.prefills >= _REFILLS or self.iterations >= iterations + _TOO_LONG

    @property
    def surprise(self) -> float:
        """ln(real / expected)."""
        return math.log(self.real / self.expected)


class Guard:
    """Sets `MarginalRule.always_mixed` where the rule loses.

    Attributes:
        tripped: mixed batching won the last check.
        checking: a check is going on.
        checks, trips: how many there were, and how many the rule lost.
        gains: of the rule over mixed batching, relative, in the current or last check.
    """

    def __init__(self, rule: MarginalRule) -> None:
        self.tripped = self.checking = False
        self.checks = self.trips = 0
        self.gains: list[float] = []
        self._rule = rule
        self._cost: OnlineCost = rule.cost  # during a check: a copy that does not learn
        self._promised = 0.0
        self._iterations = 0
        self._next = self._gap = _FIRST
        self._after_prefill = False
        self._window: _Window | None = None
        self._mixed = False  # the window is of mixed batching
        self._settling = 0
        self._surprise = 0.0  # of the last window of the rule
        self._block = _Window()
        self._spacing = self._alarm_after = _SPACING

    def observe(self, step: StepReport) -> None:
        """Follow a step; called after the rule has."""
        self._iterations += step.iterations
        expected = self._expected(step)
        if not self.checking:
            self._audit(step, expected)
            if self._iterations < self._next:
                return
            self._begin()
        if not self._rule.saturated:
            # Who waits for requests to come cannot compare throughput.
            self._back_to_rule()
        elif self._settling > 0:
            self._settling -= step.iterations
        elif self._window is None:
            self._window = _Window()
        else:
            self._window.add(step, expected)
            self._turn(self._window)

    def _expected(self, step: StepReport) -> float:
        cost = self._cost
        middle = step.context_tokens + step.decodes * (step.iterations - 1) / 2
        seconds = step.iterations * cost.seconds(
            step.prefill_tokens, step.prefill_attention, step.decodes, middle
        )
        if self._after_prefill and not step.prefill_tokens:
            seconds += cost["flip"]
        self._after_prefill = step.prefill_tokens > 0 and step.decodes == 0
        return seconds

    def _audit(self, step: StepReport, expected: float) -> None:
        """An alarm brings the next check forward."""
        block = self._block
        block.add(step, expected)
        if block.iterations < _BLOCK:
            return
        off = abs(block.real - block.expected) > _OFF * block.real
        if off and self._iterations >= self._alarm_after:
            self._next = self._iterations
            self._spacing *= 2
            self._alarm_after = self._iterations + self._spacing
        self._block = _Window()

    def _begin(self) -> None:
        self.checking = True
        self.checks += 1
        self.gains = []
        self._cost, self._promised = copy.copy(self._rule.cost), self._rule.promised
        self._back_to_rule()

    def _back_to_rule(self) -> None:
        self._window, self._mixed, self._settling = None, False, 0
        self._rule.always_mixed = self.tripped and not self.checking

    def _turn(self, window: _Window) -> None:
        """At the end of a window, go on to the next one."""
        scale = self._gap // _FIRST
        if not window.full((_MIXED if self._mixed else _RULE) * scale):
            return
        if not window.real > 0.0 or not window.expected > 0.0:
            self._end(self.tripped)
        elif self._mixed:
            self._back_to_rule()
            self._weigh(self._promised - self._surprise + window.surprise)
        else:
            self._surprise = window.surprise
            self._window, self._mixed, self._settling = None, True, _SETTLE * scale
            self._rule.always_mixed = True

    def _weigh(self, gain: float) -> None:
        gains = self.gains
        gains.append(gain)
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
        self.tripped, self.checking = tripped, False
        self._cost = self._rule.cost
        self._back_to_rule()
        self._block = _Window()
        self._gap = min(self._gap * _RARER, _LONGEST)
        self._next = self._iterations + self._gap
        if tripped:
            self.trips += 1
            # What was learned from the rule's ways is stale: no alarms on that account.
            self._alarm_after = self._iterations + self._gap
