"""Which policy a server gets."""

from __future__ import annotations

import logging
from typing import Any

from phasegate.cost.profile import load_profile
from phasegate.errors import InputError
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy, parse_spec
from phasegate.scheduler.limits import Limits
from phasegate.vllm.settings import Settings
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")


def choose_policy(settings: Settings, scheduler: Any, view: View) -> Policy:
    """The policy of the settings.

    Raises InputError for a spec or a profile that is wrong, or if a policy that cannot do without
    a profile has none, or for latency targets.
    """
    limits = Limits(
        kv_capacity=max(view.kv_capacity, 1),
        slots=scheduler.scheduler_config.max_num_seqs,
        token_budget=scheduler.max_num_scheduled_tokens,
        page=max(round(view.page), 1),
    )
    name, values = parse_spec(settings.policy)
    # They limit N by what slices can feed, and then no guard bounds how long a request waits
    # (tests/vllm/vllm_fuzz.py found it held for over 120 iterations).
    if name == "auto" and ("itl" in values or "ttft" in values):
        raise InputError(
            f"policy {settings.policy!r}: latency targets are not supported inside vLLM yet; "
            "leave out itl and ttft"
        )
    cost = load_profile(settings.profile).cost_model() if settings.profile else None
    return build_policy(settings.policy, cost, limits)
