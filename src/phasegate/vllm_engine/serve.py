"""Serving a workload on a vLLM engine in this process, in real time."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from phasegate.engine.record import RunRecord
from phasegate.policy.base import Decision, Policy
from phasegate.scheduler.request import Request
from phasegate.vllm_engine.engine import VllmEngine
from phasegate.workload.source import Source

STOCK = "stock"
"""Stands for vLLM's own scheduler where a policy spec is asked for."""

Array = npt.NDArray[np.float64]


class TimedRecord(RunRecord):
    """A record whose token times were taken outside, one request at a time."""

    def __init__(self, gaps: list[list[float]], **fields: Any) -> None:
        """`gaps`: inter-token latencies of each row of `requests`, seconds."""
        empty: dict[str, Any] = {"stays": {}, "ticks": np.empty(0)}
        none = np.empty(0, dtype=np.int64)
        super().__init__(**fields, **empty, tick_decodes=none, tick_joined=none)
        self._gaps = [np.array(row) for row in gaps]

    def itl(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """All inter-token latencies of the run: values in seconds, and how often each occurred."""
        values = np.concatenate(self._gaps) if self._gaps else np.empty(0)
        return values, np.ones(len(values), dtype=np.int64)

    def itl_values(self, row: int) -> Array:
        """The inter-token latencies of one request, in order, seconds."""
        return self._gaps[row]


class _Run:
    """One workload on its way."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
        self._engine, self._scheduler, self._seed = engine, engine.scheduler, seed
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[float]] = {}  # when each token came
        self.rows: list[tuple[float, ...]] = []  # one per request that ended
        self.gaps: list[list[float]] = []
        self.iterations: list[tuple[float, ...]] = []
        self._output: Any = None
        self._plain = type(self._scheduler).schedule

    def add(self, request: Request) -> None:
        """Queue a request with random tokens, the same for every policy."""
        name = str(request.id)
        output = request.output if request.output is not None else request.max_tokens
        draw = np.random.default_rng((self._seed, request.id))
        self.requests[name], self.tokens[name] = request, []
        request.max_tokens = output
        ids = draw.integers(0, self._engine.vocabulary, request.prompt).tolist()
        self._engine.add(name, ids, output)

    def step(self, clock: Callable[[], float]) -> int:
        """One iteration; returns how many requests ended in it."""
        start, ended = clock(), 0
        outputs = self._engine.step()
        now = clock()
        scheduled = self._output.num_scheduled_tokens if self._output is not None else {}
        self._note(scheduled, start, now)
        for output in outputs:
            name = output.request_id if output.request_id in self.tokens else None
            name = name or output.request_id.rsplit("-", 1)[0]  # vLLM makes ids unique
            times = self.tokens[name]
            times += [now] * (len(output.outputs[0].token_ids) - len(times))
            if output.finished:
                self._end(name, times, now)
                ended += 1
        return ended

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Stands before the scheduler's own: keeps what was scheduled."""
        self._output = self._plain(self._scheduler, *args, **kwargs)
        return self._output

    def _note(self, scheduled: dict[str, int], start: float, now: float) -> None:
        """Book an iteration: a request that has a token decodes."""
        if not scheduled:
            return
        prefill = decodes = 0
        for name, n in scheduled.items():
            if self.tokens.get(name) or self.tokens.get(name.rsplit("-", 1)[0]):
                decodes += 1
            else:
                prefill += n
        pool, limits = self._scheduler.kv_cache_manager.block_pool, self._engine.limits
        used = limits.kv_capacity - pool.get_num_free_blocks() * limits.page
        kind = 2 if prefill and decodes else 1 if decodes else 0
        slots, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        self.iterations.append((start, now - start, kind, prefill, decodes, slots, used, waiting))

    def _end(self, name: str, times: list[float], now: float) -> None:
        request = self.requests[name]
        self.gaps.append([b - a for a, b in pairwise(times)])
        first = times[0] if times else math.nan
        when = (request.arrival, math.nan, first, now)
        self.rows.append((request.id, *when, request.prompt, len(times), request.priority, 0, 0, 0))


def run_workload(
    engine: VllmEngine,
    source: Source,
    policy: Policy | None,
    *,
    profile: str = "",
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> RunRecord:
    """Serve all requests of `source` under `policy` (None: stock vLLM), in real time.

    vLLM tells when tokens come, not when a request is admitted: "admitted" stays unknown (NaN),
    and preemptions are not counted.

    Args:
        engine: free of requests, and free again afterwards.
        source: where requests come from; their token ids are drawn from `seed`.
        policy: a fresh policy.
        profile: name for the record.
        seed: of the token ids.
        progress: called with the number of requests that ended since the last call.
    """
    engine.use(policy)
    run = _Run(engine, seed)
    decisions: list[tuple[float, Decision]] = []
    engine.scheduler.schedule = run.schedule
    gc.collect()
    began = perf_counter()

    def clock() -> float:
        return perf_counter() - began

    try:
        while engine.busy or math.isfinite(source.next_arrival()):
            for request in source.take(clock()):
                run.add(request)
            if not engine.busy:
                time.sleep(max(0.0, min(source.next_arrival() - clock(), 0.05)))
                continue
            if ended := run.step(clock):
                source.finished(ended, clock())
                if progress is not None:
                    progress(ended)
            if policy is not None and (not decisions or decisions[-1][1] != policy.decision):
                decisions.append((clock(), policy.decision))
    finally:
        del engine.scheduler.schedule
        engine.use(None)
    names = ("id", "arrival", "admitted", "first_token", "end", "prompt", "output")
    columns = (*names, "priority", "preemptions", "recomputed", "status")
    kinds = ("start", "duration", "kind", "prefill_tokens", "decodes", "slots", "kv_used")
    return TimedRecord(
        run.gaps,
        policy=policy.spec if policy is not None else STOCK,
        profile=profile,
        workload=source.label,
        kv_capacity=engine.limits.kv_capacity,
        slots=engine.limits.slots,
        submitted=len(run.requests),
        duration=clock(),
        requests=_columns(columns, run.rows),
        iterations=_columns((*kinds, "waiting"), run.iterations),
        decisions=decisions,
    )


def _columns(names: tuple[str, ...], rows: list[tuple[float, ...]]) -> dict[str, Array]:
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return {name: table[:, i] for i, name in enumerate(names)}
