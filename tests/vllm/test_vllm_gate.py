"""Whatever the policy, every request generates the same as on the stock scheduler."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import (
    Loop,
    Worker,
    expected,
    install,
    make_request,
    make_scheduler,
    serve,
    traffic,
)

POLICIES = (
    "mixed",
    "exclusive:k=1",
    "exclusive:k=4",
    "threshold:n=16",
    "hybrid:n=16",
    "auto",
    "static",
)

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tiny KV with preemption": {"blocks": 45},
    "prefix caching and chunks": {"blocks": 60, "prefix_caching": True, "chunk": 48, "budget": 96},
    "one prompt over many iterations": {"budget": 64, "slots": 4},
    "priorities": {"order": "priority", "blocks": 60},
    "no chunked prefill": {"chunked": False},
}


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_do_not_depend_on_the_policy(
    tiny: Path, policy: str, setting: str, ahead: bool
) -> None:
    scheduler = make_scheduler(tiny, asynchronous=ahead, **SETTINGS[setting])
    gate = install(scheduler, policy)
    requests = traffic(seed=5)
    loop = serve(scheduler, requests, ahead)

    assert loop.outputs == {str(i): expected(*request) for i, request in enumerate(requests)}
    assert gate.failed is None
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert not scheduler.requests
    if policy.startswith(("exclusive", "threshold")):
        assert gate.iterations["mixed"] == 0
        assert gate.iterations["prefill"]
        assert gate.iterations["decode"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_mixed_schedules_what_stock_schedules(tiny: Path, setting: str, ahead: bool) -> None:
    def iterations(policy: str) -> list[Any]:
        scheduler = make_scheduler(tiny, asynchronous=ahead, **SETTINGS[setting])
        install(scheduler, policy)
        stock, seen = scheduler.schedule, []

        def schedule(*args: Any) -> Any:
            output = stock(*args)
            seen.append(dict(output.num_scheduled_tokens))
            return output

        scheduler.schedule = schedule
        serve(scheduler, traffic(seed=6), ahead)
        return seen

    assert iterations("mixed") == iterations("stock")


def test_exclusive_waits_for_k_free_slots(tiny: Path) -> None:
    scheduler = make_scheduler(tiny, slots=8)
    gate = install(scheduler, "exclusive:k=4,max_hold=none")
    for i in range(16):
        scheduler.add_request(make_request(str(i), [5] * 10, 5 + 5 * i, scheduler))
    loop = Loop(scheduler, Worker(random.Random(0)), ahead=False)
    running = []
    while loop.busy:
        before = len(scheduler.running)
        output = loop.step()
        if output is not None and output.scheduled_new_reqs:
            running.append(before)
    assert running == [0, 4, 4]
    assert gate.iterations["prefill"] == 3


def test_token_budget_and_chunk_are_kept(tiny: Path) -> None:
    scheduler = make_scheduler(tiny, budget=512)
    install(scheduler, "mixed:token_budget=100,chunk=40")
    loop = serve(scheduler, traffic(seed=7), ahead=False)
    assert max(step.tokens for step in loop.worker.steps) <= 100
    assert scheduler.max_num_scheduled_tokens == 512
    assert scheduler.scheduler_config.long_prefill_token_threshold == 0


def test_capacity_is_kept(tiny: Path) -> None:
    scheduler = make_scheduler(tiny)
    gate = install(scheduler, "mixed:n=5")
    loop = serve(scheduler, traffic(seed=8), ahead=False)
    assert max(step.prefills + step.decodes for step in loop.worker.steps) == 5
    assert gate.failed is None
    assert getattr(scheduler, gate.view.cap) == 16
