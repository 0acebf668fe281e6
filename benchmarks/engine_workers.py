"""The engines that `engines.py` compares, each in a process of its own.

A worker loads its model once, says "ready", and then serves one line of JSON after another:
{"prompts": [[token ids], ...], "tokens": output tokens} -> {"seconds": ...}. Between two lines it
sleeps, so that engines can take turns on the same cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Serve = Callable[[list[list[int]], int], None]
"""Serve all prompts at once, greedily, with so many output tokens each."""


def ours(model: str, dtype: str, threads: int, slots: int) -> Serve:
    """phasegate's embedded engine, through its offline API."""
    from phasegate.model import LLM, SamplingParams

    llm = LLM(model, "mixed", device="cpu", dtype=dtype, threads=threads, slots=slots)

    def serve(prompts: list[list[int]], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, progress=False)
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)

    return serve


def transformers(model: str, dtype: str, threads: int, slots: int) -> Serve:
    """transformers' continuous batching."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache

    torch.set_num_threads(threads)
    # Without psutil it believes that a CPU has no memory, and gives up.
    cache.get_device_and_memory_breakdown = lambda: (torch.device("cpu"), 8 << 30, 0, 0)
    # Block sharing (prefix caching) off: prompts are served afresh, as by the other engines.
    batching = ContinuousBatchingConfig(
        num_blocks=slots * 3, max_batch_tokens=2048, allow_block_sharing=False
    )
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )

    def serve(prompts: list[list[int]], tokens: int) -> None:
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1)
        outputs = loaded.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=batching
        )
        assert all(len(output.generated_tokens) == tokens for output in outputs.values())

    return serve


def vllm(model: str, dtype: str, threads: int, slots: int) -> Serve:
    """vLLM's CPU build."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(str(core) for core in cores))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    llm = LLM(
        model,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=slots,
        enable_prefix_caching=False,
    )

    def serve(prompts: list[list[int]], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(inputs, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)

    return serve


def matmul(model: str, dtype: str, threads: int, slots: int) -> Serve:
    """Not an engine: the rate at which PyTorch multiplies big matrices here. One "output token"
    is a product of two 2048 x 2048 matrices (17.2 GFLOP)."""
    import torch

    torch.set_num_threads(threads)
    a = torch.randn(2048, 2048).to(getattr(torch, dtype))

    def serve(prompts: list[list[int]], tokens: int) -> None:
        for _ in range(tokens):
            torch.mm(a, a)

    return serve


WORKERS = {"ours": ours, "transformers": transformers, "vllm": vllm, "matmul": matmul}


def main() -> None:
    """engine_workers.py NAME MODEL DTYPE THREADS SLOTS"""
    name, model, dtype, threads, slots = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engines and their own processes print goes to stderr

    def reply(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=replies, flush=True)

    serve = WORKERS[name](model, dtype, int(threads), int(slots))
    reply({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        begin = time.perf_counter()
        serve(job["prompts"], job["tokens"])
        reply({"seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    main()
