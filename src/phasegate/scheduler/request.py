"""A request and its life."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class State(Enum):
    """Where a request is. It is in exactly one state at any time (invariant I1).

    WAITING ──► PREFILLING ──► DECODING ──► FINISHED
       ▲ │          │              │
       │ └─► REJECTED  (at arrival only)
       └─── preempted ┴────────────┘          ABORTED from anywhere but the three ends
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class Request:
    """One request. The first block comes from the client, the rest belongs to the scheduler.

    Attributes:
        id: unique number.
        prompt: prompt length, tokens.
        max_tokens: the most output tokens the client wants.
        arrival: clock at arrival, seconds.
        priority: smaller is more urgent (vLLM's convention).
        output: the output length that a *simulated* model will produce, at most max_tokens.
            None when a real model decides. No scheduler and no policy may read it.
        payload: whatever the runner needs (token ids, sampling parameters); opaque here.
        prefilled, to_prefill: tokens of the prompt (plus what was generated before a
            preemption) that are processed / have to be processed before decoding. `prefilled`
            may be above 0 at arrival: the KV of these tokens is then taken as present.
        generated: output tokens produced before the current stay in DECODING; see
            `Scheduler.generated` for the running value.
        joined: the batch clock (decode ticks) when it began to decode; -1 before.
    """

    id: int
    prompt: int
    max_tokens: int
    arrival: float = 0.0
    priority: int = 0
    output: int | None = None
    payload: Any = None

    state: State = State.WAITING
    prefilled: int = 0
    to_prefill: int = 0
    generated: int = 0
    joined: int = -1
    admitted_at: float = -1.0
    first_token_at: float = -1.0
    last_token_at: float = -1.0
    finished_at: float = -1.0
    preemptions: int = 0
    recomputed: int = 0
    order: float = 0.0
    reason: str = ""
