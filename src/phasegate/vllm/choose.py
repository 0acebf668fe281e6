"""Which policy a server gets."""

from __future__ import annotations

import logging
from typing import Any

from phasegate.cost.model import InterferenceCost
from phasegate.cost.profile import load_profile
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy, parse_spec
from phasegate.scheduler.limits import Limits
from phasegate.vllm.settings import Settings
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")

_FREE_OF_COST = ("static", "mixed", "exclusive")
"""Policies that do not ask what an iteration costs."""


def choose_policy(settings: Settings, scheduler: Any, view: View) -> Policy:
    """The policy of the settings; mixed while one that needs costs has no profile.

    Raises InputError for a spec or a profile that is wrong.
    """
    config = scheduler.scheduler_config
    limits = Limits(
        kv_capacity=max(view.kv_capacity, 1),
        slots=config.max_num_seqs,
        token_budget=scheduler.max_num_scheduled_tokens,
        page=max(round(view.page), 1),
    )
    name, _ = parse_spec(settings.policy)
    if settings.profile is not None:
        return build_policy(settings.policy, load_profile(settings.profile).cost_model(), limits)
    unknown = InterferenceCost(alpha_p=1.0, alpha_d=1.0, beta_p=0.0, b_d=0.0, k_d=0.0)
    if name not in _FREE_OF_COST:
        logger.warning("phasegate: mixed, because %r has no profile to go by", settings.policy)
        return build_policy("mixed", unknown, limits)
    return build_policy(settings.policy, unknown, limits)
