"""The long fuzz of the vLLM gate: 2,000 random steps for each of 50 seeds.

    python benchmarks/vllm_fuzz.py [--seeds 50] [--steps 2000] [--first 0]

No deadlock, no lost request, no leaked block, no wrong token, bounded wait; exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from time import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))


def main() -> int:
    """Run all seeds; print one line for each failure and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    from vllm_fuzz import fuzz
    from vllm_harness import tiny_config

    begin, failures, requests, worst = time(), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_config(Path(folder))
        for seed in range(args.first, args.first + args.seeds):
            try:
                result = fuzz(model, seed, args.steps)
            except AssertionError as error:
                failures += 1
                print(f"FAILED {error}", flush=True)
                continue
            requests += result["requests"]
            worst = max(worst, result["held"])
    print(
        f"{args.seeds} seeds x {args.steps} steps, {requests} requests, {failures} failures, "
        f"longest held back {worst} iterations, {time() - begin:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
