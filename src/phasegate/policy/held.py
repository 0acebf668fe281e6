"""Requests that have a slot and KV and are held back all the same, to be prefilled together."""

from __future__ import annotations

from phasegate.policy.base import NEVER


class Held:
    """How long they have been held: the first of them, and all of them together.

    Attributes:
        since: when the first of them began to be held, seconds; NEVER if nobody is.
    """

    def __init__(self) -> None:
        self.since = NEVER
        self._together = 0.0  # request-seconds up to `_at`
        self._count = 0
        self._at = 0.0

    def clear(self) -> None:
        """Nobody is held any more."""
        self.since = NEVER

    def note(self, now: float, count: int) -> None:
        """`count` requests are held from `now` on."""
        if self.since == NEVER:
            self.since, self._together = now, 0.0
        else:
            self._together += self._count * (now - self._at)
        self._at, self._count = now, count

    def end(self, longest: float, together: float) -> float:
        """When the first will have been held for `longest` seconds, or all of them for
        `together` request-seconds: whichever comes first. NEVER if nobody is held."""
        if self.since == NEVER:
            return NEVER
        left = max(0.0, together - self._together)
        return min(self.since + longest, self._at + left / self._count)
