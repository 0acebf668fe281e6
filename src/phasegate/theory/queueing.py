"""Small facts of batching and queueing, for planning and for reports (THEORY section 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from phasegate.errors import InputError
from phasegate.theory.lengths import LengthLaw


def static_idle_shares(lengths: Sequence[float]) -> list[float]:
    """Share of the time that each slot of a static batch idles until the longest request ends.

    Args:
        lengths: output tokens of the requests bound together.
    """
    longest = _longest(lengths)
    return [1.0 - length / longest for length in lengths]


def static_idle_share(lengths: Sequence[float]) -> float:
    """Share of a static batch's slot time that is idle: 1 - mean/max."""
    return 1.0 - sum(lengths) / (len(lengths) * _longest(lengths))


def expected_longest(law: LengthLaw, n: int) -> float:
    """E[max] of n independent lengths, tokens."""
    if n < 1:
        raise InputError(f"n: {n} requests; use at least 1")
    reached = 0.0
    last = total = 0.0
    for value, weight in zip(law.values.tolist(), law.weights.tolist(), strict=True):
        reached += weight
        power = min(1.0, reached) ** n
        total += value * (power - last)
        last = power
    return total


def continuous_gain(law: LengthLaw, n: int) -> float:
    """Decode throughput of continuous batching over static batches of n: E[max]/mean.

    An upper bound, for padded static batches and a queue that never runs dry: 5x needs
    lengths of which the longest of n is at least five times the mean.
    """
    return expected_longest(law, n) / law.mean


def concurrency(rate: float, residence: float) -> float:
    """Little's law L = lambda*W: requests in the system.

    Args:
        rate: requests/s.
        residence: seconds that a request spends in the system.
    """
    return rate * residence


def residence(rate: float, concurrency: float) -> float:
    """Little's law, W = L/lambda: seconds in the system; queueing shows in the TTFT."""
    if rate <= 0:
        raise InputError(f"rate: {rate:g} requests/s must be above 0")
    return concurrency / rate


def token_rate_bound(n: int, itl: float) -> float:
    """Output tokens/s that n slots reach at most with `itl` seconds between tokens: n/itl.

    Prefill comes on top, so a server stays below it.
    """
    if itl <= 0:
        raise InputError(f"itl: {itl:g} s must be above 0")
    return n / itl


def prefill_stall(prefill: float, chunks: int = 1) -> float:
    """Seconds that a prefill adds to an inter-token gap of everyone who decodes meanwhile.

    Cut into `chunks` it delays as many gaps, each by its share. The fixed cost of an iteration
    is not in it; the TTFT of the prompt grows by that and by the decodes in between.

    Args:
        prefill: seconds of the whole prompt in one iteration.
        chunks: iterations over which it is spread.
    """
    if chunks < 1:
        raise InputError(f"chunks: {chunks}; use at least 1")
    return prefill / chunks


def replicas(rate: float, rate_per_replica: float) -> int:
    """Servers needed for `rate` when one holds its SLO up to `rate_per_replica` (requests/s)."""
    if rate_per_replica <= 0 or rate < 0:
        raise InputError("rate: needs rate >= 0 and rate_per_replica > 0 requests/s")
    return max(1, math.ceil(rate / rate_per_replica - 1e-9))


def _longest(lengths: Sequence[float]) -> float:
    if not lengths or min(lengths) < 0 or max(lengths) <= 0:
        raise InputError("lengths: need at least one request with an output token, none negative")
    return max(lengths)
