"""I7: what a request generates depends on nothing but the request (greedy, float32).

The yardstick is transformers' own `generate`, one prompt at a time.
"""

from __future__ import annotations

import pytest
import tiny_models
import torch
from serving import Erratic, serve

from phasegate.model.loading import load_model
from phasegate.model.params import SamplingParams
from phasegate.model.runner import TorchRunner
from phasegate.policy.spec import POLICIES

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
PROMPTS = tiny_models.prompts(100, longest=60, seed=1)
PAGE = 16


def runner(family: str = "Llama", kv_tokens: int = 4096) -> TorchRunner:
    loaded = load_model(tiny_models.build(family), device="cpu")
    return TorchRunner(loaded, kv_tokens=kv_tokens, page=PAGE, slots=32)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = tiny_models.reference()
    return [tiny_models.generate(model, prompt, GREEDY.max_tokens) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def roomy() -> TorchRunner:
    return runner()


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, "static:n=8", "mixed:token_budget=40,chunk=7", "exclusive:theta=0.5"],
)
def test_every_policy_generates_what_transformers_generates(
    policy: str, roomy: TorchRunner, expected: list[list[int]]
) -> None:
    generations, _ = serve(roomy, PROMPTS, GREEDY, policy)
    assert [g.output for g in generations] == expected
    assert {g.finish_reason for g in generations} == {"stop", "length"}


@pytest.mark.parametrize("slots", [1, 2, 5, 32])
def test_the_batch_size_does_not_matter(
    slots: int, roomy: TorchRunner, expected: list[list[int]]
) -> None:
    generations, _ = serve(roomy, PROMPTS[:32], GREEDY, "mixed", slots=slots)
    assert [g.output for g in generations] == expected[:32]


@pytest.mark.parametrize("seed", range(3))
def test_any_slicing_and_mixing_with_preemption_and_compaction(
    seed: int, expected: list[list[int]]
) -> None:
    cramped = runner(kv_tokens=13 * PAGE)
    generations, engine = serve(cramped, PROMPTS, GREEDY, Erratic(seed, slots=32))
    assert [g.output for g in generations] == expected
    assert engine.scheduler.kv.used_pages == 0
    assert cramped.arena.moved > 0


def test_preemption_really_happens_in_the_cramped_runs(expected: list[list[int]]) -> None:
    preemptions = []
    cramped = runner(kv_tokens=13 * PAGE)
    release = cramped.release

    def counting(request):  # type: ignore[no-untyped-def]
        preemptions.append(request.preemptions)
        release(request)

    cramped.release = counting  # type: ignore[method-assign]
    generations, _ = serve(cramped, PROMPTS, GREEDY, "mixed")
    assert [g.output for g in generations] == expected
    assert sum(preemptions) > 10


@pytest.mark.parametrize(
    "family",
    [
        "Qwen2",  # biases
        "Qwen3",  # normalised queries and keys
        "Mistral",  # sliding window
        "Gemma2",  # soft-capped scores, windows in every other layer, soft-capped logits
        "Gemma3Text",  # two kinds of rotary embeddings
        "GptOss",  # attention sinks, windows, experts
        "Granite",  # unusual scales
        "Phi3",  # one projection for queries, keys and values
    ],
)
def test_model_families(family: str) -> None:
    prompts = PROMPTS[:10]
    reference = tiny_models.reference(family)
    expected = [tiny_models.generate(reference, p, GREEDY.max_tokens) for p in prompts]
    generations, _ = serve(runner(family, kv_tokens=40 * PAGE), prompts, GREEDY, Erratic(7, 32))
    assert [g.output for g in generations] == expected


def test_without_the_compiled_kernel(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    monkeypatch.setattr("phasegate.model.attention.cpu_decode_kernel", lambda *shape: None)
    generations, _ = serve(runner(), PROMPTS[:16], GREEDY, "mixed")
    assert [g.output for g in generations] == expected[:16]


def test_bfloat16_stays_close(expected: list[list[int]]) -> None:
    """Rounding may change a token, after which outputs part; most first tokens must agree."""
    loaded = load_model(tiny_models.build().to(torch.bfloat16), device="cpu")
    half = TorchRunner(loaded, kv_tokens=4096, page=PAGE, slots=32)
    generations, _ = serve(half, PROMPTS, GREEDY, "mixed")
    same = sum(g.output[0] == e[0] for g, e in zip(generations, expected, strict=True))
    assert same >= 85
