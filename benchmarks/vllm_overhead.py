"""What the gate costs on top of vLLM's own `schedule()` and `update_from_output()`.

    python benchmarks/vllm_overhead.py [--running 256 1024] [--policy auto mixed ...] [--json FILE]

The real scheduler with a fake model, closed loop. Time inside the stock calls and time around them
(gate, policy and learning) are taken apart in the same iteration. The first share printed is of
`schedule()` alone, as the goals have it, though ours also works around `update_from_output()`; the
second is of both calls. The fake model takes no time, so `auto` learns the costs of the host alone.

Two schedulers run in turns, in blocks: one as stock, to know what the clock itself costs, and one
gated. What other processes take away can only add: of stock the lower quartile of a block counts,
of ours (whose iterations differ: some end a phase) the mean without the largest tenth, and of all
blocks the least. On a busy machine ours is read too high all the same: it runs on a cold cache,
every time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

BLOCK = 150
"""Iterations of one scheduler in a row."""
LEAST = 8
"""Iterations of a kind that a block must hold to count for it."""
OUTPUT = 400


class Server:
    """One scheduler with a full house of requests.

    Attributes:
        blocks: by kind of iteration, of each block (seconds in stock `schedule()`, in all of
            stock, and in ours).
    """

    def __init__(self, running: int, policy: str, model: Path) -> None:
        from vllm_harness import install, make_scheduler

        self._scheduler = make_scheduler(model, blocks=running * 40, slots=running, budget=2048)
        self._gate = install(self._scheduler, policy)
        self._draw, self._count, self._running = random.Random(0), 0, running
        self._worker = FastWorker()
        self._inside = 0.0
        self.blocks: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
        parents = type(self._scheduler).__mro__
        stock = next(c for c in parents if c.__module__.startswith("vllm."))
        # The gate calls stock by super(): a class in between takes the time.
        timed = type(
            "Timed", (), {n: self._timed(stock, n) for n in ("schedule", "update_from_output")}
        )
        self._scheduler.__class__ = type("Measured", (*parents[:1], timed, stock), {})

    def _timed(self, stock: type, name: str) -> Any:
        call = getattr(stock, name)

        def method(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return call(scheduler, *args, **kwargs)
            finally:
                self._inside += perf_counter() - start

        return method

    def _feed(self) -> None:
        from vllm_harness import make_request

        scheduler = self._scheduler
        while scheduler.get_num_unfinished_requests() < self._running + 100:
            prompt = [self._draw.randrange(3, 500) for _ in range(64)]
            self._count += 1
            name, length = str(self._count), self._draw.randrange(20, OUTPUT)
            scheduler.add_request(make_request(name, prompt, length, scheduler))

    def block(self, iterations: int, keep: bool) -> None:
        """Run so many iterations; note what they took if `keep`."""
        rows: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
        scheduler, worker = self._scheduler, self._worker
        gc.collect()
        gc.disable()
        for _ in range(iterations):
            self._feed()
            full = len(scheduler.running) > 0.9 * self._running
            self._inside = 0.0
            start = perf_counter()
            output = scheduler.schedule()
            both = perf_counter() - start
            scheduling = self._inside
            result = worker.run(output)
            self._inside = 0.0
            start = perf_counter()
            kept = scheduler.update_from_output(output, result)
            update = perf_counter() - start
            del kept
            if full and output.num_scheduled_tokens:
                ours = both - scheduling + update - self._inside
                decodes = len(output.num_scheduled_tokens) - worker.prefills
                kind = (
                    "mixed" if worker.prefills and decodes else "decode" if decodes else "prefill"
                )
                rows[kind].append((scheduling, scheduling + self._inside, ours))
        gc.enable()
        assert self._gate is None or self._gate.failed is None
        if keep:
            for kind, values in rows.items():
                if len(values) >= LEAST:
                    schedule, stock, ours = (sorted(column) for column in zip(*values, strict=True))
                    quarter, most = len(values) // 4, -(-9 * len(values) // 10)
                    self.blocks[kind].append(
                        (schedule[quarter], stock[quarter], fmean(ours[:most]))
                    )

    def least(self, kind: str, which: int) -> float:
        """The least of the blocks."""
        return min(block[which] for block in self.blocks[kind])


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


def measure(running: int, policy: str, model: Path, blocks: int) -> dict[str, dict[str, float]]:
    """By kind of iteration: seconds in stock and ours, and ours as a share of a stock schedule."""
    stock, gated = Server(running, "stock", model), Server(running, policy, model)
    for turn in range(blocks + 2):  # the first two fill slots and learn
        for server in (stock, gated):
            server.block(BLOCK, keep=turn > 1)
    clock = stock.least("mixed", 2)
    schedule = min(stock.least(kind, 0) for kind in ("decode", "mixed") if stock.blocks[kind])
    report = {}
    for kind in gated.blocks:
        ours = gated.least(kind, 2) - clock
        report[kind] = {
            "stock_schedule_s": gated.least(kind, 0),
            "stock_s": gated.least(kind, 1),
            "ours_s": ours,
            "share": ours / (schedule if kind == "prefill" else gated.least(kind, 0)),
            "share_of_both": ours / gated.least(kind, 1),
            "share_of_this_call": ours / gated.least(kind, 0),
        }
    return report


def main() -> None:
    """Print a table, and JSON if asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1024])
    parser.add_argument(
        "--policy", nargs="+", default=["mixed", "exclusive:k=16", "hybrid", "auto"]
    )
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from vllm_harness import tiny_config

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_config(Path(folder))
        for running in args.running:
            for policy in args.policy:
                report = results[f"{running}/{policy}"] = measure(
                    running, policy, model, args.blocks
                )
                for kind, row in sorted(report.items()):
                    print(
                        f"{running:5d} running  {policy:15s} {kind:8s}"
                        f"stock schedule() {row['stock_schedule_s'] * 1e6:6.0f} us  "
                        f"ours {row['ours_s'] * 1e6:6.1f} us = {100 * row['share']:5.2f} %"
                        + (" of a full schedule()" if kind == "prefill" else "")
                        + f", {100 * row['share_of_both']:5.2f} % with update_from_output()",
                        flush=True,
                    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
