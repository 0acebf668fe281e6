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

Checks come after 1,024 iterations, then twice as many, and when 256 iterations took another
time than the cost model says (by 3 %): then it is broken, or the engine has changed. Each such
alarm makes the next one wait twice as long. A window of mixed batching may cost 0.1 % of
the time between checks, going by the promise, then by the gains so far: where mixing costs little
there is time to see what shows late, and where it costs much the first check comes later. A check
ends as soon as the answer is clear. If mixed batching wins, it stays until the next check.
"""

from __future__ import annotations

import copy
import math

from phasegate.cost.online import OnlineCost
from phasegate.policy.base import StepReport
from phasegate.policy.marginal import MarginalRule

_FIRST, _SPACING, _RARER, _LONGEST = 1024, 512, 2, 1 << 20  # iterations between checks
_BLOCK = 256  # iterations of which the cost model is checked
_OFF = 0.03
_RULE = 48  # iterations in a window of the rule
_MIXED, _MOST_MIXED = 12, 1024  # of mixed batching; half of them to settle, they do not count
_DEAREST = 1 << 14  # iterations after which there is a check whatever it costs
_PRICE = 0.001  # share of the time since the last check that a window may cost
_REFILLS = 4  # prefill iterations at least in any window, ...
_TOO_LONG = 512  # ... unless it gets so much longer
_NOISE = 0.01  # least scatter of one comparison
_CLEAR, _DISASTER = 0.02, -0.1  # one comparison that wins or loses by so much is enough
_BEYOND_DOUBT = 0.1  # ... or wins by so much, even if mixed batching was faster than expected
_TOLERATED, _WORSE = -0.03, -0.01
_MOST = 8  # comparisons
_STRETCH = 3  # windows get so much longer when mixed batching was faster than expected


class _Window:
    """A stretch of time: real and expected seconds."""

    __slots__ = ("expected", "iterations", "mixed", "prefills", "real")

    def __init__(self) -> None:
        self.real = self.expected = 0.0
        self.iterations = self.prefills = self.mixed = 0

    def add(self, step: StepReport, expected: float) -> None:
        self.real += step.end - step.start
        self.expected += expected
        self.iterations += step.iterations
        if step.prefill_tokens:
            self.prefills += 1
            self.mixed += step.decodes > 0

    def full(self, iterations: int) -> bool:
        if self.iterations < iterations:
            return False
        return self.prefills >= _REFILLS or self.iterations >= iterations + _TOO_LONG

    def due(self, iterations: int) -> int:
        """Decode-only iterations until it may be full."""
        if self.prefills < _REFILLS and self.iterations >= iterations:
            iterations += _TOO_LONG
        return iterations - self.iterations

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
        self._promised = self._kept = 0.0  # at the start of a check, and in the last window
        self._iterations = 0
        self._next = self._gap = _FIRST
        self._after_prefill = False
        self._window: _Window | None = None
        self._mixed = False  # the window is of mixed batching
        self._settling = 0
        self._stretch = 1
        self._length = _MIXED  # iterations of mixed batching in a window
        self._surprise = 0.0  # of the last window of the rule
        self._block = _Window()
        self._spacing = self._alarm_after = _SPACING

    @property
    def steady_for(self) -> int:
        """Decode-only iterations that may be reported together: it does nothing before."""
        if not self.checking:
            due = min(self._next - self._iterations, _BLOCK - self._block.iterations)
        elif self._settling > 0:
            due = self._settling
        elif self._window is None:
            due = 1
        else:
            due = self._window.due(self._length // 2 if self._mixed else _RULE)
        return max(due, 1)

    def observe(self, step: StepReport) -> None:
        """Follow a step; called after the rule has."""
        self._iterations += step.iterations
        expected = self._expected(step)
        if not self.checking:
            self._audit(step, expected)
            if self._iterations < self._next:
                return
            needed = min(math.ceil(_MIXED * self._loss / _PRICE), _DEAREST)
            if self._gap < needed:
                self._next += needed - self._gap
                self._gap = needed
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
        self._stretch = 1
        self._cost, self._promised = copy.copy(self._rule.cost), self._rule.promised
        self._back_to_rule()

    def _back_to_rule(self) -> None:
        self._window, self._mixed, self._settling = None, False, 0
        self._rule.always_mixed = self.tripped and not self.checking

    def _turn(self, window: _Window) -> None:
        """At the end of a window, go on to the next one."""
        if not window.full(self._length // 2 if self._mixed else _RULE):
            return
        if not window.real > 0.0 or not window.expected > 0.0:
            self._end(self.tripped)
        elif self._mixed:
            self._back_to_rule()
            # Faster than expected: perhaps it was just getting under way.
            settled = window.surprise > -_OFF
            if not settled:
                self._stretch *= _STRETCH
            self._weigh(self._kept - self._surprise + window.surprise, settled)
        else:
            self._surprise = window.surprise
            # The rule may have learned from the windows so far, and mix by itself.
            mixing = 2 * window.mixed > window.prefills
            self._kept = 0.0 if mixing else self._promised
            longest = min(_MOST_MIXED, self._gap // 8)
            wanted = max(_PRICE * self._gap / self._loss, _MIXED) * self._stretch
            self._length = round(min(wanted, longest))
            self._window, self._mixed, self._settling = None, True, self._length // 2
            self._rule.always_mixed = True

    @property
    def _loss(self) -> float:
        """What an iteration of mixed batching costs, as a share of it."""
        gains = self.gains if self.checking else ()
        loss = sum(gains) / len(gains) if gains else self._rule.promised
        return max(loss, 1e-3)

    def _weigh(self, gain: float, settled: bool) -> None:
        gains = self.gains
        gains.append(gain)
        count = len(gains)
        mean = sum(gains) / count
        scatter = math.sqrt(sum((g - mean) ** 2 for g in gains) / max(count - 1, 1))
        error = 2.0 * max(scatter, _NOISE) / math.sqrt(count)
        clear = gain > _CLEAR or (count >= 2 and mean - error > _TOLERATED)
        if gain < _DISASTER or (count >= 2 and mean + error < _WORSE):
            self._end(True)
        elif gain > _BEYOND_DOUBT or (settled and clear):
            self._end(False)
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
