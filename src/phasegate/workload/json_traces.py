"""JSON traces: Mooncake and ShareGPT, as JSON Lines or as one array.

Mooncake (`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}` per
line), https://github.com/kvcache-ai/Mooncake. The hash ids (shared prefixes) are not used.

ShareGPT (`[{"id": ..., "conversations": [{"from": "human", "value": "..."}, ...]}, ...]`) holds
texts and no times. One request per conversation: the first reply is the output, whatever stands
before it the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TextIO

from phasegate.errors import WorkloadError
from phasegate.workload.rows import BadRowError, Row, Unusable, seconds, tokens

TokenCount = Callable[[str], int]

_USERS = {"human", "user"}
_MODELS = {"gpt", "chatgpt", "assistant", "bing", "bard", "model"}
_CHUNK = 1 << 20


def estimate_tokens(text: str) -> int:
    """Tokens of a text without a tokenizer: one for every 4 bytes of UTF-8, rounded up.

    English prose has about 4 characters per token with the vocabularies in use; scripts with 3
    bytes per character come out at 0.75 tokens per character.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def mooncake_row(record: Any) -> Row:
    """The request of one Mooncake record. Raises BadRowError."""
    _check_keys(record, "timestamp", "input_length", "output_length")
    return Row(
        seconds("timestamp", record["timestamp"]) / 1000.0,
        tokens("input_length", record["input_length"]),
        tokens("output_length", record["output_length"]),
    )


def sharegpt_row(record: Any, count: TokenCount = estimate_tokens) -> Row:
    """The request of one ShareGPT conversation, lengths by `count`.

    Raises:
        BadRowError: no conversation.
        Unusable: a conversation that does not begin with a question and a reply to it.
    """
    _check_keys(record, "conversations")
    turns = record["conversations"]
    if not isinstance(turns, list):
        raise BadRowError("conversations is not a list")
    prompt, asked = 0, False
    for turn in turns:
        _check_keys(turn, "from", "value")
        if not isinstance(turn["value"], str):
            raise BadRowError("a turn of the conversation has no text in value")
        if turn["from"] in _MODELS:
            if asked:
                return Row(None, prompt, count(turn["value"]))
            break
        prompt += count(turn["value"])
        asked = asked or turn["from"] in _USERS
    raise Unusable("conversations that do not begin with a question and a reply")


def lines_of(start: str, rest: TextIO) -> Iterator[tuple[int, str]]:
    """(number from 1, line) pairs of a text whose beginning was already read; no blank lines."""
    *whole, cut = start.split("\n")
    for number, line in enumerate(chain(whole, [cut + rest.readline()], rest), 1):
        if line and not line.isspace():
            yield number, line


def json_line(line: str) -> Any:
    """The value of one line of JSON Lines. Raises BadRowError."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"is not JSON ({getattr(error, 'msg', error)})") from None


def array_items(start: str, rest: TextIO) -> Iterator[tuple[int, Any]]:
    """(line number, item) pairs of a JSON array, never holding much more than one item.

    Raises:
        WorkloadError: not JSON from some line on, or cut short.
    """
    decode = json.JSONDecoder().raw_decode
    text, at, line = start, start.index("[") + 1, 1
    line += text.count("\n", 0, at)
    while True:
        begin = at
        while at < len(text) and text[at] in " \t\n,":
            at += 1
        line += text.count("\n", begin, at)
        if at < len(text) and text[at] == "]":
            return
        try:
            item, end = decode(text, at)
        except (ValueError, RecursionError) as error:
            more = rest.read(max(_CHUNK, len(text) - at))
            if not more:
                line += text.count("\n", at, getattr(error, "pos", at))
                reason = getattr(error, "msg", str(error))
                raise WorkloadError(f"line {line}: is cut short or not JSON ({reason})") from None
            text, at = text[at:] + more, 0
            continue
        yield line, item
        line += text.count("\n", at, end)
        at = end


def _check_keys(record: Any, *keys: str) -> None:
    if not isinstance(record, dict):
        raise BadRowError("is not a JSON object")
    for key in keys:
        if key not in record:
            raise BadRowError(f"has no {key}")
