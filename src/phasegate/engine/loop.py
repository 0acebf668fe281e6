"""The engine loop: the only one. Simulation, emulation and real models differ in clock and runner.

snapshot ─► policy.plan ─► scheduler.form ─► runner.run ─► scheduler.commit ─► policy.observe
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from phasegate.engine.clock import Clock
from phasegate.engine.record import Recorder
from phasegate.engine.step import Batch, Runner
from phasegate.policy.base import Finished, Policy, Started, StepReport
from phasegate.scheduler.request import Request, State
from phasegate.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from phasegate.workload.source import Source


class Engine:
    """Drives requests through a scheduler, a policy and a runner.

    Guarantees: a request that was submitted ends exactly once (finished, aborted or rejected),
    and while there is work every step makes progress, whatever the policy answers.

    Attributes:
        submitted, ended: requests that came, and that left in whatever way.
        on_end: called with every request that ended, rejected ones included.
    """

    def __init__(
        self,
        policy: Policy,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        recorder: Recorder | None = None,
        on_end: Callable[[Request], None] | None = None,
    ) -> None:
        self.policy, self.scheduler, self.runner, self.clock = policy, scheduler, runner, clock
        self.recorder = recorder
        self.on_end = on_end
        self.submitted = 0
        self.ended = 0
        self._arrived: list[int] = []
        self._finished: list[Finished] = []
        self._busy_since = -1.0  # end of the last step if work was left then, else -1
        self._last_tick_end = 0.0

    # ------------------------------------------------------------------ requests
    def submit(self, request: Request) -> bool:
        """Queue a request; False if it was rejected (`request.reason` says why)."""
        self.submitted += 1
        if self.scheduler.submit(request, self.clock.now()):
            self._arrived.append(request.prompt)
            return True
        self._ended(request)
        return False

    def abort(self, request_id: int) -> bool:
        """Drop a request in whatever state it is; False if it has ended already."""
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return False
        state = request.state
        if state is State.DECODING and self.recorder is not None:
            self.recorder.left_batch(request, self.scheduler.tick)
        self.scheduler.abort(request_id, self.clock.now())
        if state is not State.WAITING:
            self.runner.release(request)
            self._finished.append(Finished(request.id, request.prompt, request.generated, False))
        if not self.scheduler.requests:
            self._busy_since = -1.0
        self._ended(request)
        return True

    def _ended(self, request: Request) -> None:
        self.ended += 1
        if self.recorder is not None:
            self.recorder.ended(request)
        if self.on_end is not None:
            self.on_end(request)

    # ------------------------------------------------------------------ one iteration
    def step(self, until: float = float("inf")) -> bool:
        """Run the next batch; False (and nothing happens) if there is no work.

        `until` is the clock of the next known arrival: a runner that jumps over identical
        decode iterations stops after the one that ends at or after it.
        """
        scheduler, clock = self.scheduler, self.clock
        if not scheduler.requests:
            self._busy_since = -1.0
            return False
        now = clock.now()
        # A busy engine's time between two steps (host work) belongs to the later iteration.
        start = self._busy_since if self._busy_since >= 0.0 else now
        plan = self.policy.plan(scheduler.snapshot(now))
        if self.recorder is not None:
            self.recorder.decided(start, self.policy.decision)
        before = scheduler.tick
        batch = scheduler.form(plan, now)
        if scheduler.preempted:
            self._take_back(scheduler.preempted, before)
        if until < batch.until:
            batch.until = until
        batch.now = start
        result = self.runner.run(batch)
        durations: Sequence[float] = result.durations
        end = start
        if durations:
            for seconds in durations:
                end += seconds
            clock.wait_until(end)
        else:
            end = clock.now()
            durations = (end - start,)
        slots = scheduler.running
        started = scheduler.commit(batch, result.iterations)
        self._book(batch, result.finished, started, start, end, durations, slots)
        self._busy_since = end if scheduler.requests else -1.0
        return True

    def _take_back(self, preempted: Sequence[Request], tick: int) -> None:
        for request in preempted:
            self.runner.release(request)
            if request.joined >= 0:  # it was decoding
                if self.recorder is not None:
                    self.recorder.left_batch(request, tick)
                if tick > request.joined:
                    request.last_token_at = self._last_tick_end
                request.joined = -1

    def _book(
        self,
        batch: Batch,
        done: Sequence[Request],
        started: Sequence[Request],
        start: float,
        end: float,
        durations: Sequence[float],
        slots: int,
    ) -> None:
        """Stamp times, record, and report the step to the policy."""
        scheduler, recorder = self.scheduler, self.recorder
        blocked = scheduler.kv_blocked  # before requests leave and make room
        if batch.decodes:
            self._last_tick_end = end
        for request in started:
            if request.first_token_at < 0.0:
                request.first_token_at = end
            elif recorder is not None:
                recorder.resumed(request, end - request.last_token_at)
            request.last_token_at = end
        if recorder is not None:
            waiting = len(scheduler.queue)
            recorder.step(batch, durations, started, slots, scheduler.kv_tokens, waiting)
        begun = [Started(r.id, r.prompt, r.generated, r.to_prefill) for r in started]
        finished = self._finished
        for request in done:
            if recorder is not None:
                recorder.left_batch(request, scheduler.tick)
            scheduler.finish(request, end)
            request.last_token_at = end
            self.runner.release(request)
            finished.append(Finished(request.id, request.prompt, request.generated))
            self._ended(request)
        self.policy.observe(
            StepReport(
                start,
                end,
                durations,
                len(durations),
                batch.prefill_tokens,
                batch.prefill_attention,
                batch.decodes,
                batch.context_tokens,
                slots,
                self._arrived,
                scheduler.admitted,
                begun,
                finished,
                [r.id for r in scheduler.preempted],
                blocked,
                len(scheduler.queue),
            )
        )
        self._arrived = []
        self._finished = []

    # ------------------------------------------------------------------ a whole workload
    def run(self, source: Source, progress: Callable[[int], None] | None = None) -> None:
        """Serve everything `source` sends, until all of it has ended.

        `progress` is called now and then with the number of requests that ended since.
        """
        clock = self.clock
        told = shown = self.ended
        while True:
            now = clock.now()
            if source.next_arrival() <= now:
                for request in source.take(now):
                    self.submit(request)
            worked = self.step(source.next_arrival())
            if self.ended > told:
                source.finished(self.ended - told, clock.now())
                told = self.ended
            if progress is not None and told - shown >= 100:
                progress(told - shown)
                shown = told
            if not worked:
                arrival = source.next_arrival()
                if arrival == float("inf"):
                    break
                clock.wait_until(arrival)
        if progress is not None and told > shown:
            progress(told - shown)
