"""Which policy a server gets."""

from __future__ import annotations

import logging
from typing import Any

from phasegate.cost.profile import load_profile
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.vllm.settings import Settings
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")


def choose_policy(settings: Settings, scheduler: Any, view: View) -> Policy:
    """The policy of the settings.

    Raises InputError for a spec or a profile that is wrong, or if a policy that cannot do without
    a profile has none.
    """
    limits = Limits(
        kv_capacity=max(view.kv_capacity, 1),
        slots=scheduler.scheduler_config.max_num_seqs,
        token_budget=scheduler.max_num_scheduled_tokens,
        page=max(round(view.page), 1),
    )
    cost = load_profile(settings.profile).cost_model() if settings.profile else None
    return build_policy(settings.policy, cost, limits)
