"""What the HTML report draws of a run: a few thousand numbers, however long the run was.

Everything is averaged exactly over bins or taken at exact quantiles; nothing is sampled, except
that of very many decisions only those in force at evenly spaced moments are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phasegate.engine.record import DECODE, MIXED, PREFILL, RunRecord
from phasegate.report.summary import Floats, quantiles, request_latencies
from phasegate.report.window import windows

BINS = 240
"""Bins of a timeline: a few pixels of a screen each."""

MOST_DECISIONS = 600
"""More changes of k, N and mode than a person can see."""

SHARES: list[float] = [
    *(i / 100 for i in range(0, 98, 2)),
    *(1 - 0.02 * 10 ** (-i / 8) for i in range(25)),
    1.0,
]
"""Where CDFs are drawn: every 2 %, and the tail down to 2 in 100,000."""


def run_series(record: RunRecord) -> dict[str, Any]:
    """The curves of one run, ready for JSON (times in seconds, four figures; None for nothing).

    Keys: "cdf" (latency name -> values at `SHARES`), "timeline", "decisions", "windows".
    """
    latencies = request_latencies(record)
    cdf = {name: _cdf(values, None) for name, values in latencies.items()}
    cdf["itl"] = _cdf(*record.itl())
    return {
        "cdf": cdf,
        "timeline": _timeline(record),
        "decisions": _decisions(record),
        "windows": windows(record),
    }


def _cdf(values: Floats, weights: NDArray[Any] | None) -> list[float] | None:
    if values.size == 0:
        return None
    return rounded(np.array(quantiles(values, weights, SHARES)))


def _timeline(record: RunRecord) -> dict[str, Any]:
    """Means over `BINS` equal bins of the run: time shares by kind, slots, queue, KV share."""
    iterations = record.iterations
    edges = np.linspace(0.0, max(record.duration, 1e-9), BINS + 1)
    kind = iterations["kind"]
    mean = _BinnedMean(iterations["start"], iterations["duration"], edges)
    return {
        "end": float(edges[-1]),
        "prefill": rounded(mean(kind == PREFILL)),
        "decode": rounded(mean(kind == DECODE)),
        "mixed": rounded(mean(kind == MIXED)),
        "slots": rounded(mean(iterations["slots"])),
        "waiting": rounded(mean(iterations["waiting"])),
        "kv": rounded(mean(iterations["kv_used"] / record.kv_capacity)),
    }


class _BinnedMean:
    """Time averages of quantities that are constant during an iteration and 0 between them."""

    def __init__(self, start: Floats, duration: Floats, edges: Floats) -> None:
        self._duration, self._edges = duration, edges
        # interleave starts and ends; rounding must not make them go back
        breaks = np.column_stack([start, start + duration]).ravel()
        self._breaks = np.maximum.accumulate(breaks)

    def __call__(self, value: NDArray[Any]) -> Floats:
        """The mean of `value` (one entry per iteration) in every bin."""
        if value.size == 0:
            return np.zeros(len(self._edges) - 1)
        after = np.cumsum(value * self._duration)
        integral = np.column_stack([after - value * self._duration, after]).ravel()
        return np.diff(np.interp(self._edges, self._breaks, integral)) / np.diff(self._edges)


def _decisions(record: RunRecord) -> dict[str, Any]:
    """When k, N and mode changed, as parallel lists."""
    changes = record.decisions
    kept: Sequence[int] = range(len(changes))
    times = np.array([time for time, _ in changes])
    if len(changes) > MOST_DECISIONS:
        moments = np.linspace(times[0], max(record.duration, times[-1]), MOST_DECISIONS)
        in_force = np.searchsorted(times, moments, side="right") - 1
        kept = [int(i) for i in np.unique(in_force)]
    return {
        "changes": len(changes),
        "time": rounded(times[list(kept)]) if changes else [],
        "k": [changes[i][1].k for i in kept],
        "n": [min(changes[i][1].n, record.slots) for i in kept],
        "mode": [changes[i][1].mode for i in kept],
    }


def rounded(values: NDArray[Any], figures: int = 4) -> list[float]:
    """Values with so many significant figures: short in JSON, exact on screen."""
    return [float(f"{value:.{figures}g}") for value in values]
