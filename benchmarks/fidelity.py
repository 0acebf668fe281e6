"""Is the simulator right? A real model under 4 policies and 3 workloads, and the same runs
simulated with costs that were measured around them, on the same machine.

    python benchmarks/fidelity.py            # about 8 minutes on 2 cores, demo model
    python benchmarks/fidelity.py --quick    # 1 minute

Costs are measured in blocks, before the first workload and after each one; a workload is predicted
from the two blocks around it. How far the blocks are apart is printed: a machine that other work
slows down meanwhile cannot be predicted better than that. So are the errors of single iterations,
by kind, which tell an error of the cost model from an error of the simulator.

Allowed (issue 4): throughput and mean E2E 5 %, TTFT and ITL P50 10 %, P99 20 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field

import numpy as np
from harness import draw_requests, markdown, publish

from phasegate.calibrate.fit import Sample, fit_interference
from phasegate.cost.model import CostModel
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.model import measured
from phasegate.model.demo import demo_model
from phasegate.model.loading import load_model
from phasegate.model.runner import TorchRunner
from phasegate.model.threads import set_threads
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.report.fidelity import Cell, cells
from phasegate.report.summary import summarise
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, source_of

POLICIES = ("static:n=16", "mixed", "exclusive:k=4", "hybrid")
WORKLOADS = {
    "conversation": "prompt=96,output=48,prompt_dist=lognormal:0.8,output_dist=lognormal:0.8",
    "decode-heavy": "prompt=32,output=96,output_dist=geometric",
    "prefill-heavy": "prompt=192,output=16,prompt_dist=uniform:0.5,output_dist=geometric",
}
SLOTS = 16


@dataclass
class Watched:
    """A policy that also keeps what every iteration was made of and how long it took."""

    policy: Policy
    iterations: list[Sample] = field(default_factory=list)

    @property
    def spec(self) -> str:
        """See Policy."""
        return self.policy.spec

    @property
    def decision(self) -> Decision:
        """See Policy."""
        return self.policy.decision

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        return self.policy.plan(now)

    def observe(self, step: StepReport) -> None:
        """See Policy."""
        size = (step.prefill_tokens, step.prefill_attention, step.decodes, step.context_tokens)
        self.iterations.append(Sample(*size, step.durations[0]))
        self.policy.observe(step)


@dataclass(frozen=True)
class Run:
    """A workload served for real."""

    policy: str
    decided_by: CostModel
    table: RequestTable
    record: RunRecord
    iterations: list[Sample]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="folder, .gguf, hub id or demo")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all usable cores)")
    parser.add_argument("--calibrate", type=float, default=30.0, help="seconds per block")
    parser.add_argument("--requests", type=int, default=96, help="per run")
    parser.add_argument("--quick", action="store_true", help="one workload, 32 requests")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.calibrate = 32, 10.0

    set_threads(options.threads)
    model = load_model(demo_model() if options.model == "demo" else options.model)
    runner = TorchRunner(model, kv_tokens=64 * 1024, page=256, slots=32)
    limits = Limits(runner.kv_tokens, slots=32, token_budget=1024, page=runner.page)
    workloads = dict(list(WORKLOADS.items())[: 1 if options.quick else None])

    blocks = [measured.measure_samples(runner, limits, options.calibrate)]
    runs: dict[str, list[Run]] = {}
    for turn, (name, spec) in enumerate(workloads.items(), 1):
        cost = fit_interference(blocks[-1]).cost
        table = draw_requests(spec, requests=options.requests, concurrency=SLOTS + 8)
        runs[name] = [serve(runner, limits, cost, policy, table) for policy in POLICIES]
        blocks.append(measured.measure_samples(runner, limits, options.calibrate, seed=turn))

    rows: list[tuple[str, Cell]] = []
    kinds: list[list[str]] = []
    for i, (name, served) in enumerate(runs.items()):
        fit = fit_interference([*blocks[i], *blocks[i + 1]])
        print(f"{name}: {fit.cost}\nR^2 {fit.r2:.4f}, typical error {fit.typical:.1%}", flush=True)
        for run in served:
            policy = build_policy(run.policy, run.decided_by, limits)
            guess = simulate(fit.cost, source_of(run.table), policy, limits)
            rows += [(name, cell) for cell in cells([summarise(guess)], [summarise(run.record)])]
        iterations = [s for run in served for s in run.iterations]
        kinds.append([name, *_by_kind(iterations, fit.cost)])
    text = "\n\n".join((_report(rows), _iteration_errors(kinds), drift(blocks)))
    publish("fidelity", sys.argv[1:], text, options.write)


def serve(
    runner: TorchRunner, limits: Limits, cost: CostModel, policy: str, table: RequestTable
) -> Run:
    """Serve a workload on the real model; says on stderr how long it took."""
    watched = Watched(build_policy(policy, cost, limits))
    record = measured.run_workload(runner, source_of(table), watched, limits)
    print(f"{policy} served in {record.duration:.1f} s", file=sys.stderr, flush=True)
    return Run(policy, cost, table, record, watched.iterations)


def _predicted(cost: CostModel, s: Sample) -> float:
    return cost.seconds(s.prefill_tokens, s.prefill_attention, s.decodes, s.context_tokens)


KINDS = ("prefill alone", "decode alone", "first decode after prefill", "mixed")


def _by_kind(iterations: list[Sample], cost: CostModel) -> list[str]:
    """Median error of the predicted seconds of an iteration, for each of `KINDS`."""
    errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
    before = ""
    for s in iterations:
        kind = KINDS[3] if s.prefill_tokens and s.decodes else KINDS[0] if s.prefill_tokens else ""
        if not kind:
            kind = KINDS[2] if before == KINDS[0] else KINDS[1]
        errors[kind].append(_predicted(cost, s) / s.seconds - 1.0)
        before = kind
    return [
        f"{100 * statistics.median(found):+.1f} % ({len(found)})" if found else ""
        for found in errors.values()
    ]


def _iteration_errors(rows: list[list[str]]) -> str:
    head = "Predicted against measured seconds of an iteration, median (and how many there were):"
    return f"{head}\n\n{markdown(['workload, all policies', *KINDS], rows)}"


def drift(blocks: list[list[Sample]]) -> str:
    """How the machine's speed changed: each block against the costs of all of them."""
    cost = fit_interference([s for block in blocks for s in block]).cost
    speed = [float(np.median([s.seconds / _predicted(cost, s) for s in b])) for b in blocks]
    spread = 100 * (max(speed) / min(speed) - 1)
    shown = ", ".join(f"{100 * (s - 1):+.1f} %" for s in speed)
    return (
        f"Iterations before, between and after the workloads took {shown} against the average: "
        f"the machine's speed changed by {spread:.1f} % meanwhile."
    )


def _report(rows: list[tuple[str, Cell]]) -> str:
    titles = list(dict.fromkeys(cell.title for _, cell in rows))
    by_run: dict[tuple[str, str], dict[str, Cell]] = {}
    for name, cell in rows:
        by_run.setdefault((name, cell.policy), {})[cell.title] = cell
    lines = []
    for (name, policy), found in by_run.items():
        row = [f"{name}, `{policy}`"]
        for title in titles:
            cell = found[title]
            row.append(f"{cell.error * 100:+.1f} %" + ("" if cell.faithful else " !"))
        lines.append(row)
    medians = ["median of the absolute errors"]
    for title in titles:
        errors = [abs(cell.error) for _, cell in rows if cell.title == title]
        medians.append(f"{statistics.median(errors) * 100:.1f} %")
    kept = sum(cell.faithful for _, cell in rows)
    return (
        f"{kept} of {len(rows)} cells are within what is allowed; ! marks the others.\n\n"
        + markdown(["predicted against measured", *titles], [*lines, medians])
    )


if __name__ == "__main__":
    main()
