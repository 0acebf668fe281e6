"""Streaming text: never half a character, never part of a stop text."""

from __future__ import annotations

import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from phasegate.model.generation import Generation
from phasegate.model.params import SamplingParams
from phasegate.model.text import Detokenizer, StopText

TOKENIZER = byte_tokenizer()
EOS = {TOKENIZER.eos_token_id}


def tokens(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab é€🌊漢\n", max_size=40))
def test_pieces_are_whole_characters_and_join_to_the_text(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.add(token) for token in tokens(text)]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert detokenizer.finish() == ""


def test_a_character_appears_with_its_last_byte() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.add(token) for token in tokens("a🌊b")] == ["a", "", "", "", "🌊", "b"]


def test_an_output_that_ends_inside_a_character_is_not_swallowed() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.add(token) for token in tokens("🌊")[:2]] == ["", ""]
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_nothing_of_a_stop_text_is_shown(size: int) -> None:
    text, stop = "one two END three", StopText(("END", "never"))
    shown = "".join(stop.add(text[i : i + size]) for i in range(0, len(text), size))
    assert shown == "one two "
    assert stop.found


def test_what_only_begins_like_a_stop_text_comes_late_but_comes() -> None:
    stop = StopText(("ENDE",))
    assert [stop.add(letter) for letter in "xENx"] == ["x", "", "", "ENx"]
    assert stop.add("EN") == ""
    assert stop.finish() == "EN"
    assert not stop.found


def test_the_earliest_of_several_stop_texts_counts() -> None:
    stop = StopText(("later", "soon"))
    assert stop.add("a soon b later") == "a "


def run(text: str, params: SamplingParams, watched: bool) -> tuple[Generation, list[str]]:
    pieces: list[str] = []
    watch = (lambda piece, count: pieces.append(piece)) if watched else None
    generation = Generation([1], params, TOKENIZER, watch)
    for token in [*tokens(text), TOKENIZER.eos_token_id]:
        if generation.add(token, EOS, params.max_tokens):
            break
    return generation, pieces


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("params", "text", "reason", "output"),
    [
        ({}, "héllo 🌊", "stop", 12),  # 11 bytes and the end-of-sequence token
        ({"max_tokens": 3}, "hé", "length", 3),
        ({"stop": "o"}, "héll", "stop", 6),
        ({"stop": ["🌊", "z"]}, "héllo ", "stop", 11),
    ],
)
def test_how_an_output_ends(
    params: dict[str, object], text: str, reason: str, output: int, watched: bool
) -> None:
    merged = SamplingParams(**{"max_tokens": 99, **params})  # type: ignore[arg-type]
    generation, pieces = run("héllo 🌊", merged, watched)
    assert (generation.text, generation.finish_reason) == (text, reason)
    assert len(generation.output) == output
    assert "".join(pieces) == (text if watched else "")


def test_end_of_sequence_can_be_ignored() -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    generation = Generation([1], params, TOKENIZER)
    ends = [generation.add(TOKENIZER.eos_token_id, EOS, params.max_tokens) for _ in range(4)]
    assert ends == [False, False, False, True]
    assert generation.finish_reason == "length"
