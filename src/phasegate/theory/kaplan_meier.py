"""The law of output lengths from running and finished requests (THEORY section 6)."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from phasegate.errors import InputError
from phasegate.theory.lengths import LengthLaw

IntArray = npt.NDArray[np.int64]

_TAIL_CASES = -np.log1p(-(np.arange(8) + 0.5) / 8)
_TAIL_CASES /= _TAIL_CASES.mean()


class KaplanMeier:
    """Left-truncated Kaplan-Meier estimate of the output-length law over a calendar window.

    All requests that were running at some time in the window take part: they enter with the age
    (tokens so far) they had when the window began, and leave with their completion or, censored,
    with the age they have now. That removes the bias of a window of completions.

    The window begins at the completion before the last `window` ones. Ages are kept by a batch
    clock: in a decode iteration every running request gains one token, so `advance` is O(1), and
    so are `start` and `finish`; only `law` looks at all requests.

    Freeze it while draining: nobody young is left then to learn from.
    """

    def __init__(self, window: int = 1000) -> None:
        """Look back over `window` completions."""
        if window < 1:
            raise InputError(f"window: {window} completions; use at least 1")
        self.window = window
        self._tick = 0
        self._began = 0
        self._frozen_at: int | None = None
        # Completed: age at entry, age at the end, tick of entry, tick of the end. A ring.
        self._ring = np.zeros((window, 4), dtype=np.int64)
        self._count = 0
        # Left without completing (aborted, preempted, frozen); same four columns.
        self._censored: deque[tuple[int, int, int, int]] = deque(maxlen=4096)
        # id -> age at entry, tick of entry.
        self._running: dict[int, tuple[int, int]] = {}

    @property
    def completions(self) -> int:
        """Completed requests in the window."""
        return min(self._count, self.window)

    def advance(self, iterations: int) -> None:
        """`iterations` passed in which every running request produced one token."""
        self._tick += iterations

    def start(self, request: int, generated: int = 1) -> None:
        """`request` produced its first token, or, after a preemption, its `generated`-th."""
        self._running[request] = (generated - 1, self._tick)

    def finish(self, request: int, generated: int, complete: bool = True) -> None:
        """`request` left with `generated` tokens; it was cut off unless `complete`."""
        entry, joined = self._running.pop(request, (max(0, generated - 1), self._tick))
        if self._frozen_at is not None:
            self._interrupt(entry, joined, self._frozen_at)
        elif not complete:
            self._censored.append((entry, generated, joined, self._tick))
        else:
            slot = self._count % self.window
            if self._count >= self.window:
                self._began = max(self._began, int(self._ring[slot, 3]))
            self._ring[slot] = (entry, generated, joined, self._tick)
            self._count += 1

    def preempt(self, request: int) -> None:
        """`request` lost its slot; it comes back with `start`. Unknown requests are ignored."""
        if request in self._running:
            entry, joined = self._running.pop(request)
            now = self._tick if self._frozen_at is None else self._frozen_at
            self._interrupt(entry, joined, now)

    def freeze(self) -> None:
        """Stop learning (the server drains). Requests are still followed."""
        if self._frozen_at is None:
            self._frozen_at = self._tick

    def thaw(self) -> None:
        """Learn again: running requests enter with the age they have now."""
        if self._frozen_at is None:
            return
        for request, (entry, joined) in self._running.items():
            self._interrupt(entry, joined, self._frozen_at)
            self._running[request] = (entry + 1 + self._tick - joined, self._tick)
        self._frozen_at = None

    def _interrupt(self, entry: int, joined: int, now: int) -> None:
        if joined < now:
            self._censored.append((entry, entry + 1 + now - joined, joined, now))

    def law(self) -> LengthLaw | None:
        """The estimated law of the output lengths; None before the first completion.

        While the longest requests are still running, the tail beyond them is taken as geometric
        with the hazard of the oldest fifth of the completions.
        """
        if self._count == 0:
            return None
        entry, leave, ended = self._intervals()
        ends, where = np.unique(leave[ended], return_inverse=True)
        deaths = np.bincount(where, minlength=ends.size)
        at_risk = np.searchsorted(np.sort(entry), ends, side="left") - np.searchsorted(
            np.sort(leave), ends, side="left"
        )
        # One death among very few at risk, at an age few were followed through, would write off
        # all older ages (Lai and Ying 1991); only the very last age may end the law.
        kept = (at_risk >= min(5, self.completions)) | (ends == leave.max())
        factor = np.where(kept, 1.0 - deaths / np.maximum(at_risk, deaths), 1.0)
        alive = np.cumprod(factor)
        mass = np.concatenate(([1.0], alive[:-1])) - alive
        values = ends.astype(np.float64)
        if alive[-1] > 1e-9:
            beyond = float(leave.max()) + _TAIL_CASES * self._tail_mean(entry, leave, ends, deaths)
            values = np.concatenate((values, beyond))
            mass = np.concatenate((mass, np.full(_TAIL_CASES.size, alive[-1] / _TAIL_CASES.size)))
        return LengthLaw.of(values, mass)

    def _intervals(self) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Entry age, leave age and completed? of everyone seen in the window."""
        now = self._tick if self._frozen_at is None else self._frozen_at
        done = self._ring[: self.completions]
        lost = np.array(self._censored, dtype=np.int64).reshape(-1, 4)
        here = np.array(list(self._running.values()), dtype=np.int64).reshape(-1, 2)
        here = here[here[:, 1] <= now]
        still = np.column_stack(
            (here[:, 0], here[:, 0] + 1 + now - here[:, 1], here[:, 1], np.full(len(here), now))
        )
        rows = np.concatenate((done, lost, still))
        ended = np.arange(len(rows)) < len(done)
        entry = np.where(
            rows[:, 2] < self._began, rows[:, 0] + 1 + self._began - rows[:, 2], rows[:, 0]
        )
        seen = rows[:, 1] > entry
        return entry[seen], rows[seen, 1], ended[seen]

    @staticmethod
    def _tail_mean(entry: IntArray, leave: IntArray, ends: IntArray, deaths: IntArray) -> float:
        """Mean remaining tokens of a request older than all that completed."""
        older = np.cumsum(deaths[::-1])[::-1]
        old = int(ends[max(0, int(np.searchsorted(-older, -0.2 * older[0], side="right")) - 1)])
        exposure = np.maximum(leave - np.maximum(entry, old - 1), 0).sum()
        return float(exposure) / float(deaths[ends >= old].sum())
