"""vLLM's schedulers with a phase gate around `schedule()`. Imports vLLM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from phasegate.cost.profile import load_profile
from phasegate.files import check_writable
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.vllm.gate import Gate
from phasegate.vllm.learned import Learned, Origin
from phasegate.vllm.metrics import Publisher
from phasegate.vllm.settings import Settings, load_settings
from phasegate.vllm.support import changed_internals, unknown_version, untested_feature
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")


class _Gated:
    """Every iteration stays one call of stock `schedule()`; no attribute of vLLM's is shadowed."""

    _phasegate: Gate | None = None  # None: as stock; so it is while vLLM's constructor runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phasegate = _open_gate(self)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        gate = self._phasegate
        if gate is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        gate.before(bool(args[0] if args else kwargs.get("throttle_prefills", False)))
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            gate.restore()
        gate.after(output)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        if self._phasegate is not None:
            self._phasegate.observe(scheduler_output)
        return result

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._phasegate is not None:
            self._phasegate.arrive(request)
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._phasegate is not None:
            self._phasegate.leave(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        if self._phasegate is not None:
            self._phasegate.close()
        return super().shutdown(*args, **kwargs)  # type: ignore[misc]


class PhaseScheduler(_Gated, Scheduler):  # type: ignore[misc]
    """For synchronous scheduling."""


class PhaseAsyncScheduler(_Gated, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling."""


def build(*args: Any, **kwargs: Any) -> Any:
    """The scheduler that this server needs: ours, or vLLM's own for pooling and diffusion."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    asynchronous = config.scheduler_config.async_scheduling
    model = config.model_config
    if getattr(model, "is_diffusion", False):
        from vllm.v1.core.sched import diffusion_scheduler

        name = "DiffusionAsyncScheduler" if asynchronous else "DiffusionScheduler"
        cls = getattr(diffusion_scheduler, name)
    elif model.runner_type == "pooling":
        cls = AsyncScheduler if asynchronous else Scheduler
    else:
        cls = PhaseAsyncScheduler if asynchronous else PhaseScheduler
    if not issubclass(cls, _Gated):
        logger.info("phasegate: stock scheduler, this model does not decode token by token")
    return cls(*args, **kwargs)


def _open_gate(scheduler: Any) -> Gate | None:
    """A gate for this server, or None and one line in the log that says why there is none."""
    settings = load_settings(scheduler.vllm_config.additional_config)
    if not settings.enabled:
        logger.info("phasegate: disabled by its settings, stock scheduler")
        return None
    problem = None if settings.untested else unknown_version(vllm.__version__)
    problem = problem or changed_internals(scheduler, Request.__init__, Scheduler.schedule)
    if problem:
        logger.error("phasegate: stock scheduler, %s", problem)
        return None
    if feature := untested_feature(scheduler):
        logger.warning("phasegate: stock scheduler, %s is not supported yet", feature)
        return None
    view = View(scheduler)
    policy = _choose_policy(settings, scheduler, view)
    logger.info("phasegate: %s on vLLM %s", policy.spec, vllm.__version__)
    out = Path(settings.profile_out) if settings.profile_out else None
    learned = Learned(policy, out, lambda: _origin(scheduler, view))
    return Gate(scheduler, view, policy, learned, Publisher(scheduler.vllm_config))


def _choose_policy(settings: Settings, scheduler: Any, view: View) -> Policy:
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


def _origin(scheduler: Any, view: View) -> Origin:
    from vllm.platforms import current_platform

    model = str(scheduler.vllm_config.model_config.model).rstrip("/").rsplit("/", 1)[-1]
    device = str(current_platform.get_device_name()) or "unknown"
    return Origin(model, device, max(view.kv_capacity, 1), f"vLLM {vllm.__version__}")
