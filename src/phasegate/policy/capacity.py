"""Capacity: N, the most requests that run at once."""

from __future__ import annotations

from typing import Protocol

from phasegate.policy.base import Snapshot, StepReport


class Capacity(Protocol):
    """Says N before each iteration."""

    n: int
    """The last answer."""

    def limit(self, now: Snapshot) -> int:
        """N for the next iteration, within the engine's slots."""
        ...

    def observe(self, step: StepReport) -> None:
        """Learn from a finished step."""
        ...


class FixedCapacity:
    """N is given (and never more than the engine has)."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.n = n

    def limit(self, now: Snapshot) -> int:
        """The given N, or the engine's slots if there are fewer."""
        self.n = min(self._n, now.slots, now.token_budget)
        return self.n

    def observe(self, step: StepReport) -> None:
        """Nothing to learn."""
