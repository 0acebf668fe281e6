"""What was learned while serving: as metrics, and as a profile that the next server starts from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

from phasegate.cost.online import DECODE, FLIP, MIXED, PREFILL, OnlineCost, Prior
from phasegate.cost.profile import InterferenceConstants, Profile, Provenance
from phasegate.policy.auto import Auto
from phasegate.policy.base import NEVER, Policy, StepReport
from phasegate.policy.traffic import TrafficMonitor

logger = logging.getLogger("vllm.phasegate")

ENOUGH = 64
"""Decode iterations, and ..."""
ENOUGH_PREFILLS = 8
"""... iterations with prompt tokens, before costs are worth keeping."""
PERIOD = 60.0
"""Seconds between two savings."""


class Origin(NamedTuple):
    """What a profile is of: names of model and device, KV capacity in tokens, engine."""

    model: str
    device: str
    kv_capacity: int
    engine: str


class Learned:
    """Costs and traffic as they were learned; `auto` does it anyway, for other policies on the side
    if a profile is asked for."""

    def __init__(self, policy: Policy, out: Path | None, about: Callable[[], Origin]) -> None:
        """
        Args:
            policy: the one that serves.
            out: where the profile goes; None: nowhere.
            about: what was measured.
        """
        self.cost: OnlineCost | None = None
        self.traffic: TrafficMonitor | None = getattr(policy, "_monitor", None)
        self._aside = False
        if isinstance(policy, Auto):
            self.cost, self.traffic = policy.rule.cost, policy.rule.monitor
        elif out is not None:
            self.cost, self._aside = OnlineCost(Prior.unknown()), True
        self._out, self._about = out, about
        self._saved = 0
        self._due = 0.0 if out is not None else NEVER

    def observe(self, step: StepReport) -> None:
        """Learn from a step, unless the policy does; save once in a while."""
        if self._aside and self.cost is not None:
            self.cost.observe(step)
        if step.end >= self._due:
            self._due = step.end + PERIOD
            self.save()

    def constants(self) -> InterferenceConstants | None:
        """What was learned, in the form that profiles have; None: not enough yet."""
        cost = self.cost
        if cost is None or not cost.version:
            return None
        rows = cost.rows
        if rows[DECODE] + rows[FLIP] < ENOUGH or rows[PREFILL] + rows[MIXED] < ENOUGH_PREFILLS:
            return None
        known = cost.constants
        kappa = known["k_m"] / known["k_d"] if known["k_d"] > 0 else 1.0
        return InterferenceConstants(
            alpha_p=max(known["alpha_p"], 1e-9),  # an iteration that is free would be no profile
            alpha_d=max(known["alpha_d"], 1e-9),
            beta_p=known["beta_p"],
            beta_q=known["beta_q"],
            b_d=known["b_d"],
            k_d=known["k_d"],
            kappa=max(kappa, 1.0),
            host=0.0,
        )

    def save(self) -> None:
        """Write the profile, if one is wanted and there is something new in it. An error is logged
        and ends it."""
        constants = self.constants() if self._out is not None else None
        if self._out is None or constants is None or self.cost is None:
            return
        if self.cost.version == self._saved:
            return
        self._saved = self.cost.version
        prefill, decode, mixed, flips = self.cost.rows
        try:
            model, device, kv_capacity, engine = self._about()
            source = (
                f"serving with phasegate in {engine}: {prefill} prefill, {decode + flips} decode "
                f"and {mixed} mixed iterations, host time inside alpha"
            )
            Profile(
                schema=1,
                name=f"{device}/{model}",
                model=model,
                device=device,
                cost=constants,
                kv_capacity_tokens=kv_capacity,
                provenance=Provenance(how="measured", source=source, date=date.today()),
            ).save(self._out)
        except Exception as error:
            self._out = None
            logger.warning("phasegate: no profile is saved (%s)", error)
