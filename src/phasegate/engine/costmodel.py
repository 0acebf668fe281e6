"""A runner that computes nothing and knows how long it would have taken."""

from __future__ import annotations

from phasegate.cost.model import CostModel
from phasegate.engine.step import Batch, StepResult
from phasegate.scheduler.request import Request


class CostModelRunner:
    """Times iterations by a cost model; requests end at their `output` length (or `max_tokens`).

    With a virtual clock this is a simulator, with a wall clock a GPU-free emulator of a server.
    """

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._tick = 0
        self._ends: dict[int, list[Request]] = {}  # tick -> requests whose last token it makes
        self._end_of: dict[int, int] = {}  # request id -> that tick

    def run(self, batch: Batch) -> StepResult:
        """One iteration, or up to `batch.repeat` decode-only ones until the first request ends."""
        decodes = batch.decodes
        if not batch.prefill and batch.repeat > 1:
            return self._decode_many(batch)
        seconds = self.cost.seconds(
            batch.prefill_tokens, batch.prefill_attention, decodes, batch.context_tokens
        )
        finished: list[Request] = []
        if decodes:
            self._tick += 1
            finished = self._ends.pop(self._tick, finished)
        for request, _, _, last in batch.prefill:
            if last:
                total = request.max_tokens if request.output is None else request.output
                left = total - request.generated - 1
                if left <= 0:
                    finished.append(request)
                else:
                    end = self._tick + left
                    self._end_of[request.id] = end
                    if end in self._ends:
                        self._ends[end].append(request)
                    else:
                        self._ends[end] = [request]
        return StepResult((seconds,), finished)

    def _decode_many(self, batch: Batch) -> StepResult:
        seconds = self.cost.seconds
        ends, decodes, until = self._ends, batch.decodes, batch.until
        tick, context, clock = self._tick, batch.context_tokens, batch.now
        last = tick + batch.repeat
        durations: list[float] = []
        while True:
            duration = seconds(0, 0.0, decodes, context)
            durations.append(duration)
            clock += duration
            context += decodes
            tick += 1
            if tick in ends or tick >= last or clock >= until:
                break
        self._tick = tick
        return StepResult(durations, ends.pop(tick, ()), len(durations))

    def release(self, request: Request) -> None:
        """Forget a request that left the batch."""
        end = self._end_of.pop(request.id, 0)
        if end > self._tick:
            group = self._ends[end]
            group.remove(request)
            if not group:
                del self._ends[end]
