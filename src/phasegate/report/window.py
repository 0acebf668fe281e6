"""Close-ups of a run: a few hundred iterations one by one, and which request sat in which slot."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from phasegate.engine.record import RunRecord

ITERATIONS = 240
"""Iterations of a close-up; each is a few pixels wide."""

LANES = 40
"""Slots shown in a close-up."""


def windows(record: RunRecord) -> list[dict[str, Any]]:
    """Close-ups of the start, the middle and the end (of all, if the run is short)."""
    count = len(record.iterations["start"])
    if count == 0:
        return []
    if count <= ITERATIONS:
        return [_window(record, "all", 0, count)]
    middle = int(np.searchsorted(record.iterations["start"], record.duration / 2))
    middle = min(max(middle - ITERATIONS // 2, 0), count - ITERATIONS)
    return [
        _window(record, name, first, first + ITERATIONS)
        for name, first in (("start", 0), ("middle", middle), ("end", count - ITERATIONS))
    ]


def _window(record: RunRecord, name: str, first: int, last: int) -> dict[str, Any]:
    """Iterations [first, last) with the requests that ran meanwhile; times since "origin"."""
    part = {key: column[first:last] for key, column in record.iterations.items()}
    origin = float(part["start"][0])
    end = float(part["start"][-1] + part["duration"][-1])
    return {
        "name": name,
        "origin": origin,
        "span": end - origin,
        "first": first,
        "start": _short(part["start"] - origin),
        "duration": _short(part["duration"]),
        "kind": part["kind"].astype(int).tolist(),
        "prefill": part["prefill_tokens"].astype(int).tolist(),
        "decodes": part["decodes"].astype(int).tolist(),
        "waiting": part["waiting"].astype(int).tolist(),
        "lanes": _lanes(record, origin, end),
    }


def _lanes(record: RunRecord, start: float, end: float) -> list[list[float]]:
    """Rows [lane, admitted, first token, end, prompt, output, preemptions] of the requests that
    held a slot between `start` and `end`, times since `start`.

    The engine does not number its slots. A request gets the lowest lane that is free when it is
    admitted; only the first `LANES` lanes are returned.
    """
    requests = record.requests
    admitted, ended = requests["admitted"], requests["end"]
    rows = np.flatnonzero((admitted < end) & (ended > start))
    rows = rows[np.argsort(admitted[rows], kind="stable")]
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes: list[list[float]] = []
    for row in rows:
        while busy and busy[0][0] <= admitted[row]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float(ended[row]), lane))
        if lane >= LANES:
            continue
        first = requests["first_token"][row]
        if np.isnan(first):  # aborted during its prefill
            first = ended[row]
        times = _short(np.array([admitted[row], first, ended[row]]) - start)
        sizes = (requests[name][row] for name in ("prompt", "output", "preemptions"))
        lanes.append([lane, *times, *(int(size) for size in sizes)])
    return lanes


def _short(seconds: Any) -> list[float]:
    """Seconds rounded to 10 us, far below a pixel."""
    return [round(float(value), 5) for value in seconds]
