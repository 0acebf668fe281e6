"""Which policy a server gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phasegate.cost.profile import load_profile
from phasegate.files import check_writable
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.vllm.settings import Settings
from phasegate.vllm.view import View


def choose_policy(settings: Settings, scheduler: Any, view: View) -> Policy:
    """The policy of the settings.

    If `profile` and `profile_out` are the same file, it need not exist yet.

    Raises InputError for a spec or a profile that is wrong, or if a policy that cannot do without
    a profile has none, or if `profile_out` cannot be written.
    """
    limits = Limits(
        kv_capacity=max(view.kv_capacity, 1),
        slots=scheduler.scheduler_config.max_num_seqs,
        token_budget=scheduler.max_num_scheduled_tokens,
        page=max(round(view.page), 1),
    )
    profile, out = settings.profile, settings.profile_out
    if out is not None:
        check_writable(Path(out))
        if profile == out and not Path(out).exists():
            profile = None
    cost = load_profile(profile).cost_model() if profile is not None else None
    return build_policy(settings.policy, cost, limits)
