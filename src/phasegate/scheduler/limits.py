"""What the mechanism can hold and process, whatever a policy asks for (invariant I9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phasegate.checks import whole_number
from phasegate.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine.

    Attributes:
        kv_capacity: KV cache size, tokens; only whole pages of it are used.
        slots: the most requests that run at once.
        token_budget: the most tokens (prompt tokens + decodes) in one iteration.
        page: KV is handed out in pages of so many tokens (1: token-accurate).
        queue_limit: a request is rejected at arrival if so many wait already, beyond those for whom
            slots are free (None: no limit).
        order: "fcfs", or "priority" (smaller first, with ageing).
        ageing: seconds of waiting that make up for one step of priority.
    """

    kv_capacity: int
    slots: int = 256
    token_budget: int = 8192
    page: int = 16
    queue_limit: int | None = None
    order: Literal["fcfs", "priority"] = "fcfs"
    ageing: float = 30.0

    def __post_init__(self) -> None:
        for name in ("kv_capacity", "slots", "token_budget", "page"):
            whole_number(name, getattr(self, name))
        if self.kv_capacity < self.page:
            raise InputError(
                f"kv_capacity is {self.kv_capacity} tokens, less than one page of {self.page}; "
                "raise it or lower page"
            )
        if self.queue_limit is not None and self.queue_limit < 1:
            raise InputError(f"queue_limit is {self.queue_limit}; it must be at least 1, or unset")
        if self.order not in ("fcfs", "priority"):
            raise InputError(f"order is {self.order!r}; it must be 'fcfs' or 'priority'")
        if not self.ageing > 0:
            raise InputError(f"ageing is {self.ageing} s; it must be positive")

    @property
    def running(self) -> int:
        """The most requests that can run: a slot is of no use if its decode has no budget."""
        return min(self.slots, self.token_budget)
