"""The offline API."""

from __future__ import annotations

import pytest
import tiny_models
from byte_tokenizer import SIZE, byte_tokenizer

from phasegate.errors import InputError, ModelError, PolicyError
from phasegate.model import LLM, SamplingParams
from phasegate.model.llm import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def llm(policy: str = "mixed", tokenizer: bool = True, **options: object) -> LLM:
    model = tiny_models.build(vocab_size=SIZE, max_position_embeddings=tiny_models.POSITIONS)
    return LLM(
        model,
        policy,
        device="cpu",
        tokenizer=byte_tokenizer() if tokenizer else None,
        **{"kv_tokens": 4096, "page": 16, "slots": 8, **options},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def small() -> LLM:
    return llm()


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_outputs_come_in_the_order_of_the_prompts(small: LLM) -> None:
    prompts = ["first", "a second prompt", "x" * 40, "the last one"] * 5
    outputs = small.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    reference = tiny_models.build(vocab_size=SIZE)
    for output in outputs[:4]:
        expected = tiny_models.generate(reference, output.prompt_token_ids, 12)
        assert output.outputs[0].token_ids == expected
    assert len({output.request_id for output in outputs}) == 20


def test_text_is_the_tokens_decoded(small: LLM) -> None:
    (output,) = small.generate("hello", GREEDY)
    completion = output.outputs[0]
    assert completion.text == byte_tokenizer().decode(
        completion.token_ids, skip_special_tokens=True
    )
    assert completion.finish_reason in ("stop", "length")


def test_token_ids_as_prompts(small: LLM) -> None:
    text = small.generate(["hello"], GREEDY)[0]
    single = small.generate(text.prompt_token_ids, GREEDY)
    several = small.generate([text.prompt_token_ids] * 2, GREEDY)
    assert ids(single) == ids([text])
    assert ids(several) == ids([text]) * 2
    assert single[0].prompt is None


def test_params_for_each_prompt(small: LLM) -> None:
    each = [SamplingParams(seed=i, max_tokens=i + 1, ignore_eos=True) for i in range(3)]
    outputs = small.generate(["a", "b", "c"], each)
    assert [len(tokens) for tokens in ids(outputs)] == [1, 2, 3]
    with pytest.raises(InputError, match="2 params for 1 prompts"):
        small.generate(["a"], each[:2])


def test_a_seed_repeats_an_output_whatever_else_is_served(small: LLM) -> None:
    params = SamplingParams(temperature=1.5, top_p=0.95, seed=11, max_tokens=20, ignore_eos=True)
    alone = small.generate(["abc"], params)
    crowd = small.generate(["abc", "other", "prompts", "x" * 99], params)
    assert ids(alone)[0] == ids(crowd)[0]


def test_chats(small: LLM) -> None:
    turn = [{"role": "user", "content": "hi"}]
    (one,) = small.chat(turn, GREEDY)
    assert byte_tokenizer().decode(one.prompt_token_ids) == "user: hi\nassistant:"
    two = small.chat([turn, turn], GREEDY)
    assert ids(two) == ids([one]) * 2


def test_a_policy_that_decides_by_costs(small: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from a profile, or are measured at the first use."""
    expected = ids(small.generate(["hello"] * 3, GREEDY))
    given = llm("hybrid", profile="h200/qwen3-8b")
    assert ids(given.generate(["hello"] * 3, GREEDY)) == expected
    with pytest.raises(InputError, match="give a profile, or use policy mixed"):
        llm("hybrid", kv_tokens=512).generate("hello", GREEDY)
    monkeypatch.setattr("phasegate.model.llm._CALIBRATION_SECONDS", 0.5)
    monkeypatch.setattr(tiny_models, "POSITIONS", 4096)
    measured = llm("hybrid", kv_tokens=1 << 15)
    measured.generate(["hello"] * 3, GREEDY)
    assert len(measured.runner.arena) == 0


def test_the_output_ends_where_the_model_does(small: LLM) -> None:
    prompt = [5] * (tiny_models.POSITIONS - 4)
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    (output,) = small.generate(prompt, params)
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].finish_reason == "length"


def test_bad_prompts(small: LLM) -> None:
    with pytest.raises(ModelError, match=r"prompt 1 has 600 tokens, and .* takes 512"):
        small.generate([[5], [5] * 600], GREEDY)
    with pytest.raises(InputError, match="prompt 0 is empty"):
        small.generate("", GREEDY)
    with pytest.raises(InputError, match="prompt 0 has token id 9999; the vocabulary is 259"):
        small.generate([9999], GREEDY)
    with pytest.raises(ModelError, match=r"the KV cache holds 64; raise kv_tokens"):
        llm(kv_tokens=64).generate([5] * 60, GREEDY)
    for wrong in (None, b"abc", [None], [b"abc"], [{"prompt_token_ids": [5]}], ["\ud800"], [[5.5]]):
        with pytest.raises(InputError, match=r"prompts? "):
            small.generate(wrong, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="params holds something else"):
        small.generate([5], [{"max_tokens": 3}])  # type: ignore[list-item]
    assert small.generate([], GREEDY) == []
    assert len(small.runner.arena) == 0


def test_without_a_tokenizer() -> None:
    bare = llm(tokenizer=False)
    assert bare.generate([5, 6, 7], GREEDY)[0].outputs[0].text == ""
    with pytest.raises(ModelError, match="comes without a tokenizer"):
        bare.generate("text", GREEDY)
    with pytest.raises(InputError, match="no chat template"):
        bare.chat([{"role": "user", "content": "hi"}])


def test_a_wrong_policy_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(PolicyError, match="policy 'hybird' is unknown"):
        LLM("/no/such/model", "hybird")


def test_an_interruption_leaves_nothing_behind(small: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = small.runner.run, 0

    def interrupted(batch):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return run(batch)

    monkeypatch.setattr(small.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small.generate(["a", "b", "c"], GREEDY)
    assert len(small.runner.arena) == 0
    monkeypatch.undo()
    assert len(small.generate(["a"], GREEDY)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots is 0; it must be at least 1"),
        ({"slots": 1.5}, "slots is 1.5; it must be a whole number"),
        ({"page": 0}, "page is 0"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"kv_tokens": 1e30}, "kv_tokens is 1e\\+30; it must be a whole number"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": "x"}, "threads is 'x'"),
        ({"policy": 5}, "policy is 5; it must be a text"),
        ({"policy": "mixed:n=99"}, "n=99 is more than the engine's 32 slots"),
        ({"model": None}, "model is None; name a folder"),
        ({"model": ""}, "model is ''; name a folder"),
    ],
)
def test_bad_options_are_refused_before_the_model_is_loaded(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        LLM(**{"model": "/no/such/model", **options})  # type: ignore[arg-type]


def test_no_limit_means_as_many_tokens_as_fit(small: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (output,) = small.generate([5] * 500, params)
    assert len(output.outputs[0].token_ids) == 512 - 500


@pytest.mark.parametrize(
    "messages", ["hello", [{"role": "user"}], [{"role": "user", "content": 5}], [{"content": "a"}]]
)
def test_bad_messages(small: LLM, messages: object) -> None:
    small.tokenizer.chat_template = "{{ messages[0].content }}"  # type: ignore[union-attr]
    with pytest.raises(InputError, match="messages are"):
        small.chat(messages, GREEDY)  # type: ignore[arg-type]


def test_content_in_parts(small: LLM) -> None:
    small.tokenizer.chat_template = "{{ messages[0].content }}"  # type: ignore[union-attr]
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    whole, apart = small.chat(
        [[{"role": "user", "content": "abc"}], [{"role": "user", "content": parts}]], GREEDY
    )
    assert whole.prompt_token_ids == apart.prompt_token_ids
