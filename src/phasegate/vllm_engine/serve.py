"""Serving a workload on a vLLM engine in this process, in real time."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from phasegate.engine.record import DECODE, MIXED, PREFILL, RunRecord
from phasegate.engine.timed import TimedRecord
from phasegate.policy.base import Decision, Policy
from phasegate.scheduler.request import Request
from phasegate.vllm_engine import STOCK
from phasegate.vllm_engine.engine import VllmEngine
from phasegate.workload.source import Source


class _Run:
    """One workload on its way."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
        self._engine, self._scheduler, self._seed = engine, engine.scheduler, seed
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[float]] = {}  # when each token came
        self._admitted: dict[str, float] = {}
        self._preempted: Counter[str] = Counter()
        self._recomputed: Counter[str] = Counter()
        self._most = 1 + getattr(self._scheduler, "num_spec_tokens", 0)  # tokens of a decode
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
        start, ended, self._output = clock(), 0, None
        outputs = self._engine.step()
        now = clock()
        if self._output is not None:
            self._note(self._output, start, now)
        for output in outputs:
            name = self._name(output.request_id)
            times = self.tokens[name]
            times += [now] * (len(output.outputs[0].token_ids) - len(times))
            if output.finished:
                self._end(name, times, now)
                ended += 1
        return ended

    def _name(self, request_id: str) -> str:
        """Our name of a request: vLLM may append to it, to make it unique."""
        return request_id if request_id in self.tokens else request_id.rsplit("-", 1)[0]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Stands before the scheduler's own: keeps what was scheduled."""
        self._output = self._plain(self._scheduler, *args, **kwargs)
        return self._output

    def _note(self, output: Any, start: float, now: float) -> None:
        """Book an iteration."""
        for new in output.scheduled_new_reqs:
            self._admitted[self._name(new.req_id)] = start
        self._preempted.update(map(self._name, output.preempted_req_ids or ()))
        scheduled: dict[str, int] = output.num_scheduled_tokens
        if not scheduled:
            return
        prefill = decodes = 0
        for request_id, n in scheduled.items():
            name = self._name(request_id)
            if self.tokens[name] and n <= self._most:
                decodes += 1
            else:
                prefill += n
                if self.tokens[name]:
                    self._recomputed[name] += n
        pool, limits = self._scheduler.kv_cache_manager.block_pool, self._engine.limits
        used = limits.kv_capacity - pool.get_num_free_blocks() * limits.page
        kind = MIXED if prefill and decodes else DECODE if decodes else PREFILL
        slots, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        self.iterations.append((start, now - start, kind, prefill, decodes, slots, used, waiting))

    def _end(self, name: str, times: list[float], now: float) -> None:
        request = self.requests[name]
        self.gaps.append([b - a for a, b in pairwise(times)])
        first = times[0] if times else math.nan
        when = (request.arrival, self._admitted.get(name, math.nan), first, now)
        lost = (self._preempted[name], self._recomputed[name])
        self.rows.append(
            (request.id, *when, request.prompt, len(times), request.priority, *lost, 0)
        )


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

    Tokens that are computed again are counted for requests that were preempted while they decoded.

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
    return TimedRecord(
        run.gaps,
        run.rows,
        run.iterations,
        policy=policy.spec if policy is not None else STOCK,
        profile=profile,
        workload=source.label,
        kv_capacity=engine.limits.kv_capacity,
        slots=engine.limits.slots,
        submitted=len(run.requests),
        duration=clock(),
        decisions=decisions,
    )
