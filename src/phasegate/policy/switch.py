"""Switching between mixed and exclusive batching, with hysteresis."""

from __future__ import annotations

BAND = 0.02
"""The advantages of the other mode have to add up to this before we switch ..."""

DRIFT = 0.0025
"""... each less what noise alone may show. (A one-sided CUSUM test: a clear gain switches at
once, a small one after some evaluations, and around zero nothing happens.)"""

EVIDENCE = 24
"""Completions before the first choice."""

CLEAR = 0.05
"""A gain that is believed before there are any completions."""


class ModeSwitch:
    """Remembers the mode; changes it for a clear gain, or for a small one that persists."""

    def __init__(self) -> None:
        self.exclusive = False
        self._sum = 0.0

    def guess(self, gain: float) -> None:
        """Start exclusive if a first guess at the traffic already shows a clear gain."""
        self.exclusive = gain > CLEAR

    def weigh(self, gain: float, completions: int) -> None:
        """Take in an evaluation: relative `gain` of exclusive over mixed batching, after so many
        `completions`. A gain that is not a number is ignored."""
        if completions < EVIDENCE or gain != gain:
            return
        advantage = -gain if self.exclusive else gain
        self._sum = max(0.0, self._sum + advantage - DRIFT)
        if self._sum > BAND:
            self.exclusive = not self.exclusive
            self._sum = 0.0
