"""A server boiled down to slots and lengths: the brute force that the theory is checked against.

It knows nothing of the formulas. Requests decode one token per iteration; the first token comes
from the prefill.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

Draw = Callable[[np.random.Generator, int], np.ndarray]


class Event(NamedTuple):
    """What happened since the event before.

    `iterations` decode iterations passed with `decoding` requests in each; then `finished` ones
    (id, output) left and `started` ones (ids) made their first token in a prefill.
    """

    iterations: int
    decoding: int
    finished: list[tuple[int, int]]
    started: list[int]

    @property
    def tokens(self) -> int:
        return self.iterations * self.decoding + len(self.started)


def geometric(mean: float) -> Draw:
    return lambda rng, size: rng.geometric(1.0 / mean, size)


def uniform(mean: float, half_width: float = 0.5) -> Draw:
    low, high = round(mean * (1 - half_width)), round(mean * (1 + half_width))
    return lambda rng, size: rng.integers(low, high + 1, size)


def lognormal(mean: float, cv: float) -> Draw:
    s2 = np.log1p(cv * cv)
    return lambda rng, size: np.maximum(
        1, np.rint(rng.lognormal(np.log(mean) - s2 / 2, np.sqrt(s2), size))
    ).astype(np.int64)


def serve(
    phases: list[tuple[Draw, int]], slots: int, rng: np.random.Generator, threshold: int = 1
) -> Iterator[Event]:
    """Serve the requests of each phase (law, number), the queue always full, then drain.

    `threshold` freed slots trigger a refill of all of them; once nothing waits, nothing is held.
    """
    outputs = np.concatenate([draw(rng, count) for draw, count in phases]).tolist()
    ends: list[tuple[int, int]] = []
    tick = served = 0
    while served < len(outputs) or ends:
        iterations = ends[0][0] - tick if ends else 0
        decoding = len(ends)
        tick += iterations
        finished: list[tuple[int, int]] = []
        while ends and ends[0][0] == tick:
            _, request = heapq.heappop(ends)
            finished.append((request, outputs[request]))
        started: list[int] = []
        free = slots - len(ends)
        if free >= threshold or not ends:
            for request in range(served, min(served + free, len(outputs))):
                started.append(request)
                heapq.heappush(ends, (tick + outputs[request] - 1, request))
            served += len(started)
        yield Event(iterations, decoding, finished, started)
