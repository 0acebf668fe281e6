"""Requests that come by themselves (Poisson), at a share of what mixed batching can serve: what a
policy does to TTFT, ITL and E2E while there is no throughput to win, and beyond.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from harness import (
    DEVICES,
    draw_requests,
    each,
    markdown,
    mode_switches,
    parser,
    publish,
    rate,
    run_policy,
)

from phasegate.report.summary import RunSummary, summarise

POLICIES = ("mixed", "exclusive:k=1", "threshold", "hybrid")
LOADS = (0.3, 0.6, 0.9, 1.1)
PAIRS = {"prefill-heavy": (1024, 128), "chat": (512, 256), "decode-heavy": (128, 1024)}

TTFT_LIMIT = 1.2
"""At the lightest load no policy may make the mean TTFT so much longer than `mixed` does."""


@dataclass(frozen=True)
class Case:
    """A device and a workload."""

    device: str
    name: str

    @property
    def workload(self) -> str:
        """Prompts are uniform +-50 %, outputs geometric."""
        prompt, output = PAIRS[self.name]
        return f"prompt={prompt},output={output},prompt_dist=uniform:0.5,output_dist=geometric"


@dataclass(frozen=True)
class Outcome:
    """One policy at one load."""

    load: float
    policy: str
    run: RunSummary
    switches: int


def serve(case: Case, requests: int) -> tuple[float, list[Outcome]]:
    """The capacity of mixed batching, requests/s, and all policies at all loads."""
    full = draw_requests(case.workload, concurrency=1024, requests=2 * requests)
    capacity = rate(run_policy(case.device, "mixed:n=safe", full))
    outcomes = []
    for load in LOADS:
        table = draw_requests(case.workload, rate=load * capacity, requests=requests)
        for policy in POLICIES:
            record = run_policy(case.device, policy, table)
            outcomes.append(Outcome(load, policy, summarise(record), mode_switches(record)))
    return capacity, outcomes


def report(results: Sequence[tuple[Case, tuple[float, list[Outcome]]]]) -> str:
    """Whether light load stays light, and one table per case."""
    worst = max(
        (_ttft(outcome) / _ttft(mixed), f"`{outcome.policy}`, {case.device}, {case.name}")
        for case, (_, outcomes) in results
        for mixed, *others in [[o for o in outcomes if o.load == LOADS[0]]]
        for outcome in others
    )
    parts = [
        f"Longest mean TTFT at {100 * LOADS[0]:.0f} % load, against `mixed`: {worst[0]:.2f} times "
        f"({worst[1]}); at most {TTFT_LIMIT} wanted: {'yes' if worst[0] <= TTFT_LIMIT else 'NO'}."
    ]
    header = (
        "load, policy", "TTFT mean, ms", "p50", "p99", "ITL mean, ms", "p99", "max", "E2E mean, s",
        "running", "switches",
    )  # fmt: skip
    for case, (capacity, outcomes) in results:
        title = f"**{case.device}, {case.name}**: 100 % are {capacity:.2f} requests/s"
        parts.append(f"{title}\n\n{markdown(header, map(_row, outcomes))}")
    return "\n\n".join(parts)


def _ttft(outcome: Outcome) -> float:
    return outcome.run["ttft_s"]["mean"] or 0.0


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


def main(argv: Sequence[str]) -> None:
    """Serve everything and print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=4000, help="requests per run")
    args = options.parse_args(argv)
    names = list(PAIRS)[1:2] if args.quick else list(PAIRS)
    cases = [Case(device, name) for device in DEVICES for name in names]
    results = each(partial(serve, requests=args.requests), cases, args.processes)
    publish("open_loop", argv, report(list(zip(cases, results, strict=True))), args.write)


if __name__ == "__main__":
    main(sys.argv[1:])
