"""Simulation: the engine loop with a cost-model runner and a virtual clock."""

from __future__ import annotations

import gc
from collections.abc import Callable

from phasegate.cost.model import CostModel
from phasegate.engine.clock import VirtualClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.loop import Engine
from phasegate.engine.record import Recorder, RunRecord
from phasegate.policy.base import Policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.scheduler import Scheduler
from phasegate.workload.source import Source


def simulate(
    cost: CostModel,
    source: Source,
    policy: Policy,
    limits: Limits,
    *,
    profile: str = "",
    progress: Callable[[int], None] | None = None,
) -> RunRecord:
    """Serve all requests of `source` under `policy` in virtual time.

    Args:
        cost: seconds of an iteration; also what the device "really" costs.
        source: where requests come from; used up by the run.
        policy: a fresh policy (it learns during the run).
        limits: slots, token budget, KV.
        profile: name for the record.
        progress: called with the number of requests that ended since the last call.
    """
    recorder = Recorder()
    scheduler = Scheduler(limits)
    clock = VirtualClock()
    engine = Engine(policy, scheduler, CostModelRunner(cost), clock, recorder)
    # Nothing here makes reference cycles, and scanning millions of live objects is slow.
    collecting = gc.isenabled()
    gc.disable()
    try:
        engine.run(source, progress)
    finally:
        if collecting:
            gc.enable()
    return recorder.record(
        policy=policy.spec,
        profile=profile,
        workload=source.label,
        kv_capacity=scheduler.kv.capacity,
        slots=limits.running,
        submitted=engine.submitted,
        duration=clock.now(),
    )
