"""Random traffic on vLLM's real scheduler behind the gate, checked after every step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from vllm_harness import BLOCK, Loop, Worker, expected, install, make_request, make_scheduler

import phasegate.vllm.gate
from phasegate.vllm.view import View

STEP = 0.01
"""Seconds an iteration takes on the fake clock."""
MAX_HOLD = 0.3
WAIT_LIMIT = 120
"""Iterations that a request may be held back although it has a slot and KV: `max_hold`, the
retry after an admission that KV stopped, and a refill under way."""

POLICIES = (
    "mixed",
    "mixed:n=safe,chunk=40",
    f"exclusive:k=1,max_hold={MAX_HOLD}",
    f"exclusive:k=3,max_hold={MAX_HOLD}",
    f"exclusive:theta=0.5,max_hold={MAX_HOLD},token_budget=64",
    f"threshold:max_hold={MAX_HOLD}",
    f"threshold:n=12,max_hold={MAX_HOLD}",
    f"hybrid:max_hold={MAX_HOLD}",
    f"hybrid:n=12,max_hold={MAX_HOLD}",
    f"auto:max_hold={MAX_HOLD}",
    f"auto:itl=0.005,max_hold={MAX_HOLD}",
    f"auto:itl=0.03,ttft=1,max_hold={MAX_HOLD}",
)


class Compiling:
    """A grammar that is ready at a given step; then it accepts everything."""

    reasoning_ended = None

    def __init__(self, clock: list[int], ready_at: int) -> None:
        self._clock, self._ready_at = clock, ready_at

    @property
    def grammar(self) -> Any:
        """None while it compiles."""
        return self if self._clock[0] >= self._ready_at else None

    @property
    def is_grammar_ready(self) -> bool:
        """Whether it is compiled."""
        return self.grammar is not None


class Accepting:
    """A structured-output manager that lets every token pass."""

    def should_advance(self, request: Any) -> bool:
        """No grammar to move on (asked by older versions)."""
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: True


def fuzz(model: Path, seed: int, steps: int) -> dict[str, Any]:
    """One random server for `steps` iterations, then to its end. Raises AssertionError."""
    draw = random.Random(seed)
    ahead = draw.random() < 0.5
    loras = draw.random() < 0.3
    setting: dict[str, Any] = {
        "blocks": draw.choice([25, 40, 80, 300]),
        "slots": draw.choice([2, 6, 12]),
        "budget": draw.choice([32, 100, 256]),
        "order": draw.choice(["fcfs", "fcfs", "priority"]),
        "prefix_caching": draw.random() < 0.3,
        "chunk": draw.choice([0, 0, 24]),
        "max_loras": 2 if loras else 0,
    }
    policy = draw.choice(POLICIES)
    scheduler = make_scheduler(model, asynchronous=ahead, **setting)
    scheduler.structured_output_manager = Accepting()
    step = [0]
    phasegate.vllm.gate.perf_counter = lambda: step[0] * STEP
    gate = install(scheduler, policy)
    loop = Loop(scheduler, Worker(draw, check_share=0.1), ahead)
    longest = (setting["blocks"] - 1) * BLOCK
    submitted: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    shared = [draw.randrange(3, 500) for _ in range(120)]
    held = worst = 0
    rate = draw.choice([0.05, 0.2, 0.5])
    where = f"seed {seed}: {policy} {setting} ahead={ahead}"
    while step[0] < steps or loop.busy:
        step[0] += 1
        assert step[0] < steps + 30_000, f"{where}: does not come to an end"
        if step[0] <= steps and draw.random() < rate:
            name = str(len(submitted))
            output = draw.choice([1, 2, 8, 30, 80])
            length = min(draw.choice([1, 7, 30, 90, 250]), longest - output)
            prompt = [draw.randrange(3, 500) for _ in range(max(length, 1))]
            if draw.random() < 0.3:
                prompt = (shared[: draw.randrange(1, 120)] + prompt[:10])[: max(length, 1)]
            more: dict[str, Any] = {
                "priority": draw.randrange(3),
                "arrival_time": float(step[0]),
            }
            if loras and draw.random() < 0.7:
                from vllm.lora.request import LoRARequest

                n = draw.randrange(1, 5)
                more["lora_request"] = LoRARequest(f"a{n}", n, "/nowhere")
            request = make_request(name, prompt, output, scheduler, **more)
            if draw.random() < 0.1:
                from vllm.v1.request import RequestStatus

                request.structured_output_request = Compiling(step, step[0] + draw.randrange(60))
                request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            submitted[name] = (prompt, output)
            scheduler.add_request(request)
        if scheduler.requests and draw.random() < 0.03:
            from vllm.v1.request import RequestStatus

            name = draw.choice(sorted(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            aborted.add(name)
        if not ahead and gate.view._recount_at:
            running = [r for r in scheduler.running if not r.is_prefill_chunk]
            assert gate.view.context == sum(r.num_computed_tokens for r in running), where
        could = _could_admit(scheduler, gate) and not loras
        order = [r.request_id for r in scheduler.running]
        decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
        output = loop.step()
        _check_limits(scheduler, setting, where)
        if not ahead and output is not None:
            left = _left_out(output, order, decoding, gate)
            assert not left, f"{where}: {left} were left out of an iteration that decodes"
        admitted = output is not None and (
            output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids
        )
        held = held + 1 if could and not admitted else 0
        worst = max(worst, held)
        assert held <= WAIT_LIMIT, f"{where}: held back for {held} iterations"
        assert gate.failed is None, f"{where}: {gate.failed!r}"
        exclusive = policy.startswith(("exclusive", "threshold"))
        if exclusive and not loras and setting["order"] == "fcfs":
            assert not gate.iterations["mixed"], where

    assert not scheduler.requests, where
    assert loop.finished | aborted >= submitted.keys(), f"{where}: lost requests"
    for name, request in submitted.items():
        got, want = loop.outputs.get(name, []), expected(*request)
        if name in aborted and name not in loop.finished:
            assert got == want[: len(got)], where
        else:
            assert got == want, where
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, f"{where}: leaked blocks"
    assert not gate._adapters, where
    return {"policy": policy, "requests": len(submitted), "held": worst, "steps": step[0]}


def _left_out(output: Any, order: list[str], decoding: set[str], gate: Any) -> set[str]:
    """Decoding requests without a token in an iteration that decodes, for no good reason.

    There are two: the budget is used up, or stock preempted a request and stopped there. It does
    that in the order of `running`: who is preempted, and whoever stands behind, gets nothing.
    """
    scheduled = output.num_scheduled_tokens.keys()
    if not scheduled & decoding or output.total_num_scheduled_tokens >= gate._budget:
        return set()
    gone = output.preempted_req_ids or ()
    first = min((order.index(name) for name in gone if name in order), default=len(order))
    return (decoding - scheduled).intersection(order[:first])


def _check_limits(scheduler: Any, setting: dict[str, Any], where: str) -> None:
    """vLLM's own limits are in place between two iterations."""
    assert getattr(scheduler, View(scheduler).cap) == setting["slots"], where
    assert scheduler.max_num_scheduled_tokens == setting["budget"], where
    assert scheduler.scheduler_config.long_prefill_token_threshold == setting["chunk"], where


def _could_admit(scheduler: Any, gate: Any) -> bool:
    """Whether the head of the queue has a slot and KV right now, by vLLM's and the policy's N."""
    need = gate.view.head(1)
    cap = min(getattr(scheduler, gate.view.cap), gate.policy.decision.n)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return bool(need) and len(scheduler.running) < cap and free * BLOCK >= need[0] + 2 * BLOCK
