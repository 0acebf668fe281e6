"""Switching between mixed and exclusive batching, with hysteresis."""

from __future__ import annotations

BAND = 0.02
"""The other mode has to be better by this share before we switch."""

COOLDOWN = 300
"""Completions between two switches."""

EVIDENCE = 32
"""Completions before the first choice."""


class ModeSwitch:
    """Remembers the mode; changes it only for a clear gain, and not too often."""

    def __init__(self) -> None:
        self.exclusive = False
        self._switched_at = -COOLDOWN

    def weigh(self, gain: float, completions: int) -> None:
        """`gain` of exclusive over mixed batching, relative; NaN is ignored."""
        if completions < EVIDENCE or completions - self._switched_at < COOLDOWN:
            return
        if gain > BAND and not self.exclusive:
            self.exclusive, self._switched_at = True, completions
        elif gain < -BAND and self.exclusive:
            self.exclusive, self._switched_at = False, completions
