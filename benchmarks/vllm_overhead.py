"""What the gate costs on top of vLLM's own `schedule()` and `update_from_output()`.

    python benchmarks/vllm_overhead.py [--running 256 1024] [--policy hybrid:n=...] [--json FILE]

The real scheduler with a fake model. In one process, time spent in the stock calls and time spent
in ours are taken apart, so that noise of the machine hits both; medians over the iterations of
each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from time import thread_time  # not disturbed by who else runs on this machine
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

OUTPUT = 400


def measure(running: int, policy: str, model: Path) -> dict[str, dict[str, float]]:
    """Overhead by kind of iteration: stock and extra seconds, medians, and their ratio."""
    from vllm.v1.core.sched.scheduler import Scheduler as Stock
    from vllm_harness import install, make_request, make_scheduler

    scheduler = make_scheduler(model, blocks=running * 40, slots=running, budget=2048)
    gate = install(scheduler, policy)
    worker = FastWorker()
    inside = [0.0]

    def timed(name: str) -> None:
        stock = getattr(Stock, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            start = thread_time()
            try:
                return stock(self, *args, **kwargs)
            finally:
                inside[0] += thread_time() - start

        setattr(Stock, name, call)
        undo.append((name, stock))

    undo: list[tuple[str, Any]] = []
    samples: dict[str, list[tuple[float, float, float]]] = {}
    timed("schedule")
    timed("update_from_output")
    try:
        draw = random.Random(0)
        for i in range(running + 200):
            prompt = [draw.randrange(3, 500) for _ in range(64)]
            scheduler.add_request(
                make_request(str(i), prompt, draw.randrange(20, OUTPUT), scheduler)
            )
        extra, kept = 0, None
        while scheduler.has_requests():
            if scheduler.get_num_unfinished_requests() < running + 100 and extra < 4 * running:
                for _ in range(50):
                    extra += 1
                    prompt = [draw.randrange(3, 500) for _ in range(64)]
                    name, length = f"x{extra}", draw.randrange(20, OUTPUT)
                    scheduler.add_request(make_request(name, prompt, length, scheduler))
            del kept
            full = len(scheduler.running) > 0.9 * running
            inside[0] = 0.0
            start = thread_time()
            output = scheduler.schedule()
            both = thread_time() - start
            stock_schedule = inside[0]
            result = worker.run(output)
            inside[0] = 0.0
            start = thread_time()
            kept = scheduler.update_from_output(output, result)  # freeing it is not our time
            update = thread_time() - start - inside[0]
            if full and output.num_scheduled_tokens:
                prefill = worker.prefills > 0
                decode = len(output.num_scheduled_tokens) > worker.prefills
                kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
                samples.setdefault(kind, []).append((stock_schedule, both - stock_schedule, update))
    finally:
        for name, stock in undo:
            setattr(Stock, name, stock)
    assert gate is None or gate.failed is None
    report = {}
    for kind, rows in samples.items():
        stock = statistics.median(row[0] for row in rows)
        ours = statistics.median(row[1] + row[2] for row in rows)
        mean = sum(row[1] + row[2] for row in rows) / sum(row[0] for row in rows)
        report[kind] = {
            "iterations": len(rows),
            "stock_schedule_s": stock,
            "ours_s": ours,
            "ratio_of_medians": ours / stock,
            "ratio_of_sums": mean,
        }
    return report


class FastWorker:
    """Gives every request that is through its prompt one token."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.prefills = 0

    def run(self, output: Any) -> Any:
        """One iteration."""
        from vllm.v1.outputs import ModelRunnerOutput

        self.prefills = 0
        for new in output.scheduled_new_reqs:
            self.left[new.req_id] = len(new.prompt_token_ids)
        sampled = []
        for name, n in output.num_scheduled_tokens.items():
            left = self.left[name]
            if left > 0:
                self.prefills += 1
                self.left[name] = left - n
            sampled.append([7] if left <= n else [])
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )


def main() -> None:
    """Print a table, and JSON if asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--policy", nargs="+", default=["mixed", "exclusive:k=16", "hybrid"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from vllm_harness import tiny_config

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_config(Path(folder))
        for running in args.running:
            for policy in args.policy:
                report = measure(running, policy, model)
                results[f"{running}/{policy}"] = report
                for kind, row in report.items():
                    print(
                        f"{running:5d} running  {policy:16s} {kind:8s} n={row['iterations']:5d}  "
                        f"stock {row['stock_schedule_s'] * 1e6:8.0f} us  "
                        f"ours {row['ours_s'] * 1e6:6.1f} us  "
                        f"{100 * row['ratio_of_medians']:5.2f} %  "
                        f"(sums {100 * row['ratio_of_sums']:.2f} %)",
                        flush=True,
                    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
