"""What the gate costs on top of vLLM's own `schedule()` and `update_from_output()`.

    python benchmarks/vllm_overhead.py [--running 256 1024] [--policy hybrid:n=...] [--json FILE]

The real scheduler with a fake model. In one process, time spent in the stock calls and time spent
in ours are taken apart, so that noise of the machine hits both. What other processes take away can
only add, so both are lower quartiles over the iterations of each kind. What the clock and the
calls themselves cost is measured with the gate taken out, and subtracted.
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
from time import perf_counter
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

OUTPUT = 400


def measure(running: int, policy: str, model: Path) -> dict[str, dict[str, float]]:
    """By kind of iteration: seconds in stock `schedule()`, and what comes on top of all calls."""
    from vllm.v1.core.sched.scheduler import Scheduler as Stock
    from vllm_harness import install, make_request, make_scheduler

    scheduler = make_scheduler(model, blocks=running * 40, slots=running, budget=2048)
    gate = install(scheduler, policy)
    worker = FastWorker()
    inside = [0.0]

    def timed(name: str) -> None:
        stock = getattr(Stock, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return stock(self, *args, **kwargs)
            finally:
                inside[0] += perf_counter() - start

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
            start = perf_counter()
            output = scheduler.schedule()
            both = perf_counter() - start
            stock_schedule = inside[0]
            result = worker.run(output)
            inside[0] = 0.0
            start = perf_counter()
            kept = scheduler.update_from_output(output, result)  # freeing it is not our time
            update = perf_counter() - start - inside[0]
            if full and output.num_scheduled_tokens:
                prefill = worker.prefills > 0
                decode = len(output.num_scheduled_tokens) > worker.prefills
                kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
                samples.setdefault(kind, []).append((stock_schedule, both - stock_schedule, update))
    finally:
        for name, stock in undo:
            setattr(Stock, name, stock)
    assert gate is None or gate.failed is None
    return {
        kind: {
            "iterations": len(rows),
            "stock_schedule_s": quartile([row[0] for row in rows]),
            "ours_s": quartile([row[1] + row[2] for row in rows]),
        }
        for kind, rows in samples.items()
    }


def quartile(values: list[float]) -> float:
    """The lower quartile."""
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


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
            bare = measure(running, "stock", model)["decode"]
            full = bare["stock_schedule_s"]
            for policy in args.policy:
                report = measure(running, policy, model)
                results[f"{running}/{policy}"] = report
                for kind, row in report.items():
                    ours = row["ours_s"] - bare["ours_s"]
                    row |= {"net_s": ours, "share_of_full_schedule": ours / full}
                    print(
                        f"{running:5d} running  {policy:16s} {kind:8s} n={row['iterations']:5d}  "
                        f"stock in this call {row['stock_schedule_s'] * 1e6:6.0f} us  "
                        f"ours {ours * 1e6:6.1f} us  "
                        f"{100 * ours / full:5.2f} % of a stock decode-only schedule()",
                        flush=True,
                    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
