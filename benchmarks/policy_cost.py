"""What a policy itself costs: CPU time of plan() and observe() per iteration at 1,024 running.

    python benchmarks/policy_cost.py

Closed loops on the H200 preset, with and without a KV limit, and under a latency target; admission
and learning included, decode iterations that the simulator jumps over counted. A run with the
policy is compared with one that replays its plans, so the clock is read twice per run and not in
every iteration (on a virtual machine that alone can take longer than a plan). The least of
several runs each, by turns: other programs on the machine only ever add to them. The last line
is a loop of fixed work, to compare machines by.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, WorkloadSpec, source_of
from phasegate.workload.draw import draw

DEVICE = "h200/qwen3-8b"
WORKLOAD = "prompt=512,output=256,prompt_dist=lognormal:1,output_dist=geometric"
REQUESTS = 20_000
RUNS = 5
CASES = (  # spec, KV tokens, concurrency
    ("mixed:n=safe", 1_000_000, 1024),
    ("hybrid", 1_000_000, 1024),
    ("auto", 1_000_000, 1024),
    ("auto", 780_000, 2048),
    ("auto:itl=0.1", 780_000, 1500),
)


class Recorded:
    """A policy that keeps its plans."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.spec = policy.spec
        self.plans: list[Plan] = []
        self.observe = policy.observe

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        plan = self._policy.plan(now)
        self.plans.append(plan)
        return plan

    @property
    def decision(self) -> Decision:
        """See Policy."""
        return self._policy.decision


class Replay:
    """Plans as recorded, at next to no cost."""

    spec = "replay"
    decision = Decision("replay", None, 0)

    def __init__(self, plans: list[Plan]) -> None:
        self._next = iter(plans).__next__

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        return self._next()

    def observe(self, step: StepReport) -> None:
        """See Policy."""


def measure(spec: str, kv: int, concurrency: int) -> tuple[float, float]:
    """Microseconds per iteration, and mean occupied slots while it is busy."""
    cost = load_profile(DEVICE).cost_model()
    limits = Limits(kv, slots=1024, token_budget=16384)
    requests = WorkloadSpec.parse(WORKLOAD).resolve(concurrency=concurrency, requests=REQUESTS)
    table = draw(requests, 0)

    def run(policy: Policy) -> RunRecord:
        return simulate(cost, source_of(RequestTable(**vars(table))), policy, limits)

    recorded = Recorded(build_policy(spec, cost, limits))
    record = run(recorded)
    own, bare = [], []
    for _ in range(RUNS):
        own.append(cpu_seconds(lambda: run(build_policy(spec, cost, limits))))
        bare.append(cpu_seconds(lambda: run(Replay(recorded.plans))))
    iterations = len(record.iterations["kind"])
    slots = record.iterations["slots"][: iterations // 2]
    return (min(own) - min(bare)) / iterations * 1e6, float(slots.mean())


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process for `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def fixed_work() -> None:
    """A loop of 100,000 rounds."""
    total = 0
    for i in range(100_000):
        total += i * 3 % 7


def main() -> None:
    print("| policy | KV, tokens | requests in flight | mean slots | us per iteration |")
    print("|---|---|---|---|---|")
    for spec, kv, concurrency in CASES:
        cost, slots = measure(spec, kv, concurrency)
        print(f"| {spec} | {kv:,} | {concurrency} | {slots:.0f} | {cost:.1f} |", flush=True)
    each = min(cpu_seconds(fixed_work) for _ in range(20)) / 100_000
    print(f"\nOne round of `total += i * 3 % 7` took {each * 1e9:.0f} ns.")


if __name__ == "__main__":
    main()
