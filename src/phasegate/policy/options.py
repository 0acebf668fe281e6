"""Options that every policy shares."""

from __future__ import annotations

from dataclasses import dataclass

from phasegate.policy.base import NEVER, UNLIMITED, Snapshot


@dataclass(frozen=True, slots=True)
class Options:
    """Shared by all policies; what is not set is the engine's own limit.

    Attributes:
        n: the most running requests; 0 means memory-safe: as many as fit KV by the traffic seen.
        token_budget: the most tokens (prompt tokens + decodes) in one iteration.
        chunk: the longest prompt slice of one request in one iteration, tokens.
        max_hold: the longest a policy may hold back a request that has a slot and KV, seconds.
        max_stall: the longest that an exclusive refill may keep decoding requests without a
            token before it lets one decode iteration pass, seconds.
    """

    n: int = UNLIMITED
    token_budget: int = UNLIMITED
    chunk: int = UNLIMITED
    max_hold: float = NEVER
    max_stall: float = NEVER

    def budget(self, state: Snapshot) -> int:
        """Token budget of an iteration within the engine's own."""
        return min(self.token_budget, state.token_budget)
