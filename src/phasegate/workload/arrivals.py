"""When requests arrive: open loop (a rate, more or less bursty) or closed loop (concurrency)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from phasegate.errors import WorkloadError
from phasegate.workload.lengths import format_number

MIN_RATE, MAX_RATE = 1e-6, 1e9
"""Rates that can be simulated, requests/s: beyond, the clock would lose the milliseconds of an
iteration, or all requests come at once (which `inf` says)."""


def check_rate(rate: float) -> float:
    """`rate`, requests/s, if it can be simulated. Raises WorkloadError."""
    if not (MIN_RATE <= rate <= MAX_RATE or rate == math.inf):
        raise WorkloadError(
            f"rate={format_number(rate)}: has to be from {MIN_RATE:g} to {MAX_RATE:g} requests/s,"
            " or inf (all at once)"
        )
    return rate


@dataclass(frozen=True)
class OpenLoop:
    """Arrivals that do not wait for answers: independent gaps of mean 1/rate.

    Attributes:
        rate: requests per second; math.inf sends everything at once.
        cv: coefficient of variation of the gaps, which are gamma distributed. 1 is a Poisson
            process, larger is burstier, 0 is a metronome.
    """

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not 0.0 <= self.cv <= 100.0:
            raise WorkloadError(f"burst={self.cv}: the CV of the gaps has to be from 0 to 100")

    def gaps(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """`n` times between one arrival and the next, seconds."""
        mean = 1.0 / self.rate
        if self.cv < 1e-6 or mean == 0.0:  # below, the shape leaves the range of a float
            return np.full(n, mean)
        shape = self.cv**-2
        return rng.standard_gamma(shape, n) * (mean / shape)


@dataclass(frozen=True)
class ClosedLoop:
    """Arrivals that wait for answers: a fixed number of requests is in the system.

    Attributes:
        steps: (first request, concurrency) pairs in order, the first one (0, C): from that
            request on, a request is sent as soon as fewer than C are in the system.
    """

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        firsts = [first for first, _ in self.steps]
        if not firsts or firsts[0] != 0 or any(b <= a for a, b in pairwise(firsts)):
            raise ValueError(f"steps have to start at request 0 and to grow, got {self.steps}")
        for _, concurrency in self.steps:
            if concurrency < 1:
                raise WorkloadError(f"concurrency={concurrency}: has to be at least 1")

    def stages(self, total: int) -> list[tuple[int, int]]:
        """The loop as (end, concurrency) pairs: C holds for the requests before `end`."""
        ends = [first for first, _ in self.steps[1:]] + [total]
        return [(end, concurrency) for end, (_, concurrency) in zip(ends, self.steps, strict=True)]

    def before(self, total: int) -> ClosedLoop:
        """The same loop for only the first `total` requests (at least 1)."""
        return ClosedLoop(tuple(step for step in self.steps if step[0] < total))
