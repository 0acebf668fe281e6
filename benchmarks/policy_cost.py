"""What a policy itself costs: CPU time of plan() and observe() per iteration at 1,024 running.

    python benchmarks/policy_cost.py

Closed loops on the H200 preset, with and without a KV limit, and under a latency target; admission
and learning included, decode iterations that the simulator jumps over counted. The least of three
runs: other programs on the machine only ever add to it.
"""

from __future__ import annotations

import time

from phasegate.cost.profile import load_profile
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import WorkloadSpec, source_of
from phasegate.workload.draw import draw

DEVICE = "h200/qwen3-8b"
WORKLOAD = "prompt=512,output=256,prompt_dist=lognormal:1,output_dist=geometric"
REQUESTS = 20_000
CASES = (  # spec, KV tokens, concurrency
    ("mixed:n=safe", 1_000_000, 1024),
    ("hybrid", 1_000_000, 1024),
    ("auto", 1_000_000, 1024),
    ("auto", 780_000, 2048),
    ("auto:itl=0.1", 780_000, 1500),
)


class Timed:
    """A policy that notes its CPU time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.spec = policy.spec
        self.seconds = 0.0
        self.iterations = 0

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        began = time.process_time()
        plan = self._policy.plan(now)
        self.seconds += time.process_time() - began
        return plan

    def observe(self, step: StepReport) -> None:
        """See Policy."""
        began = time.process_time()
        self._policy.observe(step)
        self.seconds += time.process_time() - began
        self.iterations += step.iterations

    @property
    def decision(self) -> Decision:
        """See Policy."""
        return self._policy.decision


def measure(spec: str, kv: int, concurrency: int) -> tuple[float, float]:
    """Microseconds per iteration, and mean occupied slots."""
    cost = load_profile(DEVICE).cost_model()
    limits = Limits(kv, slots=1024, token_budget=16384)
    requests = WorkloadSpec.parse(WORKLOAD).resolve(concurrency=concurrency, requests=REQUESTS)
    policy = Timed(build_policy(spec, cost, limits))
    record = simulate(cost, source_of(draw(requests, 0)), policy, limits)
    return policy.seconds / policy.iterations * 1e6, float(record.iterations["slots"].mean())


def main() -> None:
    print("| policy | KV, tokens | requests in flight | mean slots | us per iteration |")
    print("|---|---|---|---|---|")
    for spec, kv, concurrency in CASES:
        runs = [measure(spec, kv, concurrency) for _ in range(3)]
        cost, slots = min(runs)
        print(f"| {spec} | {kv:,} | {concurrency} | {slots:.0f} | {cost:.1f} |", flush=True)


if __name__ == "__main__":
    main()
