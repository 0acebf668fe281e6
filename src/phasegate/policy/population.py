"""Who drives the traffic: people who come when they like, or clients that wait for answers.

In a closed loop (a batch job, an evaluation, a load test) a new request comes when one ends. The
number in the system then stands still, waiting for a slot costs nothing but throughput, and the
mean E2E latency is number/throughput (Little). In an open loop requests come by themselves, the
number wanders, and someone who could be served is waiting.
"""

from __future__ import annotations

_WINDOW = 16  # completions
_STEADY = 5  # windows in a row; independent arrivals look steady for so long once in 1,000 times
_CROWD = 4  # a smaller number hardly moves, whoever drives it
_BURST = 4  # requests that come together at the very start: somebody has a list


class Population:
    """Tells closed from open loops by how the number of requests in the system moves.

    Attributes:
        closed: requests come when others end.
    """

    def __init__(self) -> None:
        self.closed = False
        self._streak = -1
        self._completions = 0
        self._size = 0

    def see(self, size: int, completions: int) -> None:
        """`size` requests wait or run now, `completions` have ended in all."""
        if self._streak < 0:
            self._streak = _STEADY if size >= _BURST else 0
            self._size = size
            self.closed = self._streak >= _STEADY
        elif completions - self._completions >= _WINDOW:
            self._completions = completions
            still = abs(size - self._size) <= 1 and size >= _CROWD
            self._streak = self._streak + 1 if still else 0
            self._size = size
            self.closed = self._streak >= _STEADY
