"""`RequestTable`: all requests of a run as arrays, before any of them becomes a `Request`.

Synthetic specs are drawn into a table and trace files are read into one; sources hand its rows
to the engine. A million requests take 40 MB here, and no policy can change what they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import MAX_RATE, MIN_RATE, ClosedLoop, OpenLoop
from phasegate.workload.lengths import MAX_LENGTH, Lengths, format_number


@dataclass(frozen=True, eq=False)
class RequestTable:
    """Requests in the order in which they are sent; all arrays have one entry per request.

    Attributes:
        label: a few words for a person.
        prompt, output: lengths, tokens.
        max_tokens: what the client declares as the most it wants, tokens; >= output.
        priority: smaller is more urgent.
        arrival: clock of the arrival, seconds, non-decreasing, >= 0; None if not (yet) known.
        loop: the closed loop that sends the requests, if there is one (then arrival is None).
        notes: what a person should know about how the table came about, one line each.
    """

    label: str
    prompt: Lengths
    output: Lengths
    max_tokens: Lengths
    priority: Lengths
    arrival: NDArray[np.float64] | None = None
    loop: ClosedLoop | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        prompt: ArrayLike,
        output: ArrayLike,
        *,
        arrival: ArrayLike | None = None,
        priority: ArrayLike = 0,
        max_tokens: ArrayLike | None = None,
        label: str = "requests",
        notes: tuple[str, ...] = (),
    ) -> RequestTable:
        """A table from arrays or lists. Rows are sorted by arrival; ties keep their order.

        Args:
            prompt, output: lengths, tokens.
            arrival: seconds (None: unknown); shifted by nothing.
            priority: one for all or one each.
            max_tokens: one for all or one each; None: the output length. An output longer than
                that is cut there, as a server would.
            label, notes: see the class.

        Raises:
            WorkloadError: no requests, different sizes, lengths outside 1 to MAX_LENGTH, or an
                arrival that is negative or not finite.
        """
        prompts = _whole("prompt", prompt)
        n = prompts.size
        outputs = _whole("output", output)
        if n == 0 or outputs.size != n:
            raise WorkloadError(f"{label}: {n} prompt lengths and {outputs.size} output lengths")
        declared = outputs if max_tokens is None else _whole("max_tokens", max_tokens, n)
        for name, values in (("prompt", prompts), ("output", outputs), ("max_tokens", declared)):
            if values.min() < 1 or values.max() > MAX_LENGTH:
                raise WorkloadError(f"{label}: every {name} has to be from 1 to {MAX_LENGTH}")
        priorities = _whole("priority", priority, n)
        times = None
        if arrival is not None:
            times = np.array(arrival, dtype=np.float64)
            if times.shape != (n,) or not np.all(np.isfinite(times)) or times.min() < 0.0:
                raise WorkloadError(f"{label}: arrival needs {n} finite times >= 0 s")
        table = cls(
            label, prompts, np.minimum(outputs, declared), declared, priorities, times, None, notes
        )
        if times is not None and np.any(np.diff(times) < 0.0):
            table = table._rows(np.argsort(times, kind="stable"))
        return table

    def __len__(self) -> int:
        return self.prompt.size

    @property
    def duration(self) -> float:
        """Seconds from the clock's start to the last arrival; NaN if arrivals are unknown."""
        return math.nan if self.arrival is None else float(self.arrival[-1])

    def first(self, n: int) -> RequestTable:
        """The first `n` requests (all, if there are fewer). Raises WorkloadError if n < 1."""
        if n < 1:
            raise WorkloadError(f"requests={n}: has to be at least 1")
        if n >= len(self):
            return self
        loop = None if self.loop is None else self.loop.before(n)
        return replace(self._rows(slice(0, n)), loop=loop)

    def window(self, start: float = 0.0, end: float = math.inf) -> RequestTable:
        """The requests that arrive in start <= t < end (seconds), with the clock set to 0 at
        `start`. Raises WorkloadError if there are none or arrivals are unknown."""
        times = self._arrivals("a time window")
        low, high = np.searchsorted(times, [start, end])
        if not start >= 0.0 or low >= high:
            raise WorkloadError(
                f"{self.label}: no request arrives from {start} s to {end} s; the requests arrive"
                f" from {times[0]:.3f} s to {times[-1]:.3f} s"
            )
        rows = self._rows(slice(int(low), int(high)))
        return replace(rows, arrival=times[low:high] - start)

    def scaled(self, rate_scale: float) -> RequestTable:
        """The same requests `rate_scale` times as fast (4: a quarter of the time).

        Raises WorkloadError if arrivals are unknown or the factor is not from 1e-6 to 1e9.
        """
        times = self._arrivals("a rate scale")
        if not MIN_RATE <= rate_scale <= MAX_RATE:
            raise WorkloadError(
                f"rate_scale={rate_scale:g}: has to be from {MIN_RATE:g} to {MAX_RATE:g}"
            )
        if rate_scale == 1.0:
            return self
        label = f"{self.label} x{format_number(rate_scale)}"
        with np.errstate(over="ignore"):  # OpenSource says that in a sentence
            return replace(self, label=label, arrival=times / rate_scale)

    def at_rate(self, rate: float, burst: float = 1.0, seed: int = 0) -> RequestTable:
        """The same lengths in the same order with new arrivals (see arrivals.OpenLoop)."""
        if seed < 0:
            raise WorkloadError(f"seed={seed}: has to be 0 or more")
        gaps = OpenLoop(rate, burst).gaps(np.random.default_rng(seed), len(self))
        label = f"{self.label}, {format_number(rate)} requests/s"
        return replace(self, label=label, arrival=np.cumsum(gaps), loop=None)

    def closed(self, concurrency: int) -> RequestTable:
        """The same lengths in the same order, sent by a closed loop of `concurrency`."""
        loop = ClosedLoop(((0, concurrency),))
        label = f"{self.label}, {concurrency} concurrent"
        return replace(self, label=label, arrival=None, loop=loop)

    def declaring(self, max_tokens: int) -> RequestTable:
        """The same requests from a client that declares `max_tokens` for each of them; longer
        outputs are cut there. Raises WorkloadError if max_tokens is outside 1 to MAX_LENGTH."""
        if not 1 <= max_tokens <= MAX_LENGTH:
            raise WorkloadError(f"max_tokens={max_tokens}: has to be from 1 to {MAX_LENGTH}")
        declared = np.full(len(self), max_tokens, dtype=np.int64)
        return replace(self, max_tokens=declared, output=np.minimum(self.output, declared))

    def _arrivals(self, what: str) -> NDArray[np.float64]:
        if self.arrival is None:
            raise WorkloadError(
                f"{self.label}: there are no arrival times, so {what} means nothing;"
                " give a rate or a concurrency"
            )
        return self.arrival

    def _rows(self, rows: slice | NDArray[np.int64]) -> RequestTable:
        return replace(
            self,
            prompt=self.prompt[rows],
            output=self.output[rows],
            max_tokens=self.max_tokens[rows],
            priority=self.priority[rows],
            arrival=None if self.arrival is None else self.arrival[rows],
        )


def _whole(name: str, values: ArrayLike, n: int | None = None) -> Lengths:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise WorkloadError(f"{name}: needs whole numbers, got {array.dtype}")
    if n is not None:
        if array.shape not in ((), (n,)):
            raise WorkloadError(f"{name}: needs one number for all or one for each of {n} requests")
        array = np.broadcast_to(array, (n,))
    elif array.ndim != 1:
        raise WorkloadError(f"{name}: needs a flat list of numbers")
    return array.astype(np.int64)
