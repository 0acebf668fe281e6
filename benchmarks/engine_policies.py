"""`auto` against the other policies on a real model, on this machine.

    python benchmarks/engine_policies.py            # about 10 minutes on 2 idle cores, demo model
    python benchmarks/engine_policies.py --quick    # one workload, two rounds

Three workloads in a closed loop. The policies take turns round by round, every round with requests
of its own, so that what disturbs the machine hits all of them; the order is reversed every other
round. Costs are measured before each workload: `threshold` and `hybrid` decide by them, `auto`
starts from them and learns on, afresh in every run. Compared are the times that the runs of one
round took: the median over the rounds of (time of another policy / time of `auto`).

Issue 3 asks that `auto` is never below 0.98 times the best of the others.
"""

from __future__ import annotations

import statistics
import sys

from fidelity import SLOTS, WORKLOADS, serve
from harness import draw_requests, markdown, parser, publish

from phasegate.calibrate.fit import fit_interference
from phasegate.model import measured
from phasegate.model.demo import demo_model
from phasegate.model.loading import load_model
from phasegate.model.runner import TorchRunner
from phasegate.model.threads import set_threads
from phasegate.scheduler.limits import Limits

OTHERS = ("mixed", "exclusive:k=4", "threshold", "hybrid")
WANTED = 0.98


def main() -> None:
    """Run and print."""
    options = parser(__doc__ or "")
    options.add_argument("--threads", type=int, help="CPU threads (default: all usable cores)")
    options.add_argument("--calibrate", type=float, default=20.0, help="seconds per workload")
    options.add_argument("--requests", type=int, default=0, help="per run")
    options.add_argument("--rounds", type=int, default=0)
    arguments = options.parse_args()
    set_threads(arguments.threads)
    requests = arguments.requests or (32 if arguments.quick else 96)
    rounds = arguments.rounds or (2 if arguments.quick else 3)
    runner = TorchRunner(load_model(demo_model()), kv_tokens=64 * 1024, page=256, slots=SLOTS)
    limits = Limits(runner.kv_tokens, slots=SLOTS, token_budget=1024, page=runner.page)
    workloads = dict(list(WORKLOADS.items())[: 1 if arguments.quick else None])

    rows, worst = [], float("inf")
    for name, spec in workloads.items():
        samples = measured.measure_samples(runner, limits, arguments.calibrate)
        cost = fit_interference(samples).cost
        seconds: dict[str, list[float]] = {policy: [] for policy in (*OTHERS, "auto")}
        for turn in range(rounds):
            table = draw_requests(spec, requests=requests, concurrency=SLOTS + 8, seed=turn)
            for policy in list(seconds)[:: 1 if turn % 2 else -1]:
                run = serve(runner, limits, cost, policy, table)
                seconds[policy].append(run.record.duration)
        mine = seconds.pop("auto")
        ratios = {
            policy: statistics.median(o / m for o, m in zip(theirs, mine, strict=True))
            for policy, theirs in seconds.items()
        }
        worst = min(worst, *ratios.values())
        rate = requests / statistics.median(mine)
        rows.append([name, f"{rate:.2f}", *(f"{ratio:.3f}" for ratio in ratios.values())])
    head = ["workload", "auto, req/s", *(f"auto / `{policy}`" for policy in OTHERS)]
    verdict = (
        f"{requests} requests, {SLOTS} slots, {rounds} rounds. Least ratio {worst:.3f}; at least "
        f"{WANTED} wanted: {'yes' if worst >= WANTED else 'no'}."
    )
    publish(
        "engine_policies", sys.argv[1:], f"{verdict}\n\n{markdown(head, rows)}", arguments.write
    )


if __name__ == "__main__":
    main()
