"""A real vLLM scheduler driven by a fake worker that notices every mistake.

The worker keeps what a real one keeps - tokens and block table per request, a KV cache by block -
and computes the next token from everything it was told. A lost token, a row rebuilt too early, a
block handed out twice or KV that was never written changes what it generates, or trips a check.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits

VOCABULARY = 500
BLOCK = 16


def _config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.3,  # spreads the logits: with less, any token would do
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )


def tiny_config(folder: Path) -> Path:
    """Write the config of a tiny Llama; no weights."""
    _config().save_pretrained(folder)
    return folder


def tiny_model(folder: Path) -> Path:
    """Write a tiny Llama with random weights and a tokenizer of 512 words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(_config()).save_pretrained(folder)
    words = {f"w{i}": i for i in range(512)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", unk_token="w0"
    ).save_pretrained(folder)
    return folder


def next_token(tokens: list[int]) -> int:
    """The token after `tokens`: depends on all of them and on their order."""
    value = 17
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCABULARY + 3


def make_scheduler(
    model: Path,
    *,
    blocks: int = 200,
    slots: int = 16,
    budget: int = 256,
    asynchronous: bool = False,
    order: str = "fcfs",
    prefix_caching: bool = False,
    chunk: int = 0,
    max_loras: int = 0,
    chunked: bool = True,
    scheduler_class: Any = None,
) -> Any:
    """vLLM's scheduler for a tiny model; `scheduler_class` as `--scheduler-cls` would name it."""
    import torch
    from vllm.config import CacheConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    max_len = 1024
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model), dtype="float32", max_model_len=max_len, skip_tokenizer_init=True
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=slots,
            max_num_batched_tokens=budget if chunked else max(budget, max_len),
            max_model_len=max_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=chunk,
            async_scheduling=asynchronous,
            policy=order,
        ),
        cache_config=CacheConfig(
            block_size=BLOCK, enable_prefix_caching=prefix_caching, gpu_memory_utilization=0.9
        ),
        lora_config=LoRAConfig(max_loras=max_loras, max_cpu_loras=max_loras, max_lora_rank=8)
        if max_loras
        else None,
    )
    # The CPU platform turns async scheduling off and rounds blocks; here no kernel ever runs.
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = blocks
    try:
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        register_all_kvcache_specs(config)
    except ImportError:  # older than 0.3x
        pass
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    import phasegate.vllm

    scheduler = (scheduler_class or phasegate.vllm.Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )
    scheduler.use_v2_model_runner = False
    return scheduler


def install(scheduler: Any, spec: str, cost: Any = None) -> Any:
    """Put a fresh policy into the scheduler's gate; returns the gate (None: run as stock)."""
    from phasegate.cost.profile import load_profile
    from phasegate.vllm.gate import Gate
    from phasegate.vllm.view import View

    if spec == "stock":
        scheduler._phasegate = None
        return None
    view = View(scheduler)
    limits = Limits(
        kv_capacity=view.kv_capacity,
        slots=scheduler.max_num_running_reqs,
        token_budget=scheduler.max_num_scheduled_tokens,
        page=1,
    )
    cost = cost or load_profile("rtx-pro-6000/qwen3-8b").cost_model()
    scheduler._phasegate = Gate(scheduler, view, build_policy(spec, cost, limits))
    return scheduler._phasegate


def make_request(name: str, prompt: list[int], output: int, scheduler: Any, **more: Any) -> Any:
    """A request that ends after `output` tokens."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    hasher = None
    if scheduler.cache_config.enable_prefix_caching:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
        pooling_params=None,
        block_hasher=hasher,
        **more,
    )


@dataclass
class Row:
    """What the worker knows of a request."""

    tokens: list[int]
    blocks: list[int]


@dataclass
class Step:
    """Composition of one iteration, as the worker sees it."""

    prefills: int = 0
    decodes: int = 0
    tokens: int = 0


@dataclass
class Worker:
    """Executes scheduler outputs; `check_share` of the contexts are read back from KV."""

    random: random.Random
    check_share: float = 1.0
    rows: dict[str, Row] = field(default_factory=dict)
    kv: dict[int, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def run(self, output: Any) -> Any:
        """Run one iteration; returns vLLM's ModelRunnerOutput."""
        from vllm.v1.outputs import ModelRunnerOutput

        for name in output.finished_req_ids:
            self.rows.pop(name, None)
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self.rows[new.req_id] = Row(list(new.prompt_token_ids), list(new.block_ids[0]))
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            row = self.rows[name]
            if name in cached.all_token_ids:  # was not in the last iteration: rebuilt from these
                row.tokens = list(cached.all_token_ids[name])
            blocks = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                row.blocks = list(blocks[0])
            elif blocks is not None:
                row.blocks.extend(blocks[0])
            starts[name] = cached.num_computed_tokens[i]
        step, sampled = Step(), []
        names = list(output.num_scheduled_tokens)
        for name in names:
            row, start, n = self.rows[name], starts[name], output.num_scheduled_tokens[name]
            end = start + n
            assert end <= len(row.tokens), f"{name}: token {end} scheduled, {len(row.tokens)} known"
            if self.random.random() < self.check_share:
                self._read_back(name, row, start)
            for position in range(start, end):
                block = row.blocks[position // BLOCK]
                self.kv.setdefault(block, [-1] * BLOCK)[position % BLOCK] = row.tokens[position]
            if end == len(row.tokens):
                row.tokens.append(next_token(row.tokens))
                sampled.append([row.tokens[-1]])
            else:
                sampled.append([])
            prefill = n > 1 or name in (r.req_id for r in output.scheduled_new_reqs)
            step.prefills += prefill
            step.decodes += not prefill
            step.tokens += n
        self.steps.append(step)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _read_back(self, name: str, row: Row, end: int) -> None:
        for position in range(end):
            block = self.kv.get(row.blocks[position // BLOCK], ())
            found = block[position % BLOCK] if block else None
            assert found == row.tokens[position], f"{name}: KV at {position} is another request's"


class Loop:
    """The engine core's loop: synchronous, or one iteration ahead of the outputs."""

    def __init__(self, scheduler: Any, worker: Worker, ahead: bool) -> None:
        self.scheduler, self.worker, self.ahead = scheduler, worker, ahead
        self._queue: deque[tuple[Any, Any]] = deque()
        self.outputs: dict[str, list[int]] = {}
        self.finished: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return self.scheduler.has_requests() or bool(self._queue)

    def step(self) -> Any:
        """One turn of the loop; returns what was scheduled, None if only an output was taken."""
        output = None
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._queue.append((output, self.worker.run(output)))
            if self.ahead and len(self._queue) < 2 and output.total_num_scheduled_tokens:
                return output
        if self._queue:
            self.take()
        return output

    def take(self) -> None:
        """Process the oldest output that is not processed yet."""
        for outputs in self.scheduler.update_from_output(*self._queue.popleft()).values():
            for one in outputs.outputs:
                self.outputs.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    self.finished.add(one.request_id)


def expected(prompt: list[int], output: int) -> list[int]:
    """What a request generates, whatever the schedule."""
    tokens = list(prompt)
    for _ in range(output):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def traffic(seed: int, n: int = 50) -> list[tuple[list[int], int]]:
    """Prompts (every third begins like another) and output lengths."""
    draw = random.Random(seed)
    shared = [draw.randrange(3, 500) for _ in range(200)]
    requests = []
    for i in range(n):
        prompt = [draw.randrange(3, 500) for _ in range(draw.choice([1, 5, 20, 60, 300]))]
        if i % 3 == 0:
            prompt = shared[: draw.randrange(10, 200)] + prompt[:20]
        requests.append((prompt, draw.choice([1, 2, 5, 30, 60])))
    return requests


def serve(
    scheduler: Any, requests: Sequence[tuple[list[int], int]], ahead: bool, every: int = 3
) -> Loop:
    """Serve the requests, a handful arriving every few iterations."""
    draw = random.Random(1)
    loop = Loop(scheduler, Worker(draw, check_share=0.3), ahead)
    pending = list(enumerate(requests))
    for turn in range(20_000):
        if turn % every == 0:
            for _ in range(min(4, len(pending))):
                i, (prompt, output) = pending.pop(0)
                more = {"priority": draw.randrange(3), "arrival_time": float(i)}
                scheduler.add_request(make_request(str(i), prompt, output, scheduler, **more))
        if not pending and not loop.busy:
            return loop
        loop.step()
    raise AssertionError("the engine did not come to an end")
