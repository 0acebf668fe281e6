"""Policies against stock vLLM on one engine in this process: same requests, interleaved.

    python benchmarks/vllm_throughput.py [--model FOLDER] [--slots 32] [--rounds 5] \
        [--policy hybrid auto] [--json FILE] [--quick]

Without --model: a Llama of random weights, 384 wide, 6 layers, made on the spot. Closed loop, as
many requests in flight as there are slots. The costs that policies go by are measured first, on
the same engine. Medians over the rounds; in each round every policy runs once, in a new order.
--quick: a few seconds of everything, to see that it works; the numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB

WORKLOADS = {"decode-heavy": (64, 256), "balanced": (256, 128), "prefill-heavy": (512, 32)}
QUICK = 8
"""Lengths are divided by this with --quick."""


def random_model(folder: str, quick: bool) -> str:
    """Write a Llama with random weights; returns its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width, layers = (64, 2) if quick else (384, 6)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=max(width // 96, 1),
        max_position_embeddings=4096,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--token-budget", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds")
    parser.add_argument("--policy", nargs="+", default=["hybrid", "auto"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.slots, args.requests, args.rounds, args.calibrate = 8, 16, 1, 2.0
    with tempfile.TemporaryDirectory() as folder:
        compare(args, args.model or random_model(folder, args.quick))


def compare(args: argparse.Namespace, model: str) -> None:
    """Calibrate, run every workload under every policy, print and write the comparison."""
    import numpy as np

    from phasegate.policy.spec import build_policy
    from phasegate.vllm_engine import STOCK
    from phasegate.vllm_engine.calibrate import calibrate
    from phasegate.vllm_engine.engine import VllmEngine
    from phasegate.vllm_engine.serve import run_workload
    from phasegate.workload.build import make_source

    engine = VllmEngine(
        model,
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
    scale = QUICK if args.quick else 1
    for name, (prompt, output) in WORKLOADS.items():
        text = f"prompt={prompt // scale},output={output // scale}"
        text += ",prompt_dist=uniform:0.5,output_dist=uniform:0.5"
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
