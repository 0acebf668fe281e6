"""Goodput: requests per second that meet their latency targets, at the best offered rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phasegate.cost.model import CostModel
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Policy
from phasegate.report.summary import quantiles
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, source_of

STEP = 1.06
"""Ratio of neighbouring offered rates."""


@dataclass(frozen=True)
class Goodput:
    """One run at one offered rate.

    Attributes:
        rate: offered, requests per second.
        good: requests per second that met both targets.
        itl_p99: P99 of all inter-token latencies, seconds.
        e2e: mean, seconds.
    """

    rate: float
    good: float
    itl_p99: float
    e2e: float


def measure(record: RunRecord, itl: float, ttft: float) -> Goodput:
    """A request is good if its TTFT and the P99 of its inter-token latencies meet the targets."""
    requests = record.requests
    arrivals = requests["arrival"]
    quick = requests["first_token"] - arrivals <= ttft
    good = 0
    for row in np.flatnonzero(quick & (requests["status"] == 0)):
        gaps = record.itl_values(int(row))
        good += int((gaps > itl).sum() <= 0.01 * gaps.size)
    values, weights = record.itl()
    p99 = quantiles(values, weights, (0.99,))[0] if values.size else 0.0
    span = float(arrivals.max())
    e2e = float(np.nanmean(requests["end"] - arrivals))
    return Goodput(len(arrivals) / span, good / span, p99, e2e)


def best_goodput(
    table: RequestTable,
    cost: Callable[[], CostModel],
    limits: Limits,
    policy: Callable[[], Policy],
    itl: float,
    ttft: float,
    start: float,
) -> Goodput:
    """The best run over offered rates, from `start` requests/s on in both directions.

    `cost` and `policy` make a fresh engine and policy for each run.
    """

    def at(rate: float) -> Goodput:
        record = simulate(cost(), source_of(table.at_rate(rate, seed=7)), policy(), limits)
        return measure(record, itl, ttft)

    best = at(start)
    for ratio in (STEP, 1.0 / STEP):
        rate, worse = start, 0
        while worse < 3 and 0.05 * start < rate < 4.0 * start:
            rate *= ratio
            found = at(rate)
            worse = 0 if found.good > best.good else worse + 1
            best = max(best, found, key=lambda g: g.good)
            if ratio < 1.0 and found.good >= 0.999 * found.rate and rate < best.good:
                break
    return best
