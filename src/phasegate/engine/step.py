"""What passes between the engine loop and a runner: a `Batch` down, a `StepResult` up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from phasegate.scheduler.request import Request


class Slice(NamedTuple):
    """Prompt tokens [start, start+length) of `request`. `last` is True when they complete its
    prefill: the runner then produces one output token for it in this iteration.

    After a preemption the "prompt" is the prompt followed by what was generated before.
    """

    request: Request
    start: int
    length: int
    last: bool


@dataclass(slots=True)
class Batch:
    """One iteration (or `repeat` identical decode-only ones).

    Attributes:
        prefill: prompt slices to process.
        decoding: the requests that produce one token each ... (live view; do not keep it)
        decodes: ... and how many they are (0: this iteration does not decode).
        prefill_tokens: sum of the slice lengths.
        prefill_attention: Q = sum of length*(start + length/2), tokens^2.
        context_tokens: X, sum of the context lengths of the decoding requests, tokens.
        repeat: a runner may run up to so many decode iterations in one go ...
        until: ... but stops after the first one that ends at or after this clock, seconds.
            A runner is free to ignore both and run one.
        now: clock at the start, seconds.
    """

    prefill: Sequence[Slice]
    decoding: Collection[Request]
    decodes: int
    prefill_tokens: int
    prefill_attention: float
    context_tokens: int
    repeat: int
    until: float
    now: float


@dataclass(slots=True)
class StepResult:
    """What a runner reports.

    Attributes:
        durations: seconds that the clock has to advance for each iteration. A simulated runner
            returns modelled times; a real one returns () since its time has already passed.
        finished: requests whose last token was produced in the last of these iterations.
        iterations: how many iterations were run (1 unless the batch allowed more).
    """

    durations: Sequence[float]
    finished: Sequence[Request]
    iterations: int = 1


class Runner(Protocol):
    """Runs batches: a cost model in virtual time, or a real model."""

    def run(self, batch: Batch) -> StepResult:
        """Process one batch. Must not change any request."""
        ...

    def release(self, request: Request) -> None:
        """`request` left the batch (finished, aborted or preempted): drop what is held for it.

        A preempted request comes back later as prompt slices over prompt + generated tokens.
        """
        ...
