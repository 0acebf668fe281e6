"""Requests that come by themselves (Poisson), at a share of what mixed batching can serve: what a
policy does to TTFT, ITL and E2E while there is no throughput to win, and beyond.

`auto` starts from constants that are each wrong by a factor of 0.2 to 5; every iteration takes a
random 3 % more or less. `--write` puts `auto` against `mixed` into docs/slo.md, and all policies
on three of the workloads into docs/results.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cells import DEVICES, WORKLOADS
from harness import SLO_PAGE, draw_requests, each, markdown, mode_switches, parser, publish, rate
from regret import NOISE, constants, hash_of
from worlds import Noisy, wrong_prior

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.spec import build_policy
from phasegate.report.summary import RunSummary, summarise
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, source_of

POLICIES = ("mixed", "exclusive:k=1", "threshold", "hybrid", "auto")
IN_DETAIL = ("prefill-heavy", "chat", "decode-heavy")
"""Workloads that all policies serve; the others are for `mixed` and `auto`."""

LOADS = (0.3, 0.5, 0.8, 0.95, 1.1)

LIGHTEST_LIMIT = 1.2
"""At the lightest load no policy may make the mean TTFT so much longer than `mixed` does."""

AUTO_LIMIT, AUTO_LOADS = 1.05, (0.5, 0.8)
"""`auto` may not make it longer than that at these loads; beyond, it has to be shorter."""


@dataclass(frozen=True)
class Case:
    """A device and a workload."""

    device: str
    workload: str

    @property
    def name(self) -> str:
        """A short name for tables."""
        return f"{self.device.split('/')[0]} {self.workload}"

    @property
    def policies(self) -> Sequence[str]:
        """Those that serve it."""
        return POLICIES if self.workload in IN_DETAIL else ("mixed", "auto")


@dataclass(frozen=True)
class Outcome:
    """One policy at one load."""

    load: float
    policy: str
    run: RunSummary
    switches: int

    @property
    def ttft(self) -> float:
        """Mean, seconds."""
        return self.run["ttft_s"]["mean"] or 0.0


Served = tuple[Case, tuple[float, list[Outcome]]]
"""A case, the capacity of mixed batching, requests/s, and what became of it."""


def run(case: Case, spec: str, table: RequestTable, seed: int) -> RunRecord:
    """One run on a noisy engine."""
    cost = constants(case.device)
    limits = Limits(load_profile(case.device).kv_capacity_tokens, slots=1024, token_budget=8192)
    policy = build_policy(spec, wrong_prior(cost, seed) if spec == "auto" else cost, limits)
    return simulate(Noisy(cost, NOISE, seed), source_of(table), policy, limits)


def serve(case: Case, requests: int) -> tuple[float, list[Outcome]]:
    """The capacity of mixed batching, requests/s, and all policies at all loads."""
    workload = WORKLOADS[case.workload]
    full = draw_requests(workload, concurrency=1024, requests=2 * requests)
    capacity = rate(run(case, "mixed:n=safe", full, 0))
    outcomes = []
    for load in LOADS:
        table = draw_requests(workload, rate=load * capacity, requests=requests)
        for policy in case.policies:
            record = run(case, policy, table, hash_of(f"{case.name} {load}"))
            outcomes.append(Outcome(load, policy, summarise(record), mode_switches(record)))
    return capacity, outcomes


def report(served: Sequence[Served]) -> str:
    """All policies on the workloads in detail, and whether light load stays light."""
    worst = max(
        (outcome.ttft / mixed.ttft, f"`{outcome.policy}`, {case.name}")
        for case, (_, outcomes) in served
        for mixed, *others in [[o for o in outcomes if o.load == LOADS[0]]]
        for outcome in others
    )
    parts = [
        f"Longest mean TTFT at {100 * LOADS[0]:.0f} % load, against `mixed`: {worst[0]:.2f} times "
        f"({worst[1]}); at most {LIGHTEST_LIMIT} wanted: "
        f"{'yes' if worst[0] <= LIGHTEST_LIMIT else 'NO'}."
    ]
    header = (
        "load, policy", "TTFT mean, ms", "p50", "p99", "ITL mean, ms", "p99", "max", "E2E mean, s",
        "running", "switches",
    )  # fmt: skip
    for case, (capacity, outcomes) in served:
        if case.workload in IN_DETAIL:
            title = f"**{case.name}**: 100 % are {capacity:.2f} requests/s"
            parts.append(f"{title}\n\n{markdown(header, map(_row, outcomes))}")
    return "\n\n".join(parts)


def _row(outcome: Outcome) -> tuple[object, ...]:
    run = outcome.run
    ttft, itl = run["ttft_s"], run["itl_s"]
    return (
        f"{100 * outcome.load:.0f} %, `{outcome.policy}`",
        *(f"{1e3 * (ttft[key] or 0.0):.0f}" for key in ("mean", "p50", "p99")),
        f"{1e3 * (itl['mean'] or 0.0):.1f}",
        *(f"{1e3 * (itl[key] or 0.0):.0f}" for key in ("p99", "max")),
        f"{run['e2e_s']['mean']:.3f}",
        f"{run['slots']['mean_busy']:.0f}",
        outcome.switches,
    )


def against_mixed(served: Sequence[Served]) -> str:
    """Mean TTFT of `auto` / that of `mixed`, and their E2E, one row per case."""
    rows = []
    found: dict[float, list[float]] = {load: [] for load in LOADS}
    for case, (capacity, outcomes) in served:
        of = {(o.policy, o.load): o for o in outcomes}
        row: list[object] = [case.name, f"{capacity:.2f}"]
        for load in LOADS:
            mixed, own = of["mixed", load], of["auto", load]
            found[load].append(own.ttft / mixed.ttft)
            e2e = own.run["e2e_s"]["mean"] / mixed.run["e2e_s"]["mean"]
            row.append(f"{found[load][-1]:.2f} / {e2e:.2f}")
        rows.append(row)
    lines = []
    for load in LOADS[1:]:
        limit = AUTO_LIMIT if load in AUTO_LOADS else 1.0
        kept = sum(ratio <= limit for ratio in found[load])
        lines.append(
            f"- {100 * load:.0f} % load: mean TTFT of `auto` against `mixed` "
            f"{sum(found[load]) / len(found[load]):.2f} times on average, {max(found[load]):.2f} "
            f"at most; at most {limit:g} wanted: {kept} of {len(found[load])}."
        )
    header = ("TTFT / E2E, auto : mixed", "100 %, req/s", *(f"{100 * x:.0f} %" for x in LOADS))
    return "\n".join(lines) + "\n\n" + markdown(header, rows)


def main(argv: Sequence[str]) -> None:
    """Serve everything and print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=4000, help="requests per run")
    args = options.parse_args(argv)
    names = ["chat"] if args.quick else list(WORKLOADS)
    cases = [Case(device, name) for device in DEVICES for name in names]
    results = each(partial(serve, requests=args.requests), cases, args.processes)
    served = list(zip(cases, results, strict=True))
    publish("open_loop", argv, report(served), args.write)
    publish("open_loop", argv, against_mixed(served), args.write, SLO_PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
