"""Iteration costs learned while serving.

Kinds of iterations, each linear in what it holds:

    prefill-only   T = alpha_p + beta_p*n_p + beta_q*Q
    decode-only    T = alpha_d + b_d*n_d + k_d*X      (+ flip in the first one after a prefill-only)
    mixed          T = alpha_m + beta_m*n_p + beta_q*Q + b_d*n_d + k_m*X

This is the interference form of THEORY section 1 (alpha_m = alpha_d, beta_m = beta_p,
k_m = kappa*k_d) with freedom where real engines deviate: a mixed iteration is measured as such,
not composed, and going from prefill to decode may have a price of its own (engines that keep the
batch in arrays rebuild them). Fitted by weighted least squares (ours): errors count relative to
T, outliers beyond 3 sigma count less (Huber), constants are not negative, and what the data do
not tell stays where the prior had it.

Old data fade, but per kind *and size class*: an engine that has run 500 decodes per iteration
for an hour still knows what ten of them cost, and hence what the fixed part alpha is. When
a kind of iteration is off again and again in the same direction, the engine has changed, and what
was learned about that kind is all but dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from phasegate.cost.model import CostModel
from phasegate.policy.base import StepReport

Array = npt.NDArray[np.float64]

PREFILL, DECODE, MIXED, FLIP = 0, 1, 2, 3
"""Kinds of iterations; FLIP: decode-only, right after a prefill-only one."""

NAMES = ("alpha_p", "beta_p", "beta_q", "alpha_d", "b_d", "k_d", "alpha_m", "beta_m", "k_m", "flip")
_OF_KIND = ((0, 1, 2), (3, 4, 5), (6, 7, 2, 4, 8), (3, 4, 5, 9))
_WHERE = tuple(np.ix_(columns, columns) for columns in _OF_KIND)

SAMPLE = 4
"""After the first 64 decode-only iterations, one in so many is looked at: they come in long,
uniform runs."""

_ALL = 64
_PERIOD = 16  # rows between two solutions
_FADE = 1.0 - 1.0 / 400.0  # per row of the same kind and size class
_HUBER = 3.0  # sigma
_SIGMA_START, _SIGMA_MIN, _SIGMA_RATE = 0.05, 0.01, 0.05
_FIRST = 4  # rows of a kind that are compared with the prior only: no sign of scatter
_DRIFT_RATE, _DRIFT_LIMIT, _DRIFT_KEEP = 0.15, 1.5, 0.02

_TRUST = 1.5  # prior: standard deviation relative to a constant; x0.2..x5 is nothing unusual
_TRUST_CONFIRMED = 0.3
_TRUST_NOTHING = 30.0
_COMPARED = 16  # rows of a kind that tell whether the prior is right
_CONFIRMED = 0.15  # relative; single rows scatter
_TIES = ((6, 3, 0.5), (7, 1, 0.04), (8, 5, 1.0))  # mixed constants resemble the pure ones


@dataclass(frozen=True, slots=True)
class Prior:
    """First guess of the constants (order of `NAMES`), and how far it is trusted.

    Attributes:
        constants: seconds per iteration, token, token^2, request, context token.
        spread: standard deviation of the guess, relative.
    """

    constants: tuple[float, ...]
    spread: float

    @classmethod
    def of(cls, cost: CostModel) -> Prior:
        """From any cost model, by evaluating it at a typical size."""
        alpha_p, alpha_d = cost.alpha_prefill, cost.alpha_decode
        tokens, decodes, context = 2048.0, 32.0, 32.0 * 1024.0
        attention = tokens * 1024.0
        beta_p = (cost.seconds(tokens, 0.0, 0, 0.0) - alpha_p) / tokens
        beta_q = (cost.seconds(tokens, attention, 0, 0.0) - alpha_p) / attention - (
            beta_p * tokens / attention
        )
        b_d = (cost.seconds(0, 0.0, decodes, 0.0) - alpha_d) / decodes
        k_d = (cost.seconds(0, 0.0, decodes, context) - alpha_d - b_d * decodes) / context
        mixed = cost.seconds(tokens, 0.0, decodes, context)
        bare = cost.seconds(tokens, 0.0, decodes, 0.0)
        k_m = (mixed - bare) / context
        alpha_m = bare - b_d * decodes - beta_p * tokens
        constants = (alpha_p, beta_p, beta_q, alpha_d, b_d, k_d, alpha_m, beta_p, k_m, 0.0)
        return cls(tuple(max(0.0, c) for c in constants), _TRUST)

    @classmethod
    def unknown(cls) -> Prior:
        """No idea at all: the order of magnitude of an 8B model on a current GPU."""
        alpha, beta, k = 8e-3, 40e-6, 60e-9
        return cls((alpha / 2, beta, 0.0, alpha, beta, k, alpha, beta, k, 0.0), _TRUST_NOTHING)


class OnlineCost:
    """A cost model that learns from every step; starts at a prior.

    Attributes:
        version: grows by one with every new solution.
        rows: iterations looked at so far, per kind (PREFILL, DECODE, MIXED, FLIP).
        sigma: scatter of the iterations around the model, relative, per kind.
        drifts: how often a kind of iteration was found to have changed.
    """

    def __init__(self, prior: Prior) -> None:
        self.version = 0
        self.rows = [0] * len(_OF_KIND)
        self.sigma = [_SIGMA_START] * len(_OF_KIND)
        self.drifts = 0
        scale = np.array(prior.constants)
        # Constants that are 0 in the prior need a scale to be learned on: prompt tokens as in
        # `Prior.unknown`, beta_q such that attention equals the rest of the work at 100k tokens,
        # flip like a prefill.
        alpha = np.max(scale[[0, 3]])
        floor = np.where(scale > 0, 0.0, 1e-6 * alpha)
        beta_p, alpha_p = scale[1] or alpha / 200, scale[0] or alpha
        sizes = {"beta_p": beta_p, "beta_m": beta_p, "beta_q": beta_p / 1e5, "flip": alpha_p}
        for name, size in sizes.items():
            i = NAMES.index(name)
            floor[i] = size if scale[i] == 0 else 0.0
        self._scale = scale + floor
        self._scales: list[float] = self._scale.tolist()
        self._theta: list[float] = scale.tolist()
        self._start, self._spread = scale / self._scale, prior.spread
        self._prior: list[float] = scale.tolist()
        self._off = [0.0] * len(_OF_KIND)  # ln(real / expected from the prior), summed
        self._compared = [0] * len(_OF_KIND)
        ridge, _ = _prior_terms(self._start, np.ones(len(NAMES)), prior.spread)
        self._covariance = np.linalg.inv(ridge)
        self._gram: list[dict[int, list[float]]] = [{} for _ in _OF_KIND]
        self._drift = [0.0] * len(_OF_KIND)
        self._last = [0.0] * len(_OF_KIND)
        self._since = 0
        self._next = 4
        self._decodes_seen = 0
        self._after_prefill = False

    # ------------------------------------------------------------------ constants
    def __getitem__(self, name: str) -> float:
        """A constant by its name in `NAMES`."""
        return self._theta[NAMES.index(name)]

    @property
    def constants(self) -> dict[str, float]:
        """All constants by name."""
        return dict(zip(NAMES, self._theta, strict=True))

    @property
    def alpha_prefill(self) -> float:
        """See CostModel."""
        return self._theta[0]

    @property
    def alpha_decode(self) -> float:
        """See CostModel."""
        return self._theta[3]

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        th = self._theta
        if decodes > 0:
            if prefill_tokens > 0:
                return (
                    th[6]
                    + th[7] * prefill_tokens
                    + th[2] * prefill_attention
                    + th[4] * decodes
                    + th[8] * context
                )
            return th[3] + th[4] * decodes + th[5] * context
        if prefill_tokens > 0:
            return th[0] + th[1] * prefill_tokens + th[2] * prefill_attention
        return 0.0

    def error_of(self, weights: Sequence[float]) -> float:
        """Standard error of the sum of weights * constants (order of `NAMES`), seconds."""
        w = np.array(weights) * self._scale
        return math.sqrt(max(float(w @ self._covariance @ w), 0.0))

    @property
    def confirmed(self) -> bool:
        """Whether iterations of each kind took what the prior says, as far as they were seen:
        the prior is one of this engine, not a guess."""
        if self._spread > _TRUST or self.drifts or not (self.rows[PREFILL] and self.rows[DECODE]):
            return False
        return all(
            abs(off) <= _CONFIRMED * count
            for off, count in zip(self._off, self._compared, strict=True)
        )

    def drift(self, kind: int) -> float:
        """How far the last rows of a kind were off in one direction, in units of sigma."""
        return self._drift[kind]

    def surprise(self, kind: int) -> float:
        """How far the last row of a kind was off, in units of sigma."""
        return self._last[kind]

    # ------------------------------------------------------------------ learning
    @property
    def steady_for(self) -> int:
        """Decode-only iterations for which the constants surely stay as they are."""
        seen = self._decodes_seen
        if seen < _ALL or self._after_prefill:
            return 1
        return SAMPLE - seen % SAMPLE + (self._next - self._since - 1) * SAMPLE

    def observe(self, step: StepReport) -> None:
        """Learn from a step, one row per iteration (decode-only: one row in `SAMPLE`)."""
        decodes, tokens = step.decodes, step.prefill_tokens
        if tokens:
            seconds = step.durations[0]
            if decodes:
                size = (1.0, tokens, step.prefill_attention, decodes, step.context_tokens)
                self._row(MIXED, tokens, size, seconds)
            else:
                self._row(PREFILL, tokens, (1.0, tokens, step.prefill_attention), seconds)
            self._after_prefill = not decodes
            return
        if not decodes:
            return
        seen = self._decodes_seen
        self._decodes_seen = seen + step.iterations
        durations = step.durations
        flipped, self._after_prefill = self._after_prefill, False
        if flipped:
            self._row(FLIP, decodes, (1.0, decodes, step.context_tokens, 1.0), durations[0])
        count = len(durations)
        early = min(count, max(0, _ALL - seen))
        late = range(early + (SAMPLE - 1 - seen - early) % SAMPLE, count, SAMPLE)
        for i in chain(range(early), late):
            if flipped and not i:
                continue
            amounts = (1.0, decodes, step.context_tokens + i * decodes)
            self._row(DECODE, decodes, amounts, durations[i])

    def _row(self, kind: int, size: float, composition: tuple[float, ...], seconds: float) -> None:
        if not 0.0 < seconds < math.inf:
            return
        columns, theta, scale = _OF_KIND[kind], self._theta, self._scales
        if self._compared[kind] < _COMPARED:
            prior = sum(
                self._prior[c] * amount for c, amount in zip(columns, composition, strict=True)
            )
            self._compared[kind] += 1
            self._off[kind] += math.log(seconds / prior) if prior > 0.0 else math.inf
        expected = 0.0
        x = []
        for column, amount in zip(columns, composition, strict=True):
            expected += theta[column] * amount
            x.append(scale[column] * amount / seconds)
        error = (seconds - expected) / seconds
        sigma = self.sigma[kind]
        ratio = error / sigma
        weight = 1.0
        if self.rows[kind] >= _FIRST:
            if not -_HUBER < ratio < _HUBER:
                weight = _HUBER / abs(ratio)
            self._follow(kind, ratio)

        memory = self._gram[kind]
        cls = int(size).bit_length()
        sums = memory.get(cls)
        width = len(x)
        if sums is None:
            sums = memory[cls] = [0.0] * (width * (width + 1) // 2 + width)
        i = 0
        for a in range(width):
            wa = weight * x[a]
            for b in range(a, width):
                sums[i] = sums[i] * _FADE + wa * x[b]
                i += 1
            sums[i] = sums[i] * _FADE + wa
            i += 1
        self.rows[kind] += 1
        self._since += 1
        if self._since >= self._next:
            self._since = 0
            self._next = min(_PERIOD, self._next * 2)
            self._solve()

    def _follow(self, kind: int, ratio: float) -> None:
        """Scatter and drift of a kind, from an error in units of sigma."""
        self._last[kind] = ratio
        ratio = max(-_HUBER, min(_HUBER, ratio))
        rate = max(_SIGMA_RATE, 1.0 / (self.rows[kind] - _FIRST + 4.0))
        sigma = self.sigma[kind]
        # Mean of |error| is 0.8 sigma for normal errors.
        self.sigma[kind] = max(_SIGMA_MIN, sigma * (1.0 + rate * (1.25 * abs(ratio) - 1.0)))
        drift = self._drift[kind] + _DRIFT_RATE * (ratio - self._drift[kind])
        if abs(drift) > _DRIFT_LIMIT and self.rows[kind] > _PERIOD:
            self.drifts += 1
            for sums in self._gram[kind].values():
                for i, value in enumerate(sums):
                    sums[i] = value * _DRIFT_KEEP
            drift = 0.0
        self._drift[kind] = drift

    def _solve(self) -> None:
        """Least squares with the prior as ridge; negative constants are set to 0."""
        size = np.maximum(1.0, np.array(self._theta) / self._scale)
        spread = _TRUST_CONFIRMED if self.confirmed else self._spread
        A, b = _prior_terms(self._start, size, spread)
        for kind, memory in enumerate(self._gram):
            if not memory:
                continue
            width = len(_OF_KIND[kind])
            total = np.array(list(memory.values())).sum(axis=0)
            precision = self.sigma[kind] ** -2
            gram = np.zeros((width, width))
            i = 0
            for a in range(width):
                row = total[i : i + width - a]
                gram[a, a:] = row
                gram[a:, a] = row
                i += width - a
                b[_OF_KIND[kind][a]] += precision * total[i]
                i += 1
            A[_WHERE[kind]] += precision * gram
        u = _non_negative(A, b)
        if u is not None:
            self._theta = (u * self._scale).tolist()
            self._covariance = np.linalg.inv(A)
        self.version += 1


def _prior_terms(start: Array, size: Array, spread: float) -> tuple[Array, Array]:
    """Ridge matrix and right side that hold the (scaled) constants near `start`.

    The hold is relative: a constant that the data have found to be `size` times its prior, above
    1, is held that much less. So a prior that is wrong by a factor of 20 gives way as well.
    """
    weights = (spread * size) ** -2.0
    ridge = np.diag(weights)
    pull = weights * start
    for mixed, pure, tolerance in _TIES:
        w = (tolerance * max(size[mixed], size[pure])) ** -2.0
        offset = start[mixed] - start[pure]
        ridge[mixed, mixed] += w
        ridge[pure, pure] += w
        ridge[mixed, pure] -= w
        ridge[pure, mixed] -= w
        pull[mixed] += w * offset
        pull[pure] -= w * offset
    return ridge, pull


def _non_negative(A: Array, b: Array) -> Array | None:
    """argmin of u'Au/2 - b'u over u >= 0, by dropping negative entries (None: not finite)."""
    free = np.arange(len(b))
    for _ in range(len(b)):
        try:
            solution = np.linalg.solve(A[free][:, free], b[free])
        except np.linalg.LinAlgError:
            return None
        if not np.all(np.isfinite(solution)):
            return None
        kept = solution >= 0.0
        if kept.all():
            u = np.zeros(len(b))
            u[free] = solution
            return u
        free = free[kept]
    return np.zeros(len(b))
