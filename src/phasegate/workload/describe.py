"""What a workload looks like in numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phasegate.workload.lengths import Lengths
from phasegate.workload.table import RequestTable


class LengthStats(NamedTuple):
    """Lengths in tokens; cv = standard deviation / mean."""

    mean: float
    p50: float
    p99: float
    max: int
    cv: float

    def __str__(self) -> str:
        return (
            f"mean {self.mean:,.0f}, p50 {self.p50:,.0f}, p99 {self.p99:,.0f},"
            f" max {self.max:,}, CV {self.cv:.2f}"
        )


class WorkloadStats(NamedTuple):
    """Summary of a table.

    Attributes:
        requests: how many.
        prompt, output: their lengths.
        duration: seconds from the first to the last arrival; NaN without arrival times.
        rate: requests per second in that time; NaN without arrival times, inf if all at once.
        burst: coefficient of variation of the gaps; NaN for fewer than two gaps.
        concurrency: smallest and largest of the closed loop, None if there is no loop.
    """

    requests: int
    prompt: LengthStats
    output: LengthStats
    duration: float
    rate: float
    burst: float
    concurrency: tuple[int, int] | None

    def __str__(self) -> str:
        plural = "" if self.requests == 1 else "s"
        lines = [f"{self.requests:,} request{plural}{self._traffic()}"]
        lines += [f"prompt tokens: {self.prompt}", f"output tokens: {self.output}"]
        return "\n".join(lines)

    def _traffic(self) -> str:
        if self.concurrency is not None:
            low, high = self.concurrency
            return f", {low} to {high} concurrent" if low < high else f", {low} concurrent"
        if math.isnan(self.rate):
            return ", no arrival times"
        if math.isinf(self.rate):
            return ", all at once"
        burst = "" if math.isnan(self.burst) else f", CV of the gaps {self.burst:.2f}"
        return f" in {self.duration:,.1f} s: {self.rate:.3g} requests/s{burst}"


def describe(table: RequestTable) -> WorkloadStats:
    """Lengths and traffic of a table; `str` of the result is three lines for a person."""
    duration = rate = burst = math.nan
    if table.arrival is not None:
        gaps = np.diff(table.arrival)
        duration = float(gaps.sum())
        rate = len(gaps) / duration if duration > 0.0 else math.inf
        if len(gaps) > 1 and duration > 0.0:
            burst = float(gaps.std() / gaps.mean())
    levels = None
    if table.loop is not None:
        values = [concurrency for _, concurrency in table.loop.steps]
        levels = (min(values), max(values))
    return WorkloadStats(
        len(table), _lengths(table.prompt), _lengths(table.output), duration, rate, burst, levels
    )


def _lengths(values: Lengths) -> LengthStats:
    p50, p99 = np.quantile(values, [0.5, 0.99])
    mean = float(values.mean())
    return LengthStats(mean, float(p50), float(p99), int(values.max()), float(values.std()) / mean)
