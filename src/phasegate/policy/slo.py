"""Latency targets: how much prefill fits between two tokens, and how many requests it can feed.

With an ITL target x, a gap between two tokens of a running request may hold one decode iteration
and as much prefill as time is left,

    exclusive   S_E = (x' - T_d - flip - alpha_p) / beta_p      mixed   S_M = (x' - T_m) / beta_m

with x' = trim * x, T_d a decode-only iteration and T_m a mixed one without its prompt tokens;
after a prefill iteration in the same gap, x is what is left of it. The trim follows the gaps that
were filled to the limit, of either kind by itself (two iterations scatter less than one). With m
and s the mean and the scatter of (length of the gap from that slice on / what was planned),

    trim = 1 / (m + max(z*s, tail))

so that a share p of them misses the target: z is a quantile of the normal distribution, and the
tail, the largest deviations of late, counts where it is heavier than that. One miss is a hundredth
of the tokens of a request of 100, and more than that for a shorter one. So p is such that one
request in 200 is spoiled that way if all gaps are filled: p = 0.005 / E[O; O < 100].

Targets may differ by priority class. All running requests decode together, so the strictest of
those that run is kept; a batch class without a target has its slices back as soon as it is alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from phasegate.cost.online import OnlineCost
from phasegate.policy.base import NEVER, Snapshot, StepReport
from phasegate.policy.refill import Room
from phasegate.theory.lengths import LengthLaw

FLOOR = 128
"""Smallest slice, prompt tokens: prefill always goes on."""

_TRIM_MIN, _TRIM_MAX = 0.5, 0.97
_SHORT = 100.0  # tokens; one miss is too many for a request of fewer
_HIT = 0.005  # share of requests that a miss may spoil
_LEAST, _MOST, _UNKNOWN = 1e-4, 3e-3, 1e-3  # bounds of p, and p before lengths are known
_SCATTER = 0.036  # before anything is known: the trim is 0.9 then ...
_DOUBT = 8  # ... which counts as much as so many gaps
_MEMORY = 200  # gaps
_OUTLIER = 0.5  # a gap counts as being off by so much at most, relative
_BELIEVE = 0.8  # in a large deviation; less than 1: it may have been the only one
_FORGET = 1.0 / 2000.0  # of the tail, per gap
_BEYOND = 1.1  # how much further than the tail to stay away
_FULL = 0.98  # share of the planned tokens that makes a slice count as filled
_RATIO_JUMP, _RATIO_RATE, _RATIO_FALL = 0.2, 0.05, 0.3
_SPARE = 1.1  # admit a little more than the steady demand allows: prompts vary


Targets = Sequence[tuple[int, float]]
"""Seconds by priority, ascending: each holds from its priority up to the next one."""


class FilledGaps:
    """How long gaps of one kind are that were filled to the limit.

    Attributes:
        trim: share of the time left to aim at.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean, self._variance = 1.0, _SCATTER**2
        self._tail = 0.0
        self.trim = 0.0
        self._set_trim(_UNKNOWN)

    def learn(self, ratio: float, allowed: float) -> None:
        """A slice and its decodes took `ratio` times as long as planned; a share `allowed` of
        the gaps may miss the target."""
        self._count += 1
        rate = 1.0 / min(self._count + _DOUBT, _MEMORY)
        off = min(max(ratio - self._mean, -_OUTLIER), _OUTLIER)
        self._mean += rate * off
        self._variance = (1.0 - rate) * (self._variance + rate * off * off)
        if off > self._tail:
            self._tail += _BELIEVE * (off - self._tail)
        else:
            self._tail *= 1.0 - _FORGET
        self._set_trim(allowed)

    def _set_trim(self, allowed: float) -> None:
        z = NormalDist().inv_cdf(1.0 - allowed)
        off = max(z * math.sqrt(self._variance), _BEYOND * self._tail)
        self.trim = min(max(1.0 / (self._mean + off), _TRIM_MIN), _TRIM_MAX)


class LatencyTargets:
    """Targets for ITL and TTFT, seconds; NEVER where there is none.

    Attributes:
        itl: the strictest target of the requests that run now.
        ttft: target of the head of the queue.
        exclusive, mixed: gaps that were filled in either way.
    """

    def __init__(self, itl: float | Targets = NEVER, ttft: float | Targets = NEVER) -> None:
        """One target for all, or targets by priority class."""
        self._itl: Targets = ((0, itl),) if isinstance(itl, float) else itl
        self._ttft: Targets = ((0, ttft),) if isinstance(ttft, float) else ttft
        self.itl = min(target for _, target in self._itl)
        self.ttft = min(target for _, target in self._ttft)
        self._since_decode = 0.0  # seconds of prefill since somebody waits for a token
        self._decoding = False  # somebody does
        self._slice = 0  # prompt tokens that fill the current gap, 0: it is not filled
        self._before = self._planned = 0.0  # seconds of a filled gap before and from the slice on
        self._law: LengthLaw | None = None
        self._allowed = _UNKNOWN
        self.exclusive, self.mixed = FilledGaps(), FilledGaps()
        self._ratio = 1.0  # seconds of prefill, real against modelled

    def look(self, now: Snapshot) -> None:
        """See whose targets count now. Where the engine has no classes, the strictest do."""
        if not now.classes:
            return
        if len(self._itl) > 1:
            running = (target_of(self._itl, c) for c, count in now.classes.items() if count > 0)
            self.itl = min(running, default=NEVER)
        if len(self._ttft) > 1:
            self.ttft = target_of(self._ttft, now.head_class)

    @property
    def limits_slices(self) -> bool:
        """Whether there is an ITL target."""
        return self.itl < NEVER

    def room(self, now: Snapshot, cost: OnlineCost, budget: int, joining: int) -> Room:
        """Prompt tokens that fit into the current gap.

        Args:
            now: state.
            cost: constants.
            budget: tokens per iteration.
            joining: requests that will decode as well when their prompts are done.
        """
        beside = max(budget - now.decoding, 1)
        self._decoding = now.decoding > 0
        if not now.decoding:
            self._since_decode = 0.0  # whoever waited for a token has left
        if not now.decoding or not self.limits_slices:
            return Room(budget, beside)
        c = cost.constants
        left = self.itl - self._since_decode
        alone, mixed = self.exclusive.trim * left, self.mixed.trim * left
        context = now.context_tokens
        decode = cost.seconds(0, 0.0, now.decoding + joining, context)
        ratio = self._ratio
        alone -= decode + c["alpha_p"] + c["flip"]
        mixed -= c["alpha_m"] + c["b_d"] * now.decoding + c["k_m"] * context
        alone /= max(c["beta_p"] * ratio, 1e-12)
        mixed /= max(c["beta_m"] * ratio, 1e-12)
        return Room(min(alone, budget), min(mixed, beside))

    def spent(self) -> bool:
        """Whether this gap has had prefill already, so that a slice below the floor can wait."""
        return self._since_decode > 0.0

    def capacity(
        self, cost: OnlineCost, prompt: float, output: float, context: float, exclusive: bool
    ) -> float:
        """N up to which slices can prefill what completions make room for.

        N/mu_O requests end per decode iteration, so x' has to hold T_d(N) and their prompts.
        """
        if not self.limits_slices:
            return NEVER
        c = cost.constants
        trim = self.exclusive.trim if exclusive else self.mixed.trim
        if exclusive:
            fixed = c["alpha_d"] + c["alpha_p"] + c["flip"]
            each = c["b_d"] + c["k_d"] * context + c["beta_p"] * prompt / output
        else:
            fixed = c["alpha_m"]
            each = c["b_d"] + c["k_m"] * context + c["beta_m"] * prompt / output
        return _SPARE * max(trim * self.itl - fixed, 0.0) / max(each, 1e-12)

    def sliced(self, tokens: int, exclusive: bool) -> None:
        """The next iteration prefills `tokens`, which fill the gap (0: they do not)."""
        self._slice = tokens
        trim = self.exclusive.trim if exclusive else self.mixed.trim
        self._before = self._since_decode
        self._planned = trim * (self.itl - self._before)

    def observe(self, step: StepReport, cost: OnlineCost, law: LengthLaw | None) -> None:
        """Follow gaps, and how real slices compare with modelled ones (long prompts: attention).

        `law`: of the output lengths; None: unknown.
        """
        if not self.limits_slices:
            return
        if law is not None and law is not self._law:
            self._law = law
            short = float((law.values * law.weights)[law.values < _SHORT].sum())
            self._allowed = min(max(_HIT / max(short, 1.0), _LEAST), _MOST)
        seconds = step.end - step.start
        if step.prefill_tokens >= FLOOR:
            decodes, context = step.decodes, step.context_tokens
            c = cost.constants
            if decodes:
                base = c["alpha_m"] + c["b_d"] * decodes + c["k_m"] * context
                each = c["beta_m"]
            else:
                base, each = c["alpha_p"], c["beta_p"]
            modelled = each * step.prefill_tokens
            if modelled > 0.0:
                ratio = min(max((seconds - base) / modelled, 0.5), 4.0)
                # Slow slices count at once, fast ones by and by, and scatter is not followed.
                off = ratio - self._ratio
                rate = _RATIO_RATE
                if abs(off) > _RATIO_JUMP:
                    rate = 1.0 if off > 0.0 else _RATIO_FALL
                self._ratio += rate * off
        if step.prefill_tokens and step.prefill_tokens < _FULL * self._slice:
            self._slice = 0  # there was no more to prefill
        if not step.decodes:
            if self._decoding:
                self._since_decode += seconds
            return
        if self._slice:
            gap = self._since_decode + step.durations[0]
            gaps = self.mixed if step.prefill_tokens else self.exclusive
            ratio = (gap - self._before) / self._planned
            gaps.learn(ratio, self._allowed)
            self._slice = 0
        self._since_decode = 0.0


def target_of(targets: Targets, priority: int) -> float:
    """The target of a priority class; the most urgent classes share the first one."""
    found = targets[0][1]
    for first, target in targets:
        if first <= priority:
            found = target
    return found


def parse_targets(text: str) -> Targets:
    """Targets written as `0.1`, or by priority class as `0:0.05/5:0.5/9:none`, seconds.

    Raises ValueError with what it must be.
    """
    targets: dict[int, float] = {}
    for part in text.split("/"):
        first, colon, seconds = part.partition(":")
        priority = int(first) if colon else 0
        target = NEVER if (seconds or first) == "none" else float(seconds or first)
        if not target > 0.0 or (target == NEVER and "none" not in part):
            raise ValueError("must be a positive number of seconds, or none")
        if priority in targets or (not colon and "/" in text):
            raise ValueError("must name each priority once, e.g. 0:0.05/5:0.5")
        targets[priority] = target
    return tuple(sorted(targets.items()))
