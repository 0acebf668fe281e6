"""The real traces end to end, slow to overloaded, under four policies: every request accounted for.

Azure conversation 2023 (19,366 requests) and Mooncake conversation (12,031 requests, prompts to
126,195 tokens; without prefix caching), replayed at a multiple of their recorded rate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from harness import DEVICES, each, markdown, mode_switches, parser, publish, run_policy

from phasegate.report.summary import RunSummary, summarise
from phasegate.workload import RequestTable, read_trace

H200, RTX = DEVICES
POLICIES = ("mixed", "exclusive:k=1", "threshold", "hybrid")
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "traces"


@dataclass(frozen=True)
class Trace:
    """A recorded trace, and how many times faster it is sent to each device."""

    name: str
    file: str
    requests: int
    scales: tuple[tuple[str, tuple[float, ...]], ...]


TRACES = (
    Trace(
        "Azure conversation",
        "azure_llm_2023_conv.csv",
        19_366,
        ((RTX, (0.5, 1.0, 1.5, 4.0)), (H200, (1.0, 2.0, 3.0, 4.0))),
    ),
    Trace(
        "Mooncake conversation",
        "mooncake_conversation.jsonl",
        12_031,
        ((RTX, (0.125, 0.25, 0.5)), (H200, (0.25, 0.5, 1.0))),
    ),
)


@dataclass(frozen=True)
class Case:
    """One run."""

    trace: Trace
    device: str
    scale: float
    policy: str


def replay(case: Case, folder: Path, requests: int | None) -> tuple[RunSummary, int]:
    """The numbers of one run, and how often its mode changed.

    Raises AssertionError if a request is unaccounted for.
    """
    table = _table(folder / case.trace.file, requests)
    if requests is None:
        assert len(table) == case.trace.requests, f"{len(table)} requests in {case.trace.file}"
    record = run_policy(case.device, case.policy, table.scaled(case.scale), slots=256)
    summary = summarise(record)
    counts = summary["requests"]
    ended = counts["finished"] + counts["rejected"] + counts["aborted"]
    assert ended == counts["submitted"] == len(table), f"{case}: {counts}"
    return summary, mode_switches(record)


@cache
def _table(path: Path, requests: int | None) -> RequestTable:
    return read_trace(path, limit=requests)


def report(results: Sequence[tuple[Case, tuple[RunSummary, int]]]) -> str:
    """One table per trace and device."""
    parts = []
    header = (
        "rate x, policy", "finished + rejected + aborted", "requests/s", "TTFT mean, s", "p50",
        "p99", "ITL mean, ms", "p99", "max, s", "E2E mean, s", "preempted", "KV in use",
        "switches",
    )  # fmt: skip
    for trace in TRACES:
        for device in (RTX, H200):
            rows = [
                _row(case, *outcome)
                for case, outcome in results
                if case.trace == trace and case.device == device
            ]
            name = f"**{trace.name} on {device}**"
            if rows:
                parts.append(f"{name}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _row(case: Case, run: RunSummary, switches: int) -> tuple[object, ...]:
    counts, ttft, itl = run["requests"], run["ttft_s"], run["itl_s"]
    return (
        f"{case.scale:g}, `{case.policy}`",
        f"{counts['finished']:,} + {counts['rejected']} + {counts['aborted']}",
        f"{run['throughput']['requests_s']:.2f}",
        *(f"{ttft[key]:.2f}" for key in ("mean", "p50", "p99")),
        *(f"{1e3 * (itl[key] or 0.0):.0f}" for key in ("mean", "p99")),
        f"{itl['max']:.2f}",
        f"{run['e2e_s']['mean']:.2f}",
        run["preemptions"],
        f"{100 * (run['kv']['mean_utilisation'] or 0.0):.0f} %",
        switches,
    )


def main(argv: Sequence[str]) -> None:
    """Replay everything and print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--traces", type=Path, default=FOLDER, help="folder of the trace files")
    options.add_argument("--requests", type=int, help="only the first so many of each trace")
    args = options.parse_args(argv)
    cases = [
        Case(trace, device, scale, policy)
        for trace in TRACES
        for device, scales in trace.scales
        for scale in (scales[1:2] if args.quick else scales)
        for policy in POLICIES
    ]
    missing = [trace.file for trace in TRACES if not (args.traces / trace.file).exists()]
    if missing:
        raise SystemExit(f"{args.traces} has no {' and no '.join(missing)}; give --traces FOLDER")
    run = partial(replay, folder=args.traces, requests=args.requests)
    outcomes = each(run, cases, args.processes)
    publish("traces", argv, report(list(zip(cases, outcomes, strict=True))), args.write)


if __name__ == "__main__":
    main(sys.argv[1:])
