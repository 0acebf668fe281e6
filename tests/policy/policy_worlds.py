"""States, reports and engines for tests of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasegate.cost.model import CostModel, InterferenceCost
from phasegate.policy.base import Finished, Snapshot, Started, StepReport

RTX = InterferenceCost(
    alpha_p=4.69e-3, alpha_d=8.07e-3, beta_p=46.8e-6, b_d=56.0e-6, k_d=97.3e-9, kappa=3.5
)
"""Strong interference: exclusive refills win for all but the smallest batches."""

CALM = InterferenceCost(
    alpha_p=4.69e-3, alpha_d=8.07e-3, beta_p=46.8e-6, b_d=56.0e-6, k_d=97.3e-9, kappa=1.0
)
"""No interference: mixed refills win."""


def state(
    *,
    waiting: Sequence[int] = (),
    decoding: int = 0,
    context: int = 0,
    now: float = 0.0,
    oldest_wait: float = 0.0,
    prefilling: int = 0,
    pending: int = 0,
    kv_capacity: int = 1_000_000,
    kv_free: int | None = None,
    slots: int = 512,
    token_budget: int = 8192,
    kv_blocked: bool = False,
    urgent: bool = False,
    classes: Mapping[int, int] | None = None,
    head_class: int = 0,
) -> Snapshot:
    """A snapshot with the prompts in `waiting` at the head of the queue."""
    free = kv_capacity - context if kv_free is None else kv_free
    return Snapshot(
        now, len(waiting), prefilling, decoding, pending, context, kv_capacity, free, oldest_wait,
        slots, token_budget, kv_blocked, lambda limit: list(waiting[:limit]), urgent,
        classes or {}, head_class,
    )  # fmt: skip


def step(
    seconds: float = 0.01,
    *,
    start: float = 0.0,
    prefill: int = 0,
    decodes: int = 0,
    context: int = 0,
    iterations: int = 1,
    arrived: Sequence[int] = (),
    admitted: int = 0,
    started: Sequence[Started] = (),
    finished: Sequence[Finished] = (),
    preempted: Sequence[int] = (),
    kv_blocked: bool = False,
    waiting: int = 0,
) -> StepReport:
    """A report of `iterations` iterations of `seconds` each."""
    return StepReport(
        start, start + seconds * iterations, (seconds,) * iterations, iterations, prefill, 0.0,
        decodes, context, decodes, arrived, admitted, started, finished, preempted, kv_blocked,
        waiting,
    )  # fmt: skip


class Grudging:
    """Everything that decodes takes `share` longer for 10 iterations after a prefill-only one.
    A single look at mixing does not show how fast it would be to mix all the time."""

    def __init__(self, cost: CostModel, share: float) -> None:
        self._cost, self._share = cost, share
        self._left = 0
        self.alpha_prefill, self.alpha_decode = cost.alpha_prefill, cost.alpha_decode

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        seconds = self._cost.seconds(prefill_tokens, prefill_attention, decodes, context)
        if prefill_tokens and not decodes:
            self._left = 10
        elif self._left:
            self._left -= 1
            seconds *= 1.0 + self._share
        return seconds
