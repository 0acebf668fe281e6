"""What a run leaves behind: every request, every iteration, every inter-token latency.

Recording costs O(1) per iteration and per request. Inter-token latencies need no entry per token:
all requests that decode in a tick and decoded in the one before share the same gap. So we keep
the end of every tick, and per stay of a request in the batch where it began, for how many ticks
it lasted, and its first gap (which is its own). Histograms and exact values follow from these.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phasegate.engine.step import Batch
from phasegate.policy.base import Decision
from phasegate.scheduler.request import Request, State

Array = npt.NDArray[np.float64]

ITL_EDGES: Array = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 141), [np.inf]])
"""Bin edges of inter-token latency histograms, seconds: 20 bins per decade."""

PREFILL, DECODE, MIXED = 0, 1, 2
"""Kinds of iterations in `RunRecord.iterations["kind"]`."""

_STATUS = {State.FINISHED: 0.0, State.ABORTED: 1.0, State.REJECTED: 2.0}
REQUEST_COLUMNS = (
    "id", "arrival", "admitted", "first_token", "end", "prompt", "output", "priority",
    "preemptions", "recomputed", "status",
)  # fmt: skip
ITERATION_COLUMNS = (
    "start", "duration", "kind", "prefill_tokens", "decodes", "slots", "kv_used", "waiting",
)  # fmt: skip
_STAY = ("request", "tick", "ticks", "first_gap", "own_gap")


class Recorder:
    """Takes notes while an engine runs; `record()` turns them into a `RunRecord`."""

    def __init__(self) -> None:
        self._requests = array("d")
        self._iterations = array("d")
        self._ticks = array("d", [0.0])  # end of decode tick i, seconds
        self._joined_per_tick = array("q", [0])  # requests whose first gap ends with tick i
        self._decoding_per_tick = array("q", [0])
        self._stays = array("d")
        self._fresh = 0  # requests that decode from the next tick on
        self._decisions: list[tuple[float, Decision]] = []
        self._last_decision: Decision | None = None

    # ------------------------------------------------------------------ called by the engine
    def decided(self, now: float, decision: Decision) -> None:
        """The policy stands here now; kept when it changed."""
        if decision != self._last_decision:
            self._last_decision = decision
            self._decisions.append((now, decision))

    def step(
        self,
        batch: Batch,
        durations: Sequence[float],
        started: Sequence[Request],
        slots: int,
        kv_used: int,
        waiting: int,
    ) -> None:
        """One batch has run. `kv_used` is in tokens, before requests leave."""
        start = batch.now
        decodes, prefill = batch.decodes, batch.prefill_tokens
        if decodes:
            fresh = self._fresh
            self._fresh = 0
            clock = start
            for i, duration in enumerate(durations):
                clock += duration
                self._ticks.append(clock)
                self._joined_per_tick.append(0 if i else fresh)
                self._decoding_per_tick.append(decodes)
        kind = DECODE if not prefill else MIXED if decodes else PREFILL
        extend = self._iterations.extend
        if len(durations) == 1:
            end = start + durations[0]
            extend((start, durations[0], kind, prefill, decodes, slots, kv_used, waiting))
        else:
            end = start
            first = kv_used - decodes * (len(durations) - 1)
            for i, duration in enumerate(durations):
                extend((end, duration, kind, prefill, decodes, slots, first + decodes * i, waiting))
                end += duration
        self._fresh += len(started)

    def resumed(self, request: Request, gap: float) -> None:
        """A preempted request got its next token `gap` seconds after the one before."""
        self._stays.extend((request.id, 0, 0, -1.0, gap))

    def left_batch(self, request: Request, tick: int) -> None:
        """A decoding request left the batch at `tick` (finished, aborted or preempted); its
        `last_token_at` is still the end of its prefill."""
        joined = request.joined
        ticks = tick - joined
        if ticks:
            first = self._ticks[joined + 1] - request.last_token_at
        else:
            first = -1.0
            self._fresh -= 1
        self._stays.extend((request.id, joined, ticks, first, -1.0))

    def ended(self, request: Request) -> None:
        """A request ended in whatever way."""
        nan = float("nan")
        self._requests.extend(
            (
                request.id,
                request.arrival,
                request.admitted_at if request.admitted_at >= 0.0 else nan,
                request.first_token_at if request.first_token_at >= 0.0 else nan,
                request.finished_at,
                request.prompt,
                request.generated,
                request.priority,
                request.preemptions,
                request.recomputed,
                _STATUS[request.state],
            )
        )

    # ------------------------------------------------------------------ afterwards
    def record(
        self,
        *,
        policy: str,
        profile: str,
        workload: str,
        kv_capacity: int,
        slots: int,
        submitted: int,
        duration: float,
    ) -> RunRecord:
        """Everything noted so far as a `RunRecord`."""
        return RunRecord(
            policy=policy,
            profile=profile,
            workload=workload,
            kv_capacity=kv_capacity,
            slots=slots,
            submitted=submitted,
            duration=duration,
            requests=_columns(self._requests, REQUEST_COLUMNS),
            iterations=_columns(self._iterations, ITERATION_COLUMNS),
            stays=_columns(self._stays, _STAY),
            ticks=np.array(self._ticks),
            tick_decodes=np.array(self._decoding_per_tick),
            tick_joined=np.array(self._joined_per_tick),
            decisions=list(self._decisions),
        )


def _columns(rows: array[float], names: Sequence[str]) -> dict[str, Array]:
    table = np.array(rows).reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}


class RunRecord:
    """One run. Arrays have one entry per request that ended, in the order in which they ended,
    or one per iteration; times in seconds, NaN for what never happened.

    Attributes:
        policy, profile, workload: what was run.
        kv_capacity: tokens; slots: slot limit; submitted: requests; duration: seconds.
        requests: "id", "arrival", "admitted", "first_token", "end", "prompt", "output",
            "priority", "preemptions", "recomputed" (tokens), "status" (0 finished, 1 aborted,
            2 rejected).
        iterations: "start", "duration", "kind" (0 prefill, 1 decode, 2 mixed), "prefill_tokens",
            "decodes", "slots", "kv_used" (tokens), "waiting".
        decisions: (time, Decision), one entry per change.
        sees_inside: False if this is what a client saw: then iterations, KV cache and preemptions
            of the server are not known.
    """

    sees_inside = True

    def __init__(
        self,
        *,
        policy: str,
        profile: str,
        workload: str,
        kv_capacity: int,
        slots: int,
        submitted: int,
        duration: float,
        requests: dict[str, Array],
        iterations: dict[str, Array],
        stays: dict[str, Array],
        ticks: Array,
        tick_decodes: npt.NDArray[np.int64],
        tick_joined: npt.NDArray[np.int64],
        decisions: list[tuple[float, Decision]],
    ) -> None:
        self.policy, self.profile, self.workload = policy, profile, workload
        self.kv_capacity, self.slots = kv_capacity, slots
        self.submitted, self.duration = submitted, duration
        self.requests, self.iterations, self.decisions = requests, iterations, decisions
        self._stays = stays
        self._ticks, self._tick_decodes, self._tick_joined = ticks, tick_decodes, tick_joined
        self._stays_of: dict[int, list[int]] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Requests by how they ended: "finished", "rejected", "aborted"."""
        status = self.requests["status"]
        return {
            "finished": int((status == 0).sum()),
            "rejected": int((status == 2).sum()),
            "aborted": int((status == 1).sum()),
        }

    def itl(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """All inter-token latencies of the run: values in seconds, and how often each occurred."""
        shared = np.diff(self._ticks)
        weights = (self._tick_decodes - self._tick_joined)[1:]
        first = self._stays["first_gap"]
        own = self._stays["own_gap"]
        single = np.concatenate([first[first >= 0.0], own[own >= 0.0]])
        keep = weights > 0
        return (
            np.concatenate([shared[keep], single]),
            np.concatenate([weights[keep], np.ones(len(single), dtype=np.int64)]),
        )

    def itl_values(self, row: int) -> Array:
        """The inter-token latencies of one request (a row of `requests`), in order, seconds."""
        if self._stays_of is None:
            self._stays_of = {}
            for i, request in enumerate(self._stays["request"]):
                self._stays_of.setdefault(int(request), []).append(i)
        parts: list[Array] = []
        for i in self._stays_of.get(int(self.requests["id"][row]), ()):
            joined, ticks = int(self._stays["tick"][i]), int(self._stays["ticks"][i])
            own, first = self._stays["own_gap"][i], self._stays["first_gap"][i]
            if own >= 0.0:
                parts.append(np.array([own]))
            if ticks:
                parts.append(np.array([first]))
                parts.append(np.diff(self._ticks[joined + 1 : joined + ticks + 1]))
        return np.concatenate(parts) if parts else np.empty(0)

    def itl_histogram(self, row: int) -> npt.NDArray[np.int64]:
        """Inter-token latencies of one request as counts over `ITL_EDGES`."""
        return np.histogram(self.itl_values(row), ITL_EDGES)[0]
