"""What a policy sees (`Snapshot`), answers (`Plan`), and learns from (`StepReport`).

Policy decides, mechanism obeys. A policy sees numbers and returns numbers; it never touches
requests, KV blocks or tensors. That is what lets the same policy object run in the simulator,
in the embedded engine and inside vLLM. Seconds and tokens everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

UNLIMITED = 1 << 60
"""Stands for "no bound" where a number of tokens, requests or iterations is asked for."""

NEVER = float("inf")
"""A point in time that does not come."""


@dataclass(slots=True)
class Snapshot:
    """The state of the server right before an iteration.

    Attributes:
        now: clock, seconds.
        waiting: requests that could be admitted now (ready, not yet admitted).
        prefilling: admitted requests whose prompt is not completely processed.
        decoding: requests that have their first token and want more.
        pending_tokens: prompt tokens of admitted requests that are not processed yet.
        context_tokens: sum of the context lengths of the decoding requests, tokens.
        kv_capacity: KV cache size, tokens.
        kv_free: KV cache space that nobody holds, tokens.
        oldest_wait: seconds since the arrival of the request at the head of the queue (0: none).
        slots: the most requests the engine can run at once (its own limit).
        token_budget: the most tokens the engine can process in one iteration (its own limit).
        kv_blocked: the last admission stopped because the head of the queue did not fit into KV,
            and nothing has left the KV cache since.
        head: `head(limit)` returns the KV need at admission, in tokens, of up to `limit` waiting
            requests in queue order (the prompt, plus what was generated before a preemption).
        urgent: the head of the queue is of a higher priority class than a running request, and
            takes its place if admitted while slots or KV are short: do not hold it back.
        classes: running requests by priority (smaller is more urgent), where the engine orders
            by priority; else empty. A live view: do not keep it.
        head_class: priority of the head of the queue.
    """

    now: float
    waiting: int
    prefilling: int
    decoding: int
    pending_tokens: int
    context_tokens: int
    kv_capacity: int
    kv_free: int
    oldest_wait: float
    slots: int
    token_budget: int
    kv_blocked: bool
    head: Callable[[int], Sequence[int]]
    urgent: bool = False
    classes: Mapping[int, int] = field(default_factory=dict)
    head_class: int = 0

    @property
    def running(self) -> int:
        """Occupied slots."""
        return self.prefilling + self.decoding


class Plan(NamedTuple):
    """What the next iteration may do.

    Attributes:
        decode: every decoding request produces one token.
        admit: how many waiting requests may be admitted now, in queue order.
        prefill_tokens: the most prompt tokens in this iteration, over all requests.
        chunk: the longest prompt slice of one request, tokens.
        capacity: N, the most requests that may run at once.
        kv_reserve: KV tokens that an admission has to leave free.
        repeat: this plan stands for up to so many iterations in a row, as long as nothing
            arrives, finishes, is preempted or aborted. The simulator may then jump.
        review_at: ... and as long as the clock has not reached this time.
        note: a short reason, for `--explain` and logs ("" when there is nothing to say).
    """

    decode: bool
    admit: int
    prefill_tokens: int
    capacity: int
    chunk: int = UNLIMITED
    kv_reserve: int = 0
    repeat: int = 1
    review_at: float = NEVER
    note: str = ""


class Started(NamedTuple):
    """A request that ended its prefill in this step and decodes from now on.

    `generated` counts its output tokens so far, the one just produced included (1 unless it
    was preempted before); `context` is what it holds in KV, tokens.
    """

    id: int
    prompt: int
    generated: int
    context: int


class Finished(NamedTuple):
    """A request that left. `complete` is False when it was aborted: its length is censored.
    `generated` is 0 when it left before its first token."""

    id: int
    prompt: int
    generated: int
    complete: bool = True


@dataclass(slots=True)
class StepReport:
    """What one step did (`iterations` > 1 only for decode-only iterations jumped over in one go).

    Attributes:
        start, end: clock when the step began and ended, seconds; host time included.
        durations: seconds of each iteration, host time included (length `iterations`).
        iterations: number of iterations in this step.
        prefill_tokens: prompt tokens processed (per iteration).
        prefill_attention: Q = sum over slices of length*(start + length/2), tokens^2.
        decodes: requests that decoded (per iteration).
        context_tokens: X, sum of their context lengths at the first iteration, tokens; it grows
            by `decodes` per iteration.
        slots_busy: occupied slots in this step.
        arrived: prompt lengths of the requests that arrived since the last report.
        admitted: number of requests admitted.
        started: requests that ended their prefill.
        finished: requests that left since the last report (done or aborted).
        preempted: ids of requests whose KV was taken away.
        kv_blocked: the head of the queue waits for KV: an admission stopped there, in this step
            or before it, and nothing had left KV by the time this step ran.
        waiting: requests waiting after the step.
    """

    start: float
    end: float
    durations: Sequence[float]
    iterations: int
    prefill_tokens: int
    prefill_attention: float
    decodes: int
    context_tokens: int
    slots_busy: int
    arrived: Sequence[int]
    admitted: int
    started: Sequence[Started]
    finished: Sequence[Finished]
    preempted: Sequence[int]
    kv_blocked: bool
    waiting: int


class Decision(NamedTuple):
    """Where a policy stands: regime ("mixed", "exclusive", ...), threshold k (None where the
    regime has none) and capacity N."""

    mode: str
    k: int | None
    n: int


class Policy(Protocol):
    """Decides what every iteration does."""

    @property
    def spec(self) -> str:
        """The spec string that builds this policy again."""
        ...

    def plan(self, now: Snapshot) -> Plan:
        """Decide the next iteration. Called once before each step that has work to do."""
        ...

    def observe(self, step: StepReport) -> None:
        """Learn from a finished step. Called once after each."""
        ...

    @property
    def decision(self) -> Decision:
        """Current mode, k and N, for records and metrics."""
        ...
