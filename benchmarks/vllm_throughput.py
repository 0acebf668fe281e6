"""Policies against stock vLLM on one engine in this process: same requests, interleaved.

    python benchmarks/vllm_throughput.py --model FOLDER [--slots 32] [--rounds 5] \
        [--policy hybrid auto] [--json FILE]

Closed loop, as many requests in flight as there are slots. The costs that policies go by are
measured first, on the same engine. Medians over the rounds; in each round every policy runs once,
in a new order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

WORKLOADS = {"decode-heavy": (64, 256), "balanced": (256, 128), "prefill-heavy": (512, 32)}


def main() -> None:
    """Print a line per workload and policy, and JSON if asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--token-budget", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds")
    parser.add_argument("--policy", nargs="+", default=["hybrid", "auto"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    import numpy as np

    from phasegate.policy.spec import build_policy
    from phasegate.vllm_engine.calibrate import calibrate
    from phasegate.vllm_engine.engine import VllmEngine
    from phasegate.vllm_engine.serve import STOCK, run_workload
    from phasegate.workload.build import make_source

    engine = VllmEngine(
        args.model,
        args.slots,
        args.token_budget,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=2048,
        block_size=32,
    )
    profile, fit = calibrate(engine, args.calibrate)
    cost = profile.cost_model()
    print(
        f"costs: {fit.cost}, R2 {fit.r2:.3f}, typical error {100 * fit.typical:.1f} %", flush=True
    )
    specs = [STOCK, *args.policy]
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, (prompt, output) in WORKLOADS.items():
        text = f"prompt={prompt},output={output},prompt_dist=uniform:0.5,output_dist=uniform:0.5"
        rows = results[name] = {s: {"tokens_s": [], "ttft_s": [], "itl_p99_s": []} for s in specs}
        for turn in range(args.rounds + 1):
            order = random.Random(turn).sample(specs, len(specs))
            for spec in order:
                source = make_source(
                    text, concurrency=args.slots, requests=args.requests, seed=turn
                )
                policy = None if spec == STOCK else build_policy(spec, cost, engine.limits)
                record = run_workload(engine, source, policy, seed=turn)
                assert record.counts["finished"] == args.requests
                if not turn:
                    continue  # warm-up
                tokens = float((record.requests["prompt"] + record.requests["output"]).sum())
                wait = record.requests["first_token"] - record.requests["arrival"]
                rows[spec]["tokens_s"].append(tokens / record.duration)
                rows[spec]["ttft_s"].append(float(np.mean(wait)))
                rows[spec]["itl_p99_s"].append(float(np.percentile(record.itl()[0], 99)))
        for spec in specs:
            ratios = [
                a / b for a, b in zip(rows[spec]["tokens_s"], rows[STOCK]["tokens_s"], strict=True)
            ]
            spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
            print(
                f"{name:14s} {spec:16s} {statistics.median(rows[spec]['tokens_s']):8.0f} tokens/s  "
                f"x{statistics.median(ratios):.3f} of stock ({spread})  "
                f"TTFT {1e3 * statistics.median(rows[spec]['ttft_s']):6.0f} ms  "
                f"ITL P99 {1e3 * statistics.median(rows[spec]['itl_p99_s']):6.1f} ms",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
