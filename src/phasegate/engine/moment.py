"""Why a policy did what it did at a chosen moment of a simulated run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from phasegate.cost.model import CostModel
from phasegate.engine.clock import VirtualClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.loop import Engine
from phasegate.policy.base import Policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.scheduler import Scheduler
from phasegate.workload.source import Source


@runtime_checkable
class ExplainingPolicy(Policy, Protocol):
    """A policy that can account for its last decision (`auto`)."""

    def explain(self) -> list[str]:
        """What it did last and why, one statement per line."""
        ...


def explain_at(
    moment: float, cost: CostModel, source: Source, policy: ExplainingPolicy, limits: Limits
) -> list[str]:
    """Simulate until `moment` (seconds) and let the policy explain its last decision.

    Returns its statements; the last line says so if all requests had ended before.

    Args:
        moment: virtual clock, seconds; 0 explains the first decision.
        cost, source, policy, limits: as in `simulate`; source and policy are used up.
    """
    clock = VirtualClock()
    engine = Engine(policy, Scheduler(limits), CostModelRunner(cost), clock)
    told = 0
    while True:
        if source.next_arrival() <= clock.now():
            for request in source.take(clock.now()):
                engine.submit(request)
        worked = engine.step(min(source.next_arrival(), moment))
        if engine.ended > told:
            source.finished(engine.ended - told, clock.now())
            told = engine.ended
        if worked:
            if clock.now() >= moment:
                return policy.explain()
            continue
        arrival = source.next_arrival()
        if arrival == float("inf"):
            return [*policy.explain(), f"all requests had ended by {clock.now():.3f} s"]
        clock.wait_until(arrival)
