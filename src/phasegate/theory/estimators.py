"""Estimating the traffic while serving: mean output, hazard, prompt lengths (THEORY section 6).

A window of *completions* is not a sample of requests: after a fresh start the short ones finish
first (the hazard looks up to 20 times too high), while draining only long ones are left. So the
default counts tokens too: `OccurrenceExposure` here, `KaplanMeier` in its own file.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from phasegate.errors import InputError


class OccurrenceExposure:
    """Hazard and mean of the output length: completions per generated token, same time window.

    THEORY section 6 (ours). For geometric lengths unbiased at every moment - warm-up, steady
    state and drain - because a request that is still running counts with the tokens it has made.
    For other laws the drain holds back the short requests, so set `frozen` while draining.

    The window is kept as `buckets` pieces of calendar time, each with its tokens and its
    completions; `add` costs O(1), memory is bounded.

    Attributes:
        frozen: while True, `add` ignores what it is given.
    """

    __slots__ = (
        "_bucket",
        "_buckets",
        "_done",
        "_done_now",
        "_tokens",
        "_tokens_now",
        "frozen",
        "window",
    )

    def __init__(self, window: int = 1000, buckets: int = 10) -> None:
        """Remember the last `window` completions, give or take one of the `buckets`."""
        if window < 1 or not 1 <= buckets <= window:
            raise InputError(
                f"window: {window} completions in {buckets} buckets; use 1 <= buckets <= window"
            )
        self.window = window
        self.frozen = False
        self._bucket = -(-window // buckets)
        self._buckets: deque[tuple[int, int]] = deque()
        self._tokens = self._done = 0
        self._tokens_now = self._done_now = 0

    def add(self, tokens: int, completions: int) -> None:
        """One step: output tokens generated (first tokens included) and requests completed.

        The tokens of a request that is aborted count; its end does not.
        """
        if self.frozen:
            return
        self._tokens += tokens
        self._done += completions
        self._tokens_now += tokens
        self._done_now += completions
        if self._done_now >= self._bucket:
            self._buckets.append((self._tokens_now, self._done_now))
            self._tokens_now = self._done_now = 0
            while self._done - self._buckets[0][1] >= self.window:
                old_tokens, old_done = self._buckets.popleft()
                self._tokens -= old_tokens
                self._done -= old_done

    @property
    def tokens(self) -> int:
        """Tokens generated in the window."""
        return self._tokens

    @property
    def completions(self) -> int:
        """Requests completed in the window."""
        return self._done

    @property
    def rate(self) -> float:
        """p_0, the probability that a request ends with a token; 0 before any completion."""
        return self._done / self._tokens if self._tokens else 0.0

    @property
    def mean(self) -> float:
        """mu_O = 1/rate, tokens; infinite before any completion."""
        return self._tokens / self._done if self._done else math.inf


class HazardFit(NamedTuple):
    """h(t) = p0 + eta*t, per iteration, and the plain mean of the window, tokens."""

    p0: float
    eta: float
    mean: float


class PaperHazard:
    """The paper's hazard estimator over a window of recent completions (arXiv 2606.00516).

    h(t) = #{O = t} / #{O >= t}; weighted least squares of p0 + eta*t on [1, t95], the weights
    being the numbers at risk. Biased whenever completions are not a sample of requests; used by
    the paper's rule only.
    """

    __slots__ = ("_outputs",)

    def __init__(self, window: int = 500) -> None:
        """Remember the last `window` completions."""
        if window < 1:
            raise InputError(f"window: {window} completions; use at least 1")
        self._outputs: deque[int] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, output: int) -> None:
        """A request completed with `output` tokens (at least 1)."""
        self._outputs.append(output)

    def fit(self) -> HazardFit:
        """Fit the window; the cost is that of its longest length.

        Raises:
            InputError: nothing was added yet.
        """
        if not self._outputs:
            raise InputError("hazard: no completion to fit")
        outputs = np.fromiter(self._outputs, dtype=np.int64, count=len(self._outputs))
        mean = float(outputs.mean())
        last = max(1, int(np.quantile(outputs, 0.95)))
        ends = np.bincount(outputs, minlength=last + 1)
        at_risk = outputs.size - np.concatenate(([0], np.cumsum(ends)[:-1]))
        t = np.arange(1, last + 1, dtype=np.float64)
        weight = at_risk[1 : last + 1].astype(np.float64)
        hazard = ends[1 : last + 1] / weight
        total = weight.sum()
        t_mean = float(weight @ t) / total
        spread = float(weight @ (t - t_mean) ** 2)
        level = float(weight @ hazard) / total
        eta = float(weight @ ((t - t_mean) * hazard)) / spread if spread > 0 else 0.0
        return HazardFit(level - eta * t_mean, eta, mean)


class RecentLengths:
    """Moments of the last `window` lengths, O(1) per length. For prompt lengths: arrivals are an
    unbiased sample of requests."""

    __slots__ = ("_lengths", "_sums")

    def __init__(self, window: int = 1000) -> None:
        """Remember the last `window` lengths."""
        if window < 1:
            raise InputError(f"window: {window} lengths; use at least 1")
        self._lengths: deque[int] = deque(maxlen=window)
        self._sums = [0, 0, 0, 0]

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, length: int) -> None:
        """A length, tokens (an integer, so that the sums stay exact)."""
        sums = self._sums
        lengths = self._lengths
        if len(lengths) == lengths.maxlen:
            old = lengths[0]
            square = old * old
            sums[0] -= old
            sums[1] -= square
            sums[2] -= square * old
            sums[3] -= square * square
        lengths.append(length)
        square = length * length
        sums[0] += length
        sums[1] += square
        sums[2] += square * length
        sums[3] += square * square

    @property
    def moments(self) -> tuple[float, float, float, float]:
        """E[X], ..., E[X^4], tokens^r.

        Raises:
            InputError: nothing was added yet.
        """
        n = len(self._lengths)
        if n == 0:
            raise InputError("lengths: none seen yet")
        first, second, third, fourth = self._sums
        return first / n, second / n, third / n, fourth / n

    @property
    def mean(self) -> float:
        """Mean, tokens; see `moments`."""
        return self.moments[0]

    @property
    def std(self) -> float:
        """Standard deviation, tokens; see `moments`."""
        first, second, _, _ = self.moments
        return math.sqrt(max(0.0, second - first * first))
