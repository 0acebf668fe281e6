"""KV admission: how many of the waiting requests fit, now and as far as can be seen.

What runs keeps growing, so free KV now says little. For a dozen horizons t we forecast the KV
need of the running requests: request i is still there after t more tokens with probability
s_i = S(age_i + t) / S(age_i), and then holds context_i + t. Together they need P(t) tokens, give
or take sqrt(V(t)),

    P(t) = sum_i (context_i + t)*s_i,   V(t) = sum_i (context_i + t)^2 * s_i*(1-s_i)

so KV has overflowed by t with a probability of about F(t) = max over u <= t of
Q((C - P(u)) / sqrt(V(u))). Then the youngest are preempted, and recomputed later. One more of n
requests takes alpha_d/n seconds of fixed cost off the others in each iteration that it runs; it
could as well be admitted when the next of them has ended, some mu_O/n iterations from now and with
a lower risk F'. So it is admitted now if the slot is worth more till then than the risk:

    alpha_d/n * sum_{t < mu_O/n} S(t)*(1-F(t))
        >= price * sum_t [(F(t)-F(t-1)) - (F'(t)-F'(t-1))] * S(t)*(alpha_p + beta_p*(L+t))

With a handful of requests a slot is worth more than a recomputation, and KV is used to the brim.
With hundreds it is worth little, and each preemption keeps somebody waiting: then F has to be so
small, too, that hardly one of those that run is preempted. That takes a margin of two or three
standard deviations. Later admissions are judged when they come, so only what runs now counts.
This replaces a fixed N: a batch of young requests leaves more room for growth than one of old
ones. (Ours; `docs/auto.md` has what it gains.)
"""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from phasegate.cost.online import OnlineCost
from phasegate.policy.base import Snapshot, StepReport
from phasegate.policy.traffic import TrafficMonitor

Array = npt.NDArray[np.float64]

HORIZONS = 15
PRIOR_SCALE = 512.0
"""S(t|a) = (a+512)/(a+512+t) before anything is known; less for a small cache, which nobody
would give to longer requests than a 64th of it."""

PRICE_MIN, PRICE_MAX = 2.0, 32.0
"""Of a preemption, in units of its recomputation: it also keeps a client waiting."""

_MOST = 2.0  # preemptions, times their price, among those that run ...
_HANDFUL = 8  # ... beyond the first few
_DEARER, _CHEAPER = 2.0, 0.9
_PERIOD = 100  # completions between two adjustments of the price
_CHANCE = 5.0  # preemptions in that time that prove nothing
_SURE = 4.5  # standard deviations that hardly anything exceeds
_QUANTILES = np.array([0.25, 0.5, 0.75, 0.995])
_FAR = 0.08  # share of the capacity
_FEW = 8  # one in so many has left: time to look again
_ATOM = 0.04  # more weight than that on one length: many requests end right there
_AGE_CLASSES = 24  # cohorts per mean output length


class Admission:
    """Forecasts KV use; answers how many waiting requests may be admitted.

    Running requests are kept as cohorts of about the same age, so a forecast costs the same for
    ten and for a thousand of them.

    Attributes:
        price: of a preemption. It rises with more of them than foreseen, and sinks slowly.
        risk: of being preempted, for the last request of the last answer.
    """

    def __init__(self, monitor: TrafficMonitor, cost: OnlineCost, page: int) -> None:
        """
        Args:
            monitor: the lengths seen.
            cost: what iterations cost.
            page: KV page, tokens.
        """
        self._monitor, self._cost, self._page = monitor, cost, page
        self.price = PRICE_MIN
        self.risk = 0.0
        self._tick = 0
        self._width = 1  # ticks of birth per cohort
        self._cohorts: dict[int, list[float]] = {}  # number, sum of births, offsets, offsets^2
        self._members: dict[int, tuple[int, int, int]] = {}  # id -> cohort, birth, offset
        self._version = -1
        self._scale = PRIOR_SCALE
        self._ages: Array = np.empty(0)
        self._alive: Array = np.empty(0)  # share of requests that get older than those
        self._horizons: list[float] = []
        self._fresh: list[float] = []  # S(t) of a request that has just started
        self._base_tick = -1
        self._left = 0  # requests that have ended since
        self._need: list[float] = []  # P(t) of what runs
        self._variance: list[float] = []  # V(t)
        self._heads: list[int] = []
        self._tokens = 0  # of all of them
        self._last = 1  # answer when KV last limited it
        self._tightest: float | None = 0.0  # max of P(t) + _SURE*sqrt(V(t)), None: not known yet
        self._most_growth = self._most_spread = 0.0  # of a fresh request: max t*S, t*sqrt(S(1-S))
        self._limited = -1  # the last answer, if KV limited it and nothing has changed since
        self._running = 0
        self._finished = 0
        self._preempted = 0
        self._foreseen = 0.0  # preemptions, at most
        self._raised = False

    # ------------------------------------------------------------------ learning
    def observe(self, step: StepReport) -> None:
        """Follow who runs. O(started + finished)."""
        if step.decodes:
            self._tick += step.iterations
        tick = self._tick
        if step.admitted and self._base_tick >= 0:
            self._foreseen += step.admitted * self.risk
            self._add(self._heads[: step.admitted])
            del self._heads[: step.admitted]
            self._tokens = sum(self._heads)
        members, cohorts, width = self._members, self._cohorts, self._width
        for request, _, generated, context in step.started:
            birth, offset = tick - generated, context - tick
            cohort = birth // width
            members[request] = (cohort, birth, offset)
            sums = cohorts.get(cohort)
            if sums is None:
                cohorts[cohort] = [1, birth, offset, offset * offset]
            else:
                sums[0] += 1
                sums[1] += birth
                sums[2] += offset
                sums[3] += offset * offset
        for finished in step.finished:
            self._leave(finished.id)
        self._left += len(step.finished)
        for request in step.preempted:
            self._leave(request)
            self._base_tick = -1
        self._adjust(len(step.finished), len(step.preempted))

    def _leave(self, request: int) -> None:
        member = self._members.pop(request, None)
        if member is None:
            return
        cohort, birth, offset = member
        sums = self._cohorts[cohort]
        sums[0] -= 1
        if sums[0]:
            sums[1] -= birth
            sums[2] -= offset
            sums[3] -= offset * offset
        else:
            del self._cohorts[cohort]

    def _adjust(self, finished: int, preempted: int) -> None:
        """More preemptions than foreseen: the forecast is too bold."""
        self._finished += finished
        self._preempted += preempted
        if preempted and not self._raised and self._preempted > 2.0 * self._foreseen + _CHANCE:
            self._raised = True
            self.price = min(PRICE_MAX, self.price * _DEARER)
        if self._finished >= _PERIOD:
            if not self._raised:
                self.price = max(PRICE_MIN, self.price * _CHEAPER)
            self._finished = self._preempted = 0
            self._foreseen, self._raised = 0.0, False

    # ------------------------------------------------------------------ answering
    def fit(self, now: Snapshot, most: int) -> int:
        """How many of the first `most` waiting requests may be admitted now."""
        most = min(most, now.waiting)
        if most <= 0:
            return 0
        self._running = now.running
        self._refresh(now)
        if 0 <= self._limited < most:
            return self._limited
        # What does not fit now need not be looked at.
        limit = min(most, int(1.5 * now.kv_free / max(self._monitor.mean_prompt, 1.0)) + 8)
        heads = self._heads = list(now.head(limit))
        if not heads:
            return 0
        capacity = now.kv_capacity
        page = self._page
        half = (page - 1) / 2
        if sum(heads) + page * len(heads) > now.kv_free:
            pages = accumulate(-(-need // page) for need in heads)
            free = now.kv_free // page
            least = 0 if now.running else 1  # alone in the cache a request always fits
            del heads[max(least, sum(taken <= free for taken in pages)) :]
            if not heads:
                self._limited = 0
                return 0
        high = len(heads)
        self._tokens = sum(heads)
        total = self._tokens + half * high
        if self._surely_holds(capacity, high, total, total * (max(heads) + half)):
            self.risk = 0.0
            return high
        needs = [need + half for need in heads]
        risk = self._risk(capacity, high, total, sum(n * n for n in needs), needs[-1])
        if risk is not None:
            self.risk = risk
            return high
        first = [0.0, *accumulate(needs)]
        second = [0.0, *accumulate(n * n for n in needs)]
        low, step = 0, 1
        guess = max(
            1, min(self._last, high - 1)
        )  # the answer changes little: look around the last one
        while high - low > 1:
            risk = self._risk(capacity, guess, first[guess], second[guess], needs[guess - 1])
            if risk is not None:
                low, self.risk = guess, risk
                guess = min(guess + step, high - 1) if step < high - low else (low + high) // 2
            else:
                high = guess
                guess = max(guess - step, low + 1) if step < high - low else (low + high) // 2
            step *= 2
        if not low and not now.running:
            low = 1
        self._limited = self._last = low
        return low

    @property
    def peak(self) -> float:
        """Largest KV need of what runs that is to be expected, tokens."""
        return max(self._need, default=0.0)

    def tokens_of(self, count: int) -> int:
        """Prompt tokens of the first `count` requests of the last answer."""
        return self._tokens if count == len(self._heads) else sum(self._heads[:count])

    def _surely_holds(self, capacity: int, count: int, first: float, second: float) -> bool:
        """As `_holds`, by an upper bound on what they add anywhere; it costs next to nothing.

        Deviations obey the triangle inequality; `second` may be too large.
        """
        spread = math.sqrt(second) + math.sqrt(count) * self._most_spread
        need = first + count * self._most_growth + _SURE * spread
        return need <= self._slack(capacity)

    def _risk(
        self, capacity: int, count: int, first: float, second: float, last: float
    ) -> float | None:
        """Risk of a preemption for the last of `count` more requests; None: not worth it.

        `first`, `second`: sum of their needs at admission, and of the squares of those;
        `last`: need of the last one.
        """
        cost, monitor, price = self._cost, self._monitor, self.price
        total = self._running + count
        stay = 1.0 - 1.0 / max(self._running, 1)  # share of what runs, when the next has ended
        until = monitor.mean_output / total  # ... that many iterations from now
        most = _MOST / (price * max(total - _HANDFUL, 1e-9))
        saved = cost.alpha_decode / total
        each = price * cost["beta_p"]
        fixed = price * cost.alpha_prefill + each * last
        risk = later = gain = loss = before = 0.0
        alive = 1.0
        for t, s, p, v in zip(self._horizons, self._fresh, self._need, self._variance, strict=True):
            if not t:  # whether they fit now has been looked at
                continue
            room = capacity - (first + count * t) * s
            spread = (second + t * (2.0 * first + count * t)) * s * (1.0 - s)
            overflow = _beyond(room - p, spread + v)
            if overflow > most:
                return None
            if overflow > risk:
                loss += (overflow - risk) * s * (fixed + each * t)
                risk = overflow
                overflow = _beyond(room - stay * p, spread + stay * v)
                if overflow > later:
                    loss -= (overflow - later) * s * (fixed + each * t)
                    later = overflow
            if before < until:
                gain += saved * (min(t, until) - before) * 0.5 * (alive + s) * (1.0 - risk)
            before, alive = t, s
        return risk if gain >= loss else None

    def _slack(self, capacity: int) -> float:
        """KV tokens that are left at the tightest horizon."""
        if self._tightest is None:
            self._tightest = max(
                (p + _SURE * math.sqrt(v) for p, v in zip(self._need, self._variance, strict=True)),
                default=0.0,
            )
        return capacity - self._tightest

    def _add(self, needs: list[int]) -> None:
        """Requests were admitted: they count from now on."""
        half = (self._page - 1) / 2
        count = len(needs)
        first = sum(needs) + half * count
        second = sum((n + half) ** 2 for n in needs)
        for i, (t, s) in enumerate(zip(self._horizons, self._fresh, strict=True)):
            self._need[i] += (first + count * t) * s
            self._variance[i] += (second + t * (2.0 * first + count * t)) * s * (1.0 - s)
        self._limited = -1
        self._tightest = None

    # ------------------------------------------------------------------ forecasting
    def _refresh(self, now: Snapshot) -> None:
        """Forecast what runs, unless that was done a moment ago."""
        monitor = self._monitor
        if monitor.version != self._version:
            self._new_law(now.kv_capacity)
        elif self._base_tick >= 0:
            # Far from the limit, there is no need to look often.
            calm = 4 if self._slack(now.kv_capacity) > _FAR * now.kv_capacity else 1
            ticks = self._tick - self._base_tick
            if ticks < calm * self._every and self._left * _FEW <= now.running:
                return
        self._base_tick = self._tick
        self._left = 0
        self._limited = -1
        self._tightest = None
        half = (self._page - 1) / 2
        horizons = np.array(self._horizons)
        held = float(now.kv_capacity - now.kv_free)
        if self._cohorts:
            table = np.array(list(self._cohorts.values()))
            number = table[:, 0]
            ages = self._tick - table[:, 1] / number
            ahead = horizons[:, None] + self._tick + half
            s = self._survives(ages, horizons)
            first = number * ahead + table[:, 2]
            second = number * ahead**2 + 2.0 * ahead * table[:, 2] + table[:, 3]
            need = (first * s).sum(axis=1)
            variance = (second * s * (1.0 - s)).sum(axis=1)
            held -= float(first[0].sum() - number.sum() * horizons[0])
        else:
            need = np.zeros(HORIZONS)
            variance = np.zeros(HORIZONS)
        # The rest of what is held belongs to requests that are still being prefilled.
        if now.prefilling:
            fresh = np.array(self._fresh)
            held = max(held, 0.0)
            size = held / now.prefilling
            need += (held + now.prefilling * horizons) * fresh
            variance += now.prefilling * (size + horizons) ** 2 * fresh * (1.0 - fresh)
        self._need = need.tolist()
        self._variance = variance.tolist()

    def _new_law(self, capacity: int) -> None:
        monitor = self._monitor
        self._version = monitor.version
        law = monitor.law
        if law is None:
            scale = self._scale = min(PRIOR_SCALE, capacity / 64.0)
            times = np.geomspace(scale / 8.0, 16.0 * scale, HORIZONS - 1)
        else:
            below = np.cumsum(law.weights)
            self._ages, self._alive = _survival(law.values, law.weights, below)
            # Need peaks before the next few have ended, or right before many end.
            marks = np.minimum(np.searchsorted(below, _QUANTILES), law.values.size - 1)
            ends = np.maximum(law.values[marks] - 1.0, 1.0)
            steps = np.geomspace(max(1.0, law.mean / 96.0), ends[-1], HORIZONS - len(ends))
            times = np.sort(np.concatenate((steps[:-1], ends)))
            self._rebucket(max(1, round(law.mean / _AGE_CLASSES)))
        times = np.concatenate(([0.0], times))
        self._horizons = times.tolist()
        self._fresh = self._survives(np.zeros(1), times)[:, 0].tolist()
        self._most_growth = max(t * s for t, s in zip(self._horizons, self._fresh, strict=True))
        self._most_spread = max(
            t * math.sqrt(s * (1.0 - s)) for t, s in zip(self._horizons, self._fresh, strict=True)
        )
        self._every = max(1, min(8, round(monitor.mean_output / 32.0)))

    def _survives(self, ages: Array, horizons: Array) -> Array:
        """S(a+t)/S(a), one row per horizon and one column per age."""
        later = ages[None, :] + horizons[:, None]
        if self._monitor.law is None:
            result: Array = (ages[None, :] + self._scale) / (later + self._scale)
            return result
        start = np.interp(ages, self._ages, self._alive)
        end = np.interp(later, self._ages, self._alive)
        # Older than anything in the law: as long again, give or take.
        unknown = start < 1e-9
        if unknown.any():
            start = np.where(unknown, 1.0, start)
            end = np.where(unknown, ages / np.maximum(later, 1.0), end)
        ratio: Array = end / start
        return ratio

    def _rebucket(self, width: int) -> None:
        """Cohorts of another width, when lengths have changed."""
        if 0.5 * self._width <= width <= 2 * self._width:
            return
        self._width = width
        self._cohorts = {}
        for request, (_, birth, offset) in self._members.items():
            cohort = birth // width
            self._members[request] = (cohort, birth, offset)
            sums = self._cohorts.setdefault(cohort, [0, 0, 0, 0])
            sums[0] += 1
            sums[1] += birth
            sums[2] += offset
            sums[3] += offset * offset


def _survival(values: Array, weights: Array, below: Array) -> tuple[Array, Array]:
    """P(length > age) at ages between which it may be interpolated.

    Lengths in a law stand for those around them: half of their weight lies below. Atoms do not.
    """
    atoms = weights > _ATOM
    before = 1.0 - below + weights
    ages = np.concatenate(([0.0], np.column_stack((values - 1.0, values)).ravel()))
    alive = np.concatenate(([1.0], np.column_stack((before, 1.0 - below)).ravel()))
    middle = np.column_stack((before - weights / 2, before - weights / 2)).ravel()
    smooth = np.repeat(~atoms, 2)
    alive[1:][smooth] = middle[smooth]
    alive[-1] = 0.0
    return np.maximum.accumulate(ages), np.minimum.accumulate(np.maximum(alive, 0.0))


def _beyond(margin: float, variance: float) -> float:
    """P(X > margin) for a normal variable of mean 0."""
    if variance <= 0.0:
        return float(margin < 0.0)
    return 0.5 * math.erfc(margin / math.sqrt(2.0 * variance))
