"""The rule of `auto`: refill when waiting longer would cost more, in the way that costs less.

    nothing decodes, or a more urgent request waits                        -> refill
    free slots that can be filled are the best share x* of those in use    -> refill
    the loss of idle slots has reached the cost of a refill (ski rental)   -> refill
    everything that waits fits, requests come by themselves, and the oldest
        has waited for as long as a refill costs                           -> refill
    a request that fits was held for max_hold                              -> refill
    otherwise                                                              -> decode

exclusively if c_E < c_M, else mixed (see `refill`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from phasegate.cost.online import OnlineCost
from phasegate.policy.admission import Admission
from phasegate.policy.base import NEVER, Plan, Snapshot, StepReport
from phasegate.policy.exploration import Exploration
from phasegate.policy.options import Options
from phasegate.policy.population import Population
from phasegate.policy.refill import (
    Refill,
    Room,
    Share,
    StepCosts,
    best_share,
    mode_weights,
    refill_cost,
)
from phasegate.policy.slo import FLOOR, LatencyTargets
from phasegate.policy.traffic import TrafficMonitor

RESERVE = 0.04
"""Share of KV that mixed refills leave free: requests grow while others are being admitted."""

HOLD_OPEN, HOLD_CLOSED = 0.1, 2.0
"""Default `max_hold` where requests come by themselves / clients wait for answers, seconds."""

_REVIEW = 64  # decode iterations after which everything is looked at again, whatever happens
_LOOSE = 8  # changes of the state after which it is, while waiting for more free slots
_EARLY = 8  # solutions of the cost model; later ones differ little from one to the next
_OF_TTFT = 0.25  # share of a TTFT target that holding may use up


@dataclass(slots=True)
class _Phase:
    """A refill under way.

    Attributes:
        exclusive: how its next iteration is done, ...
        then: ... and how the ones after it.
        quota: requests that it may still admit.
        first: prompt tokens of the next iteration at most; 0: as many as fit.
    """

    exclusive: bool
    then: bool
    quota: int
    first: int = 0


@dataclass(slots=True)
class _Wait:
    """Waiting for more free slots: what it takes to end it.

    Attributes:
        share: idle share of slots that is worth a refill.
        price: loss of idle slots that is worth one, seconds.
        everything: whether all that wait could be admitted.
        versions: of costs and traffic that this was based on.
        looks: changes of the state that it may still outlast.
    """

    share: float
    price: float
    everything: bool
    versions: tuple[int, int]
    looks: int = _LOOSE


class Choice(NamedTuple):
    """The last decision and what it was based on; seconds and tokens.

    Attributes:
        time: clock.
        action: "decode", "exclusive" or "mixed".
        reason: in words.
        waiting, running, fit: requests; `fit` of the waiting ones could be admitted.
        tokens: prompt tokens of those.
        context: of the decoding requests, all together.
        refill: cost of refilling now (None: there was nothing to refill).
        share: x*, idle share of slots that is worth waiting for.
        loss: of idle slots since the last refill.
        closed: clients wait for answers.
        hold, held: longest and current time that the oldest request is held, by policy.
    """

    time: float
    action: str
    reason: str
    waiting: int
    running: int
    fit: int = 0
    tokens: int = 0
    context: int = 0
    refill: Refill | None = None
    share: float = 0.0
    loss: float = 0.0
    closed: bool = False
    hold: float = NEVER
    held: float = 0.0


class MarginalRule:
    """Decides every iteration; owns what is learned on the way.

    Attributes:
        cost, monitor, admission, targets: what is known, see there.
        always_mixed: refill at once and mixed, whatever the costs say (for comparison).
        choice: the last decision at the end of a decode phase, or to go on with it.
        n, k: requests that may run, and refill size worth waiting for, by the last decision.
        exclusive: how the last refill was done.
        refills: how many there were.
    """

    def __init__(
        self,
        options: Options,
        cost: OnlineCost,
        page: int,
        targets: LatencyTargets,
        max_hold: float | None,
    ) -> None:
        self.cost = cost
        self.monitor = TrafficMonitor()
        self.admission = Admission(self.monitor, cost, page)
        self.targets = targets
        self.always_mixed = False
        self.choice = Choice(0.0, "decode", "nothing has happened yet", 0, 0)
        self.n, self.k = 0, 1
        self.exclusive = False
        self.refills = 0
        self._options, self._max_hold = options, max_hold
        self._population = Population()
        self._exploration = Exploration(cost)
        self._costs = StepCosts.of(cost)
        self._cost_version = 0
        self._phase: _Phase | None = None
        self._wait: _Wait | None = None
        self._seconds_without_decode = 0.0
        self._decoded = 0  # decode-only iterations since the last prefill
        # Waiting: the loss so far is _loss + _loss_rate * _iterations.
        self._loss = self._loss_rate = 0.0
        self._iterations = 0
        self._held_since = NEVER
        self._state: tuple[int, int, bool, int, int] | None = None
        self._countdown = 0
        self._review_at = NEVER
        self._share = Share(0.0, 0.0)
        self._share_for = (-1, -1, 0)  # versions of costs and traffic, requests

    # ------------------------------------------------------------------ deciding
    def plan(self, now: Snapshot) -> Plan:
        """Decide one iteration (or a run of decode-only ones)."""
        monitor = self.monitor
        budget = self._options.budget(now)
        n = min(self._options.n, now.slots, budget)
        self.targets.look(now)
        self._population.see(now.waiting + now.running, monitor.completions)
        phase = self._phase
        if phase is None and now.prefilling:
            exclusive = self._cheaper(now, budget).is_exclusive
            phase = self._phase = _Phase(exclusive, exclusive, 0)
        if phase is not None:
            if self.targets.limits_slices and phase.quota == 0:
                self._extend(phase, now, n, budget)
            more = phase.quota > 0 and now.waiting and not now.kv_blocked
            if now.prefilling or (more and now.running < n) or (more and now.urgent):
                return self._refill_plan(phase, now, n, budget)
            self._phase = None
        state = (now.waiting, now.running, now.kv_blocked, self.cost.version, monitor.version)
        if state == self._state and self._countdown > 0 and now.now < self._review_at:
            return self._decode_plan()
        self._state = state
        wait = self._wait
        if wait is not None and now.now < self._review_at and self._goes_on(wait, now):
            return self._decode_plan()
        self._wait = None
        return self._decide(now, n, budget)

    def _goes_on(self, wait: _Wait, now: Snapshot) -> bool:
        """Whether waiting goes on although a few requests came or went. A cheap look, which
        takes it that each of them that left makes room for one."""
        wait.looks -= 1
        if now.urgent or now.kv_blocked or not now.waiting or wait.looks < 0:
            return False
        if wait.versions != (self.cost.version, self.monitor.version):
            return False
        choice = self.choice
        fit = now.waiting
        if not wait.everything:
            fit = min(fit, choice.fit + max(choice.running - now.running, 0))
        in_use = now.running + fit
        self._lose()
        if fit >= wait.share * in_use or self._loss >= wait.price:
            return False
        self._expect_loss(fit / in_use, wait.price)
        return True

    def _lose(self) -> None:
        """Add up the loss of idle slots since it was last looked at."""
        self._loss += self._loss_rate * self._iterations
        self._loss_rate, self._iterations = 0.0, 0

    def _expect_loss(self, idle: float, price: float) -> None:
        """A share of the slots stays idle: look again when that has cost as much as a refill."""
        self._countdown = min(_REVIEW, self.cost.steady_for)
        self._loss_rate = self._costs.alpha_d * idle
        if self._loss_rate > 0.0:
            left = math.ceil((price - self._loss) / self._loss_rate)
            self._countdown = max(1, min(self._countdown, left))

    def _decode_plan(self) -> Plan:
        """Decode on; N is what runs and what could be admitted as well."""
        choice = self.choice
        n = max(1, choice.running + choice.fit)
        return Plan(True, 0, 0, n, repeat=self._countdown, review_at=self._review_at)

    def _refill_plan(self, phase: _Phase, now: Snapshot, n: int, budget: int) -> Plan:
        """One iteration of a refill; in between, a decode iteration when the gap is full."""
        targets, chunk = self.targets, self._options.chunk
        if not targets.limits_slices:
            if phase.exclusive:
                waited = self._seconds_without_decode
                if now.decoding and waited and waited >= self._options.max_stall:
                    return Plan(True, 0, 0, n)
                return Plan(False, phase.quota, phase.first or budget, n, chunk)
            tokens = phase.first or max(budget - now.decoding, 1)
            return Plan(True, phase.quota, tokens, n, chunk, self._reserve(now))
        room = targets.room(now, self.cost, budget, min(phase.quota, n - now.running))
        fits = room.exclusive if phase.exclusive else room.mixed
        least = min(FLOOR, budget)
        if now.decoding and fits < least and targets.spent():
            return Plan(True, 0, 0, n)
        tokens = max(int(fits), least)
        # The floor may be more than fits, and the engine's own limit less.
        filled = least <= fits < budget - now.decoding
        targets.sliced(tokens if filled else 0, phase.exclusive)
        if phase.exclusive:
            return Plan(False, phase.quota, tokens, n, chunk)
        return Plan(True, phase.quota, tokens, n, chunk, self._reserve(now))

    @staticmethod
    def _reserve(now: Snapshot) -> int:
        return int(RESERVE * now.kv_capacity)

    def _room(self, now: Snapshot, budget: int, joining: int) -> Room:
        if not self.targets.limits_slices:
            return Room(budget, max(budget - now.decoding, 1))
        room = self.targets.room(now, self.cost, budget, joining)
        return Room(max(room.exclusive, FLOOR), max(room.mixed, FLOOR))

    def _cheaper(self, now: Snapshot, budget: int) -> Refill:
        """What it costs to finish the prompts that are being processed."""
        return refill_cost(
            self._costs,
            now.pending_tokens,
            now.prefilling,
            now.decoding,
            now.context_tokens,
            self._room(now, budget, now.prefilling),
            self.targets.limits_slices,
        )

    def _fit(self, now: Snapshot, n: int) -> int:
        """How many waiting requests may start now. Latency targets may say none although one has
        a slot and KV: it starts all the same when it has been held for `max_hold` (I5)."""
        fit = could = 0
        if now.waiting and not now.kv_blocked and now.running < n:
            room = self._fed(now, n) - now.running
            could = self.admission.fit(now, max(room, 1))
            fit = could if room > 0 else 0
        if not could:
            self._held_since = NEVER
        else:
            self._held_since = min(self._held_since, now.now)
            if not fit and now.now - self._held_since >= self._hold(False):
                fit = 1
        return fit

    def _fed(self, now: Snapshot, n: int) -> int:
        """N, or how many requests slices can feed with prompts if that is less."""
        if not self.targets.limits_slices or not now.running:
            return n
        monitor = self.monitor
        mean_context = now.context_tokens / now.running
        limit = self.targets.capacity(
            self.cost, monitor.mean_prompt, monitor.mean_output, mean_context, self.exclusive
        )
        return min(n, max(1, int(limit)))

    def _extend(self, phase: _Phase, now: Snapshot, n: int, budget: int) -> None:
        """While slices go on anyway, whoever fits may join them."""
        if not now.prefilling:
            return
        phase.quota = self._fit(now, n)
        if phase.quota:
            self._held_since = NEVER
            phase.then = phase.exclusive = self._cheaper(now, budget).is_exclusive

    def _decide(self, now: Snapshot, n: int, budget: int) -> Plan:
        """Refill or decode; the answer stands until the state changes, or to be reviewed."""
        cost, monitor = self.cost, self.monitor
        if cost.version != self._cost_version:
            self._cost_version = cost.version
            self._costs = StepCosts.of(cost)
        self._lose()
        self._review_at = NEVER
        self._countdown = min(_REVIEW, cost.steady_for)

        running, waiting = now.running, now.waiting
        context = now.context_tokens
        mean_context = context / running if running else monitor.mean_prompt
        fit = self._fit(now, n)
        if now.urgent and not now.kv_blocked:
            fit = max(fit, 1)
        if fit <= 0:
            blocked = "slots" if running >= n else "KV"
            if self._held_since < NEVER:
                blocked = "slices: with more requests they could not keep the ITL target"
            reason = f"waiting for {blocked}" if waiting else "nobody waits"
            self.choice = Choice(now.now, "decode", reason, waiting, running, context=context)
            self._review_at = self._held_since + self._hold(False)
            return self._decode_plan()

        tokens = self.admission.tokens_of(fit)
        in_use = running + fit
        room = self._room(now, budget, fit)
        refill = refill_cost(
            self._costs, tokens, fit, now.decoding, context, room, self.targets.limits_slices
        )
        share = self._best_share(in_use, mean_context, room)
        everything = fit >= waiting
        open_loop = everything and not self._population.closed
        hold = self._hold(open_loop)
        self._held_since = min(self._held_since, now.now)
        held = now.now - self._held_since
        price = max(refill.cost, 0.0)
        patience = min(price, hold) if open_loop else hold
        pause = self._exploration.pause

        reason = ""
        if not running:
            reason = "nothing decodes"
        elif now.urgent:
            reason = "a more urgent request waits"
        elif self.always_mixed:
            reason = "comparing with mixed batching"
        elif held >= hold:
            reason = "a request was held for max_hold"
        elif pause:
            if self._decoded >= pause:
                reason = "measuring: next rung of the ladder"
        elif fit >= share * in_use:
            reason = "enough slots are free"
        elif self._loss >= price:
            reason = "idle slots have cost as much as a refill"
        elif everything and now.oldest_wait >= patience:
            reason = "the oldest has waited for as long as a refill costs"
            if patience >= hold:
                reason = "the oldest has waited for max_hold"
        self.choice = Choice(
            now.now, "decode", reason or "a refill costs more than waiting", waiting, running, fit,
            tokens, context, refill, share, self._loss, self._population.closed, hold,
            now.oldest_wait,
        )  # fmt: skip
        if reason:
            return self._refill(now, n, budget, refill, room)

        self._expect_loss(fit / in_use, price)
        if pause:
            self._countdown = 1
        else:
            versions = (cost.version, monitor.version)
            self._wait = _Wait(share, price, everything, versions)
        self._review_at = self._held_since + hold
        if everything:
            self._review_at = min(self._review_at, now.now + patience - now.oldest_wait)
        return self._decode_plan()

    def _refill(self, now: Snapshot, n: int, budget: int, refill: Refill, room: Room) -> Plan:
        """Begin a refill as `choice` says."""
        choice, exploration = self.choice, self._exploration
        self._loss = 0.0
        self._held_since = NEVER
        self._state = None  # what comes after the refill is a new decode phase
        self.refills += 1
        self.exclusive = refill.is_exclusive and not self.always_mixed
        phase = _Phase(self.exclusive, self.exclusive, exploration.limit(choice.fit))
        if choice.running and not self.always_mixed:
            weights = mode_weights(choice.tokens, choice.context, room)
            error = self.cost.error_of(weights)
            if exploration.other_mode(refill, error, self.exclusive, now.now):
                phase.exclusive = not self.exclusive
            elif self.exclusive:
                phase.first = exploration.small_slice(choice.tokens)
        self._phase = phase
        self.n = choice.running + choice.fit
        self.k = max(1, round(choice.share * self.n))
        action = "exclusive" if phase.exclusive else "mixed"
        reason = choice.reason
        if self.always_mixed and refill.is_exclusive:
            reason += "; mixed to compare it with, or because it won the last comparison"
        elif phase.exclusive != self.exclusive:
            reason += "; the dearer way this time, to measure what it costs"
        self.choice = choice._replace(action=action, reason=reason)
        return self._refill_plan(phase, now, n, budget)

    def _hold(self, open_loop: bool) -> float:
        hold = self._max_hold
        if hold is None:
            hold = HOLD_OPEN if open_loop else HOLD_CLOSED
        return min(hold, _OF_TTFT * self.targets.ttft)

    def _best_share(self, in_use: int, mean_context: float, room: Room) -> float:
        """x*, computed anew when traffic, costs or (by 5 %) the number of requests changed."""
        cost_version, version, size = self._share_for
        monitor = self.monitor
        learned = self.cost.version - cost_version
        if (
            version != monitor.version
            or abs(in_use - size) > 0.05 * size
            or learned >= (1 if cost_version < _EARLY else 4)
        ):
            self._share_for = (self.cost.version, monitor.version, in_use)
            self._share = best_share(self._costs, in_use, monitor.traffic(), mean_context, room)
        return self._share.share

    # ------------------------------------------------------------------ for the guard
    @property
    def promised(self) -> float:
        """What the rule saves against mixing in every request at once, by the cost model."""
        return self._share.gain

    @property
    def saturated(self) -> bool:
        """Whether throughput is what counts: more wait than fit, or they come as others end."""
        return self.choice.waiting > self.choice.fit or self._population.closed

    # ------------------------------------------------------------------ learning
    def observe(self, step: StepReport) -> None:
        """Follow phases and clocks, and pass the step on to what learns."""
        iterations = step.iterations
        self._iterations += iterations
        self._countdown -= iterations
        if step.decodes:
            self._seconds_without_decode = 0.0
        else:
            self._seconds_without_decode += step.end - step.start
        phase = self._phase
        if step.prefill_tokens:
            self._decoded = 0
            if phase is not None:
                phase.exclusive, phase.first = phase.then, 0
        else:
            self._decoded += iterations
        if phase is not None:
            phase.quota = 0 if step.kv_blocked else max(0, phase.quota - step.admitted)
        if self.targets.limits_slices:
            self.targets.observe(step, self.cost, self.monitor.law)
        self.cost.observe(step)
        self.monitor.observe(step)
        self.admission.observe(step)
