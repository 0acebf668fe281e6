"""Does the embedded engine's memory grow? Resident memory over 10,000 requests of a tiny model.

    .venv/bin/python benchmarks/engine_memory.py            # about two minutes

A model with random weights (2 layers, 64 wide); prompts of 1 to 64 random tokens, outputs of 1 to
16, 32 slots, a KV cache of 64 pages so that requests are preempted and regions move; a tenth of
the requests are sampled. oneDNN keeps compiled code for up to 80 batch sizes, the last of which
turn up after some thousand requests; from then on memory has to be flat.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from harness import markdown, parser, publish
from transformers import LlamaConfig, LlamaForCausalLM

from phasegate.model import LLM, SamplingParams

BLOCK = 1000


def resident() -> float:
    """Resident memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    """Run and print."""
    arguments = parser(__doc__ or "").parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    llm = LLM(LlamaForCausalLM(config), "mixed", device="cpu", kv_tokens=1024, page=16, slots=32)
    dice = np.random.default_rng(0)
    rows = []
    total = 4000 if arguments.quick else 10_000
    for done in range(0, total, BLOCK):
        prompts = [dice.integers(3, 512, dice.integers(1, 65)).tolist() for _ in range(BLOCK)]
        params = [
            SamplingParams(
                temperature=float(dice.random() < 0.1),
                max_tokens=int(dice.integers(1, 17)),
                ignore_eos=True,
            )
            for _ in range(BLOCK)
        ]
        llm.generate(prompts, params, progress=sys.stderr.isatty())
        rows.append([f"{done + BLOCK:,}", f"{resident():.1f}"])
    table = markdown(["requests", "resident memory, MiB"], rows)
    settled = rows[len(rows) * 3 // 5 - 1]
    growth = float(rows[-1][1]) / float(settled[1]) - 1.0
    moved = f"{llm.runner.arena.moved:,} KV tokens moved by compaction"
    publish(
        "engine_memory",
        sys.argv[1:],
        f"{table}\n\n{100 * growth:+.2f} % from {settled[0]} to {total:,} requests; {moved}.",
        arguments.write,
    )


if __name__ == "__main__":
    main()
