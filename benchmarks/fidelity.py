"""Is the simulator right? A real model under 4 policies and 3 workloads, and the same runs
simulated with costs that were measured just before, on the same machine.

    python benchmarks/fidelity.py            # about 8 minutes on 2 cores, demo model
    python benchmarks/fidelity.py --quick    # 1 minute

Allowed (issue 4): throughput and mean E2E 5 %, TTFT and ITL P50 10 %, P99 20 %. A busy machine
breaks it: costs then change between calibration and run. `benchmarks/engines.py` has the speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator

from harness import draw_requests, markdown, publish

from phasegate.cost.model import CostModel
from phasegate.engine.simulate import simulate
from phasegate.model import measured
from phasegate.model.demo import demo_model
from phasegate.model.loading import load_model
from phasegate.model.runner import TorchRunner
from phasegate.model.threads import set_threads
from phasegate.policy.spec import build_policy
from phasegate.report.fidelity import Cell, cells
from phasegate.report.summary import summarise
from phasegate.scheduler.limits import Limits
from phasegate.workload import source_of

POLICIES = ("static:n=16", "mixed", "exclusive:k=4", "hybrid")
WORKLOADS = {
    "conversation": "prompt=96,output=48,prompt_dist=lognormal:0.8,output_dist=lognormal:0.8",
    "decode-heavy": "prompt=32,output=96,output_dist=geometric",
    "prefill-heavy": "prompt=192,output=16,prompt_dist=uniform:0.5,output_dist=geometric",
}
SLOTS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="folder, .gguf, hub id or demo")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all usable cores)")
    parser.add_argument("--calibrate", type=float, default=45.0, help="seconds")
    parser.add_argument("--requests", type=int, default=96, help="per run")
    parser.add_argument("--quick", action="store_true", help="one workload, 32 requests")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.calibrate = 32, 15.0

    set_threads(options.threads)
    model = load_model(demo_model() if options.model == "demo" else options.model)
    runner = TorchRunner(model, kv_tokens=64 * 1024, page=256, slots=32)
    limits = Limits(runner.kv_tokens, slots=32, token_budget=1024, page=runner.page)
    profile, fit = measured.calibrate(runner, limits, options.calibrate)
    cost = profile.cost_model()
    print(f"calibrated: {cost}\nR^2 {fit.r2:.4f}, typical error {fit.typical:.1%}\n", flush=True)

    workloads = dict(list(WORKLOADS.items())[: 1 if options.quick else None])
    rows: list[tuple[str, Cell]] = []
    for name, spec in workloads.items():
        for policy in POLICIES:
            for cell in _compare(runner, limits, cost, policy, spec, options.requests):
                rows.append((name, cell))
                print(f"{name:14} {policy:14} {cell.title:9} {cell.error:+.1%}", flush=True)
    publish("fidelity", sys.argv[1:], _report(rows), options.write)


def _compare(
    runner: TorchRunner,
    limits: Limits,
    cost: CostModel,
    policy: str,
    workload: str,
    requests: int,
) -> Iterator[Cell]:
    table = draw_requests(workload, requests=requests, concurrency=SLOTS + 8)
    real = measured.run_workload(
        runner, source_of(table), build_policy(policy, cost, limits), limits
    )
    guess = simulate(cost, source_of(table), build_policy(policy, cost, limits), limits)
    yield from cells([summarise(guess)], [summarise(real)])


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
