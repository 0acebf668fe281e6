"""Looking at what the cheaper way would never show.

An exclusive policy never sees a mixed iteration, and a full server never sees a small batch. So
the first requests of a burst are let in on a ladder (1, 4, 16, 64, by turns exclusive and
mixed, with a few decode iterations after each), which tells fixed costs from those per token.
Later one refill in 2 to 256 begins with one iteration of the other mode, or with a small slice:
as soon as the difference between the modes is a small share of the time since the last look; more
often as long as that difference is within its own error, where a look costs as little. A look
that goes better than expected is followed by others, at once: the engine may have changed. No
dice: the same run makes the same choices.
"""

from __future__ import annotations

from phasegate.cost.online import MIXED, PREFILL, OnlineCost
from phasegate.policy.refill import Refill

_STEPS = 4  # rungs of the ladder: 1, 4, 16, 64 requests
_PAUSE = 3  # decode iterations after each
_ENOUGH = 4  # iterations of a mode that the first comparison needs
_EVERY = ((2.0, 256), (1.5, 50), (1.0, 12), (0.7, 5), (0.5, 3), (0.0, 2))
"""(difference between the modes in standard errors, refills from one look to the next)

If they are s standard errors apart, the wrong one is chosen now and then, at an expected loss of
phi(s) - s (1 - Phi(s)) standard errors per refill. A look costs s. With as many refills between
looks as s is times that loss, looks cost what ignorance does."""
_SOONEST = 32  # refills from one look to the next, where the difference is clear
_PRICE = 0.0012  # share of the time that looks may cost
_DOUBT = 0.4  # standard errors by which the last looks were better than expected on average
_SURPRISE = 2.5  # ... or by which the very last was
_FOLLOW = 16  # looks in a row
_SMALL = 256  # prompt tokens of a small slice


class Exploration:
    """Says when to deviate from the cheaper way."""

    def __init__(self, cost: OnlineCost) -> None:
        self._cost = cost
        self._refills = 0
        self._other_at = 0
        self._other_time = 0.0
        self._follows = 0
        self._small_at = 0
        self._rung = 0

    @property
    def pause(self) -> int:
        """Decode iterations to wait before the next refill (0: no ladder)."""
        return _PAUSE if 0 < self._rung < _STEPS and not self._cost.confirmed else 0

    def limit(self, count: int) -> int:
        """How many of the `count` requests of a refill may start now."""
        if self._rung and self._cost.confirmed:
            self._rung = _STEPS
        if self._rung >= _STEPS:
            return count
        rung = int(4**self._rung)
        if rung >= count:
            if self._rung:
                self._rung = _STEPS  # no burst, or its end: traffic shows small batches by itself
            return count
        self._rung += 1
        return rung

    def other_mode(self, refill: Refill, error: float, exclusive: bool, now: float) -> bool:
        """Whether this refill, best done the given way, begins with an iteration of the other.

        `error`: standard error of the difference between the two costs, seconds; `now`: clock.
        """
        self._refills += 1
        since = self._refills - self._other_at
        cost, kind = self._cost, MIXED if exclusive else PREFILL
        follow = False
        if cost.rows[kind] < _ENOUGH and not cost.confirmed:
            due = since >= 2
        else:
            difference = abs(refill.exclusive - refill.mixed)
            due = since >= next(every for sure, every in _EVERY if difference >= sure * error)
            affordable = _PRICE * (now - self._other_time)
            due = due or (since >= _SOONEST and difference <= affordable)
            better = cost.drift(kind) < -_DOUBT or cost.surprise(kind) < -_SURPRISE
            if not due and better and self._follows < _FOLLOW:
                due = follow = True
        if due:
            self._follows = self._follows + 1 if follow else 0
            self._other_at, self._other_time = self._refills, now
        return due

    def small_slice(self, tokens: float) -> int:
        """Prompt tokens of the first iteration of an exclusive refill, 0: as many as fit."""
        if tokens < 8 * _SMALL or self._refills - self._small_at < 128:
            return 0
        self._small_at = self._refills
        return _SMALL
