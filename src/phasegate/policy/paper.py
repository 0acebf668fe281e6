"""EB(k*) and EB+ to the letter of "Threshold-Based Exclusive Batching for LLM Inference"
(arXiv 2606.00516), for comparison with ours: eqs (3), (5) and (6), Prop. 4, its estimator and its
cold start. Windows of completions, updated every 100 of them.
"""

from __future__ import annotations

from phasegate.cost.model import CostModel
from phasegate.policy.base import Decision, Plan, Snapshot, StepReport
from phasegate.policy.mixed import mixed_plan
from phasegate.policy.options import Options
from phasegate.policy.phases import ExclusivePhases
from phasegate.policy.switch import ModeSwitch
from phasegate.theory.crossover import exclusive_gain
from phasegate.theory.estimators import PaperHazard, RecentLengths
from phasegate.theory.memory import paper_memory_safe_n
from phasegate.theory.threshold import paper_k

COLD_THETA = 0.7
"""k/N before the first 100 completions."""

FLOOR = 0.1
"""Eq. (6) can fall to nothing; the authors' code never lets N below this share of the slots."""

PERIOD = 100
"""Completions between two updates."""


class PaperRule:
    """k from eqs (3) and (5), N from eq. (6), on the paper's own estimates.

    The paper's cost is linear in the number of decodes; ours grows with their contexts, so
    beta_d is taken at the mean context that the estimates imply.
    """

    def __init__(self, cost: CostModel, n: int | None, eps: float) -> None:
        self._cost, self._fixed_n, self._eps = cost, n, eps
        self._hazard = PaperHazard()
        self._prompts = RecentLengths()
        self._next = PERIOD
        self._capacity = self._slots = 1
        self.completions = 0
        self.k, self.n = 1, 1
        self.mean_prompt = self.mean_output = 0.0

    def observe(self, step: StepReport) -> None:
        """Collect lengths."""
        for prompt in step.arrived:
            self._prompts.add(prompt)
        for finished in step.finished:
            if finished.complete:
                self._hazard.add(finished.generated)
                self.completions += 1

    def update(self, now: Snapshot, budget: int) -> bool:
        """Follow the engine's limits and new estimates; True if the estimates are new."""
        slots = min(self._fixed_n or now.slots, now.slots, budget)
        if self.completions < PERIOD:
            self.n, self.k = slots, max(1, round(COLD_THETA * slots))
            return False
        if self.completions < self._next and slots == self._slots:
            return False
        self._next = self.completions + PERIOD
        self._slots = slots
        fit = self._hazard.fit()
        self.mean_prompt, self.mean_output = self._prompts.mean, fit.mean
        p0 = max(fit.p0, 1.0 / fit.mean)
        n = slots
        for _ in range(3):  # eq. (6) needs theta, eq. (5) needs N
            self.k = self._k(n, fit.p0, fit.eta)
            if self._fixed_n is None:
                theta = min(self.k / n, 0.8)
                n = paper_memory_safe_n(now.kv_capacity, self.mean_prompt, p0, theta, self._eps)
                n = min(max(n, round(FLOOR * slots)), slots)
        self.n = n
        self.k = min(self._k(n, fit.p0, fit.eta), n)
        return True

    def _k(self, n: int, p0: float, eta: float) -> int:
        cost = self._cost
        return paper_k(
            n,
            self.mean_output,
            cost.alpha_prefill,
            cost.alpha_decode,
            p0=p0,
            eta=eta,
            beta_d=self.beta_d(),
        )

    def beta_d(self) -> float:
        """Seconds per decoding request at the mean context mu_L + mu_O/2."""
        context = self.mean_prompt + self.mean_output / 2
        return self._cost.seconds(0, 0.0, 1, context) - self._cost.alpha_decode

    def beta_p(self) -> float:
        """Seconds per prompt token of a prompt of mean length."""
        length = self.mean_prompt
        whole = self._cost.seconds(length, length * length / 2, 0, 0.0)
        return (whole - self._cost.alpha_prefill) / length

    def beta_mixed(self) -> float:
        """beta_MB^e(r): seconds per token of a mixed iteration at the traffic's own share of
        decodes, with its fixed cost folded in (then alpha_MB = 0 in Prop. 4)."""
        n_d = max(1.0, self.n * (1.0 - 1.0 / self.mean_output))
        n_p = self.n / self.mean_output * self.mean_prompt
        context = self.mean_prompt + self.mean_output / 2
        seconds = self._cost.seconds(n_p, n_p * self.mean_prompt / 2, n_d, n_d * context)
        return seconds / (n_p + n_d)


class PaperThreshold:
    """EB(k*) by eqs (3), (5) and (6)."""

    def __init__(
        self, options: Options, cost: CostModel, n: int | None, eps: float, spec: str
    ) -> None:
        self._options = options
        self._rule = PaperRule(cost, n, eps)
        self._phases = ExclusivePhases(options)
        self.spec = spec

    def plan(self, now: Snapshot) -> Plan:
        """Decode or refill."""
        self._rule.update(now, self._options.budget(now))
        return self._phases.plan(now, self._rule.k, self._rule.n)

    def observe(self, step: StepReport) -> None:
        """Collect lengths, follow the phases."""
        self._rule.observe(step)
        self._phases.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "exclusive"."""
        return Decision("exclusive", self._rule.k, self._rule.n)


class PaperHybrid:
    """EB+: Prop. 4 every 100 completions, with hysteresis."""

    def __init__(
        self, options: Options, cost: CostModel, n: int | None, eps: float, spec: str
    ) -> None:
        self._options = options
        self._cost = cost
        self._rule = PaperRule(cost, n, eps)
        self._phases = ExclusivePhases(options)
        self._switch = ModeSwitch()
        self.spec = spec

    def plan(self, now: Snapshot) -> Plan:
        """Plan in the current mode, after weighing the two if the estimates are new."""
        rule = self._rule
        if rule.update(now, self._options.budget(now)):
            self._switch.weigh(self._gain(), rule.completions)
        if self._switch.exclusive:
            return self._phases.plan(now, rule.k, rule.n)
        return mixed_plan(now, rule.n, self._options)

    def _gain(self) -> float:
        """Prop. 4, relative to the cost of a token under mixed batching."""
        rule = self._rule
        beta_mixed = rule.beta_mixed()
        gain = exclusive_gain(
            n=rule.n,
            k=rule.k,
            theta=min(rule.k / rule.n, 0.99),
            mean_prompt=rule.mean_prompt,
            mean_output=rule.mean_output,
            alpha_p=self._cost.alpha_prefill,
            alpha_d=self._cost.alpha_decode,
            beta_p=rule.beta_p(),
            beta_d=rule.beta_d(),
            beta_mixed=beta_mixed,
        )
        return gain / beta_mixed

    def observe(self, step: StepReport) -> None:
        """Collect lengths, follow the phases."""
        self._rule.observe(step)
        self._phases.observe(step)

    @property
    def decision(self) -> Decision:
        """Mode "mixed" or "exclusive"."""
        if self._switch.exclusive:
            return Decision("exclusive", self._rule.k, self._rule.n)
        return Decision("mixed", None, self._rule.n)
