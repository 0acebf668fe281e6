"""What the traffic looks like, learned from the requests as they come and go (THEORY section 6)."""

from __future__ import annotations

import math
from dataclasses import replace

from phasegate.policy.base import StepReport
from phasegate.theory.estimators import RecentLengths
from phasegate.theory.kaplan_meier import KaplanMeier
from phasegate.theory.lengths import LengthLaw
from phasegate.theory.memory import Moments, SlotLoad
from phasegate.theory.traffic import Traffic

PRIOR_OUTPUT = 512.0
"""Mean output length before anything is known, tokens; lengths are then taken as geometric."""

PRIOR_PROMPT = 512.0
"""Mean prompt length before anything is known, tokens."""

WINDOW = 1000
"""Completions, and arrivals, that estimates look back over."""

PERIOD = 100
"""Completions between two updates of the estimates ..."""

FIRST = 8
"""... and before the first one; the period doubles from here."""

SPACING = 128
"""Iterations between two updates, at least: where 100 requests end in a few iterations, updates
would cost more than they bring."""

_LAW_SIZE = 64
_SMOOTHING = 200  # iterations


class TrafficMonitor:
    """Follows prompt lengths, output lengths and the number of requests in the system.

    Attributes:
        version: grows by one with every new estimate; 0: nothing is known yet.
        completions: finished requests seen.
        overflows: requests preempted because KV had no room for the growth of all.
        in_system: running + waiting requests, averaged over the last 200 to 400 iterations.
    """

    def __init__(self) -> None:
        self.version = 0
        self.completions = 0
        self.overflows = 0
        self.in_system = 0.0
        self._iterations = 0
        self._averaged = 0
        self._sum = 0.0
        self._lengths = KaplanMeier(WINDOW)
        self._prompts = RecentLengths(WINDOW)
        self._next_update = FIRST
        self._next_iteration = 0
        self._law: LengthLaw | None = None
        self._loads: dict[int, SlotLoad] = {}

    def observe(self, step: StepReport) -> None:
        """Learn from a step. O(started + finished), but for the updates."""
        lengths = self._lengths
        for prompt in step.arrived:
            self._prompts.add(prompt)
        if not step.admitted:  # else somebody more urgent took their place
            self.overflows += len(step.preempted)
        for preempted in step.preempted:  # before the step's tokens
            lengths.preempt(preempted)
        if step.decodes:
            lengths.advance(step.iterations)
        for started in step.started:
            lengths.start(started.id, started.generated)
        for finished in step.finished:
            if finished.generated:
                lengths.finish(finished.id, finished.generated, finished.complete)
                self.completions += finished.complete
        self._count(step.slots_busy + step.waiting, step.iterations)
        if self.completions >= self._next_update and self._iterations >= self._next_iteration:
            self._update()

    def _count(self, in_system: int, iterations: int) -> None:
        """Average over all iterations at first, then over the last 200 to 400: the sums are
        halved at fixed counts, so that it does not matter whether iterations come one by one."""
        self._iterations += iterations
        while iterations:
            taken = min(iterations, 2 * _SMOOTHING - self._averaged)
            iterations -= taken
            self._averaged += taken
            self._sum += in_system * taken
            if self._averaged == 2 * _SMOOTHING:
                self._averaged //= 2
                self._sum /= 2
        self.in_system = self._sum / self._averaged

    def _update(self) -> None:
        self._next_update = self.completions + min(PERIOD, self.completions)
        self._next_iteration = self._iterations + min(SPACING, self.completions)
        law = self._lengths.law()
        if law is not None and len(self._prompts):
            self._law = law.compress(_LAW_SIZE)
            self._loads = {}
            self.version += 1

    @property
    def law(self) -> LengthLaw | None:
        """Law of the output lengths, None before the first update."""
        return self._law

    @property
    def mean_output(self) -> float:
        """mu_O, tokens."""
        return self._law.mean if self._law is not None else PRIOR_OUTPUT

    @property
    def mean_prompt(self) -> float:
        """mu_L of the recent arrivals, tokens (they are an unbiased sample)."""
        return self._prompts.mean if len(self._prompts) else PRIOR_PROMPT

    def slot_load(self, page: int) -> SlotLoad:
        """KV tokens that one running request holds, by the traffic seen (or a first guess).

        Prompts count with their mean only: a prompt is admitted when KV has room for it, so what
        can overflow is the growth. With the spread of long prompts N would leave KV unused.
        """
        load = self._loads.get(page)
        if load is not None:
            return load
        output: Moments
        if self._law is not None:
            law = self._law
            output = (law.moment(1), law.moment(2), law.moment(3), law.moment(4))
        else:
            m = PRIOR_OUTPUT
            output = (m, 2 * m**2, 6 * m**3, 24 * m**4)
        p = self.mean_prompt
        prompt = (p, p**2, p**3, p**4)
        load = SlotLoad.from_moments(prompt, output, page)
        if self.version:
            self._loads[page] = load = replace(load, mean_error=self._early_error())
        return load

    def _early_error(self) -> float:
        """Error of the mean load that a full window will have averaged out, tokens."""
        seen = max(1, min(self.completions, WINDOW))
        return self.mean_output * (1.0 / math.sqrt(seen) - 1.0 / math.sqrt(WINDOW))

    def traffic(self) -> Traffic:
        """The means that the throughput formulas need."""
        known = len(self._prompts) > 0
        return Traffic(
            mean_prompt=self.mean_prompt,
            mean_output=max(1.0, self.mean_output),
            mean_context=self.slot_load(1).mean,
            prompt_std=self._prompts.std if known else 0.0,
            law=self._law,
        )
