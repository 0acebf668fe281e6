"""The runner under the engine: aborts, memory, what is computed and what is not."""

from __future__ import annotations

import gc

import pytest
import tiny_models
import torch
from serving import COST, Erratic, limits_of, serve

from phasegate.engine.clock import WallClock
from phasegate.engine.loop import Engine
from phasegate.model.generation import Generation
from phasegate.model.loading import load_model
from phasegate.model.packed_linear import (
    PackedLinear,
    pack_linear_layers,
    packing_works,
    padded_rows,
)
from phasegate.model.params import SamplingParams
from phasegate.model.runner import TorchRunner
from phasegate.policy.spec import build_policy
from phasegate.scheduler.request import Request, State
from phasegate.scheduler.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = tiny_models.prompts(24, longest=50, seed=3)
PAGE = 16


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    return TorchRunner(load_model(tiny_models.build(), device="cpu"), 2048, PAGE, slots=16)


@pytest.fixture(scope="module")
def expected(runner: TorchRunner) -> list[list[int]]:
    return [g.output for g in serve(runner, PROMPTS, GREEDY, "mixed")[0]]


def test_aborts_in_every_state_leave_nothing_and_disturb_nobody(
    runner: TorchRunner, expected: list[list[int]]
) -> None:
    limits = limits_of(runner, slots=8, token_budget=40)
    engine = Engine(Erratic(0, 8), Scheduler(limits), runner, WallClock())
    generations = [Generation(prompt, GREEDY) for prompt in PROMPTS]
    requests = [
        Request(i, len(g.prompt), GREEDY.max_tokens, payload=g) for i, g in enumerate(generations)
    ]
    for request in requests:
        engine.submit(request)
    aborted: dict[int, State] = {}
    wanted = [State.WAITING, State.PREFILLING, State.DECODING] * 3
    while engine.step():
        for request in requests:
            if wanted and request.state is wanted[-1]:
                aborted[request.id] = wanted.pop()
                engine.abort(request.id)
                break
    assert len(aborted) == 9
    assert len(runner.arena) == 0
    for request, generation in zip(requests, generations, strict=True):
        if request.id not in aborted:
            assert generation.output == expected[request.id]


def test_only_the_logits_of_new_tokens_are_computed(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = runner.loaded.model
    head = model.get_output_embeddings()
    rows: list[int] = []
    monkeypatch.setattr(
        head, "forward", lambda x, own=head.forward: rows.append(x.shape[1]) or own(x)
    )
    serve(runner, PROMPTS[:4], GREEDY, "mixed:token_budget=32")
    tokens = 4 * GREEDY.max_tokens
    assert tokens <= sum(rows) <= tokens + len(rows)


def test_packed_tokens_hold_little_padding(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None below 33 rows; above, up to the next size that the packed layers are compiled for."""
    sizes: list[int] = []
    forward = runner.loaded.model.forward

    def counting(*args, **kwargs):  # type: ignore[no-untyped-def]
        sizes.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    monkeypatch.setattr(runner.loaded.model, "forward", counting)
    tokens = sum(len(prompt) for prompt in PROMPTS) + len(PROMPTS) * (GREEDY.max_tokens - 1)
    serve(runner, PROMPTS, GREEDY, "mixed:token_budget=32")
    assert sum(sizes) == tokens
    sizes.clear()
    serve(runner, PROMPTS, GREEDY, "mixed")
    assert tokens < sum(sizes) < 1.06 * tokens


def test_sizes_that_are_compiled_for() -> None:
    sizes = {padded_rows(rows) for rows in range(1, 2049)}
    assert len(sizes) == 80
    assert all(rows <= padded_rows(rows) <= 1.125 * rows for rows in range(1, 2049))
    assert all(padded_rows(size) == size for size in sizes)


def test_stop_texts_and_sampling_survive_preemption(runner: TorchRunner) -> None:
    params = [
        SamplingParams(temperature=1.2, top_p=0.9, seed=i, max_tokens=20, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    calm, _ = serve(runner, PROMPTS, params, "mixed")
    tight = TorchRunner(load_model(tiny_models.build(), device="cpu"), 12 * PAGE, PAGE, slots=16)
    rough, _ = serve(tight, PROMPTS, params, Erratic(5, 16))
    assert [g.output for g in rough] == [g.output for g in calm]
    assert tight.arena.moved > 0


def test_memory_stays_flat_over_many_requests(runner: TorchRunner) -> None:
    """Nothing is kept of requests that are gone, the last batch apart (the long run, by resident
    memory, is benchmarks/engine_memory.py)."""
    limits = limits_of(runner, slots=16)
    engine = Engine(build_policy("mixed", COST, limits), Scheduler(limits), runner, WallClock())
    short = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    made = 0

    def some(count: int) -> int:
        nonlocal made
        for _ in range(count):
            made += 1
            engine.submit(Request(made, 4, 2, payload=Generation([5, 6, 7, 8], short)))
        while engine.step():
            pass
        gc.collect()
        return sum(type(o) in (Generation, Request, torch.Tensor) for o in gc.get_objects())

    some(50)
    before = some(50)
    assert some(300) <= before + 2 * limits.slots


def test_contexts_can_be_declared_present(runner: TorchRunner) -> None:
    """Calibration measures long contexts without computing them."""
    limits = limits_of(runner)
    engine = Engine(build_policy("mixed", COST, limits), Scheduler(limits), runner, WallClock())
    request = Request(0, 200, 3, payload=Generation([5] * 200, GREEDY), prefilled=199)
    engine.submit(request)
    engine.step()
    start = runner.arena.start(0)
    assert runner._memory.keys[0][:, start : start + 199].abs().max() > 0
    while engine.step():
        pass
    assert len(request.payload.output) == 3


@pytest.mark.parametrize("out_features", [40, 9000])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_compute_the_same(out_features: int, bias: bool, dtype: torch.dtype) -> None:
    if not packing_works(torch.device("cpu"), dtype):
        pytest.skip(f"PyTorch packs no {dtype} weights on this CPU")
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, out_features, bias=bias).to(dtype)
    x = torch.randn(2, 3, 48).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    with torch.inference_mode():
        torch.testing.assert_close(
            PackedLinear(linear)(x), linear(x), atol=tolerance, rtol=tolerance
        )


def test_layers_that_are_more_than_linear_are_left_alone() -> None:
    class Special(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Special(4, 4))
    assert pack_linear_layers(model) == 1
    assert isinstance(model[1], Special)
