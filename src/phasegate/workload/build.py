"""The short way from a spec or a trace to a source."""

from __future__ import annotations

import math
from pathlib import Path

from phasegate.errors import WorkloadError
from phasegate.workload.draw import draw
from phasegate.workload.source import ClosedSource, OpenSource, source_of
from phasegate.workload.spec import WorkloadSpec
from phasegate.workload.table import RequestTable
from phasegate.workload.traces import read_trace


def make_source(
    spec: WorkloadSpec | str,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> OpenSource | ClosedSource:
    """The source of a synthetic workload.

    Args:
        spec: a spec or its text.
        rate, concurrency, requests: what the spec leaves open, see WorkloadSpec.resolve.
        seed: the same seed gives the same requests.

    Raises:
        WorkloadError: the spec or an argument makes no sense.
    """
    if isinstance(spec, str):
        spec = WorkloadSpec.parse(spec)
    resolved = spec.resolve(rate=rate, concurrency=concurrency, requests=requests)
    return source_of(draw(resolved, seed))


def trace_source(
    trace: RequestTable | str | Path,
    *,
    rate_scale: float | None = None,
    rate: float | None = None,
    burst: float | None = None,
    concurrency: int | None = None,
    start: float = 0.0,
    end: float = math.inf,
    requests: int | None = None,
    max_tokens: int | None = None,
    seed: int = 0,
) -> OpenSource | ClosedSource:
    """The source of recorded traffic: first the time window, then the first requests of it.

    At most one of the three says when requests arrive; with none of them they arrive as recorded.

    Args:
        trace: a file (see traces.read_trace) or a table.
        rate_scale: recorded times, but so many times as fast (4: a quarter of the time).
        rate: recorded lengths in recorded order, new times: so many requests per second ...
        burst: ... with this coefficient of variation of the gaps (None: 1, Poisson).
        concurrency: recorded lengths in recorded order, sent by a closed loop.
        start, end: only what was recorded in start <= t < end, seconds after the first request.
        requests: only the first so many.
        max_tokens: what the client declares for every request (None: the output length).
        seed: of the new times.

    Raises:
        WorkloadError: the file or an argument makes no sense, or the arguments contradict.
    """
    ways = {"rate_scale": rate_scale, "rate": rate, "concurrency": concurrency}
    given = [f"{name}={value}" for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise WorkloadError(f"{' and '.join(given)} exclude each other; give one")
    if burst is not None and rate is None:
        raise WorkloadError(f"burst={burst}: needs a rate; a trace has its own gaps")
    windowed = start != 0.0 or end != math.inf
    if isinstance(trace, RequestTable):
        table = trace
    else:
        table = read_trace(trace, limit=None if windowed else requests)
    if windowed:
        table = table.window(start, end)
    if requests is not None:
        table = table.first(requests)
    if max_tokens is not None:
        table = table.declaring(max_tokens)
    if rate_scale is not None:
        table = table.scaled(rate_scale)
    elif rate is not None:
        table = table.at_rate(rate, 1.0 if burst is None else burst, seed)
    elif concurrency is not None:
        table = table.closed(concurrency)
    return source_of(table)
