"""Latency targets: how much prefill fits between two tokens, and how many requests it can feed.

With an ITL target x, a gap between two tokens of a running request may hold one decode iteration
and as much prefill as time is left,

    exclusive   S_E = (x' - T_d - flip - alpha_p) / beta_p      mixed   S_M = (x' - T_m) / beta_m

with x' = trim * x, T_d a decode-only iteration and T_m a mixed one without its prompt tokens. The
trim starts at 0.9 and follows the gaps that were filled to the limit: it settles where few of
them miss the target (stochastic approximation of a quantile, Robbins and Monro 1951).

Targets may differ by priority class. All running requests decode together, so the strictest of
those that run is kept; a batch class without a target has its slices back as soon as it is alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasegate.cost.online import OnlineCost
from phasegate.policy.base import NEVER, Snapshot, StepReport
from phasegate.policy.refill import Room

FLOOR = 128
"""Smallest slice, prompt tokens: prefill always goes on."""

_TRIM_START, _TRIM_MIN, _TRIM_MAX = 0.9, 0.5, 0.97
_MISSES = 0.003  # share of the filled gaps that may miss the target ...
_SHORT = 100.0  # ... but one miss is too many for a request of fewer tokens
_GAIN = 0.02
_RATIO_RATE = 0.3
_SPARE = 1.1  # admit a little more than the steady demand allows: prompts vary


Targets = Sequence[tuple[int, float]]
"""Seconds by priority, ascending: each holds from its priority up to the next one."""


class LatencyTargets:
    """Targets for ITL and TTFT, seconds; NEVER where there is none.

    Attributes:
        itl: the strictest target of the requests that run now.
        ttft: target of the head of the queue.
        trim: share of the ITL target that slices aim at.
    """

    def __init__(self, itl: float | Targets = NEVER, ttft: float | Targets = NEVER) -> None:
        """One target for all, or targets by priority class."""
        self._itl: Targets = ((0, itl),) if isinstance(itl, float) else itl
        self._ttft: Targets = ((0, ttft),) if isinstance(ttft, float) else ttft
        self.itl = min(target for _, target in self._itl)
        self.ttft = min(target for _, target in self._ttft)
        self.trim = _TRIM_START
        self._since_decode = 0.0  # seconds of prefill since somebody waits for a token
        self._decoding = False  # somebody does
        self._filled = False  # the current gap was filled to the limit
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
        left = self.trim * self.itl - self._since_decode
        context = now.context_tokens
        decode = cost.seconds(0, 0.0, now.decoding + joining, context)
        ratio = self._ratio
        alone = (left - decode - c["alpha_p"] - c["flip"]) / max(c["beta_p"] * ratio, 1e-12)
        mixed = c["alpha_m"] + c["b_d"] * now.decoding + c["k_m"] * context
        mixed = (left - mixed) / max(c["beta_m"] * ratio, 1e-12)
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
        if exclusive:
            fixed = c["alpha_d"] + c["alpha_p"] + c["flip"]
            each = c["b_d"] + c["k_d"] * context + c["beta_p"] * prompt / output
        else:
            fixed = c["alpha_m"]
            each = c["b_d"] + c["k_m"] * context + c["beta_m"] * prompt / output
        return _SPARE * max(self.trim * self.itl - fixed, 0.0) / max(each, 1e-12)

    def sliced(self, filled: bool) -> None:
        """The next iteration prefills; `filled`: up to the limit of the gap."""
        self._filled = filled and self.limits_slices

    def observe(self, step: StepReport, cost: OnlineCost, output: float) -> None:
        """Follow gaps, and how real slices compare with modelled ones (long prompts: attention).

        `output`: mean output length, tokens.
        """
        if not self.limits_slices:
            return
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
                # Slow slices count at once, fast ones by and by.
                rate = 1.0 if ratio > self._ratio + 0.2 else _RATIO_RATE
                self._ratio += rate * (ratio - self._ratio)
        if not step.decodes:
            if self._decoding:
                self._since_decode += seconds
            return
        if self._filled:
            gap = self._since_decode + step.durations[0]
            miss = gap > self.itl
            allowed = _MISSES if output >= _SHORT else min(_MISSES, 0.025 / output)
            self.trim += _GAIN * (allowed - miss)
            self.trim = min(max(self.trim, _TRIM_MIN), _TRIM_MAX)
            self._filled = False
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
