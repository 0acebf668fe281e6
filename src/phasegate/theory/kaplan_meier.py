"""The law of output lengths from finished and running requests (THEORY section 6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phasegate.errors import InputError
from phasegate.theory.lengths import LengthLaw

IntArray = npt.NDArray[np.int64]

_WAITING = -1

# The tail of a law, beyond all that was seen: eight equally likely exponential lengths, mean 1.
_TAIL = -np.log1p(-(np.arange(8) + 0.5) / 8)
_TAIL /= _TAIL.mean()


class KaplanMeier:
    """Kaplan-Meier estimate of the output-length law over the most recently *started* requests.

    A window of completions is no sample of requests: it has too many short ones after a fresh
    start, too many long ones in a drain. The requests that started last are one, whatever the
    server does. Those still running take part as censored: longer than they are now. And since
    requests of the traffic before leave the window by their start, not by their end, long ones
    left over from it do not linger in the estimate (with left truncation, where everyone running
    takes part from the start of the window, they do).

    Ages are kept by a batch clock: in a decode iteration every running request gains one token,
    so `advance` is O(1), and so are `start`, `preempt` and `finish`; only `law` looks at all.
    """

    def __init__(self, window: int = 1000) -> None:
        """Look back over the last `window` + 7/8 of the running requests.

        About `window` of them have completed. After a shift of the traffic the estimate is clean
        when that many have started: with 1,000 and 1,024 slots, within 2,000 completions.
        """
        if window < 1:
            raise InputError(f"window: {window} requests; use at least 1")
        self.window = window
        self._tick = 0
        self._starts = 0
        self._alive: dict[int, int] = {}  # id -> number of its start
        # A ring over the numbers of starts: tokens at the last change; the tick of that change
        # for those that run, else _WAITING; whether it completed.
        self._tokens: IntArray = np.zeros(2 * window, dtype=np.int64)
        self._since: IntArray = np.zeros(2 * window, dtype=np.int64)
        self._complete: npt.NDArray[np.bool_] = np.zeros(2 * window, dtype=np.bool_)

    def advance(self, iterations: int) -> None:
        """`iterations` passed in which every running request produced one token."""
        self._tick += iterations

    def start(self, request: int, generated: int = 1) -> None:
        """`request` produced its first token, or, after a preemption, its `generated`-th."""
        if request in self._alive:
            self._record(self._alive[request], generated, self._tick)
            return
        self._alive[request] = self._starts
        self._starts += 1
        if self.window + len(self._alive) > self._tokens.size:
            self._grow()
        self._record(self._starts - 1, generated, self._tick)

    def preempt(self, request: int) -> None:
        """`request` lost its slot and gains no tokens until `start`. Unknown ones are ignored."""
        number = self._alive.get(request)
        if number is not None and self._kept(number):
            slot = number % self._tokens.size
            since = int(self._since[slot])
            if since != _WAITING:
                self._record(number, int(self._tokens[slot]) + self._tick - since, _WAITING)

    def finish(self, request: int, generated: int, complete: bool = True) -> None:
        """`request` left with `generated` tokens; it was cut off unless `complete`.

        One that was never started counts as a request of that length.
        """
        if request not in self._alive:
            self.start(request, generated)
        self._record(self._alive.pop(request), generated, _WAITING, complete)

    def law(self) -> LengthLaw | None:
        """The estimated law of the output lengths; None before the first completion.

        While the longest requests are still running, the tail beyond them is taken as geometric,
        with the hazard seen over the older ages (the last fifth of the completions, at least 10).
        """
        count = min(self._starts, self.window + 7 * len(self._alive) // 8)
        slots = np.arange(self._starts - count, self._starts) % self._tokens.size
        complete = self._complete[slots]
        since = self._since[slots]
        tokens = self._tokens[slots] + np.where(since == _WAITING, 0, self._tick - since)
        if not complete.any():
            return None
        lengths, deaths = np.unique(tokens[complete], return_counts=True)
        at_risk = count - np.searchsorted(np.sort(tokens), lengths, side="left")
        alive = np.cumprod(1.0 - deaths / at_risk)
        mass = np.concatenate(([1.0], alive[:-1])) - alive
        values = lengths.astype(np.float64)
        if alive[-1] > 1e-9:
            beyond = float(tokens.max()) + _TAIL * _remaining(tokens, lengths, deaths)
            values = np.concatenate((values, beyond))
            mass = np.concatenate((mass, np.full(_TAIL.size, alive[-1] / _TAIL.size)))
        return LengthLaw.of(values, mass)

    def _kept(self, number: int) -> bool:
        return number >= self._starts - self._tokens.size

    def _record(self, number: int, tokens: int, since: int, complete: bool = False) -> None:
        if self._kept(number):
            slot = number % self._tokens.size
            self._tokens[slot] = tokens
            self._since[slot] = since
            self._complete[slot] = complete

    def _grow(self) -> None:
        old, size = self._tokens.size, 2 * self._tokens.size
        numbers = np.arange(max(0, self._starts - 1 - old), self._starts - 1)
        for name in ("_tokens", "_since", "_complete"):
            ring = getattr(self, name)
            larger = np.zeros(size, dtype=ring.dtype)
            larger[numbers % size] = ring[numbers % old]
            setattr(self, name, larger)


def _remaining(tokens: IntArray, lengths: IntArray, deaths: IntArray) -> float:
    """Mean tokens that a request has still before it, once older than all that completed."""
    older = np.cumsum(deaths[::-1])[::-1]
    wanted = max(0.2 * older[0], min(10, older[0]))
    last = int(np.flatnonzero(older >= wanted)[-1])
    from_age = int(lengths[last - 1]) if last else 0
    exposure = np.maximum(tokens - from_age, 0).sum()
    return float(exposure) / float(older[last])
