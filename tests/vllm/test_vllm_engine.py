"""A real model in vLLM's engine: greedy float32 outputs are those of the stock scheduler.

One engine for each setting; its gate gets one policy after the other.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import install, tiny_model, traffic

POLICIES = ("mixed", "exclusive:k=1", "exclusive:k=4", "threshold:n=16", "hybrid:n=16", "auto")

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tiny KV with preemption": {"num_gpu_blocks_override": 34},
    "prefix caching and chunks": {
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 48,
        "max_num_batched_tokens": 96,
        "num_gpu_blocks_override": 40,
    },
    "n-gram speculation": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        }
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module", params=SETTINGS)
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[Any]:
    from vllm import LLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHASEGATE_VLLM", '{"policy": "mixed"}')
        setting = {
            "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 200,
            "enable_prefix_caching": False,
            **SETTINGS[request.param],
        }
        llm = LLM(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=16,
            block_size=32,
            disable_log_stats=True,
            scheduler_cls="phasegate.vllm.Scheduler",
            **setting,
        )
    yield llm.llm_engine
    del llm
    gc.collect()


def generate(engine: Any, policy: str) -> tuple[dict[str, tuple[int, ...]], Any]:
    """Serve the traffic, a handful of requests every few iterations; outputs and the gate."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    engine.reset_prefix_cache()
    gate = install(scheduler, policy)
    pending = list(enumerate(traffic(seed=21, n=40)))
    outputs: dict[str, tuple[int, ...]] = {}
    for turn in range(5000):
        if turn % 3 == 0:
            for _ in range(min(5, len(pending))):
                i, (prompt, length) = pending.pop(0)
                params = SamplingParams(
                    temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False
                )
                engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
        if not pending and not engine.has_unfinished_requests():
            return outputs, gate
        for output in engine.step():
            if output.finished:
                outputs[output.request_id.split("-")[0]] = tuple(output.outputs[0].token_ids)
    raise AssertionError("the engine did not come to an end")


def test_greedy_outputs_are_those_of_stock(engine: Any) -> None:
    stock, _ = generate(engine, "stock")
    assert len(stock) == 40
    # The model is worth comparing: tokens vary within and between outputs.
    assert len({token for output in stock.values() for token in output}) > 100
    assert len({output[:5] for output in stock.values() if len(output) >= 5}) > 15
    for policy in POLICIES:
        outputs, gate = generate(engine, policy)
        assert outputs == stock, policy
        assert gate.failed is None
        if policy.startswith(("exclusive", "threshold")):
            assert gate.iterations["mixed"] == 0
            assert gate.iterations["prefill"] > 5
            assert gate.iterations["decode"] > 50
