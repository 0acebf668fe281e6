"""Reading recorded traffic. The format is found from the content, not from the file's name.

See csv_traces (Azure, BurstGPT) and json_traces (Mooncake, ShareGPT) for the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO

from phasegate.errors import WorkloadError
from phasegate.workload.csv_traces import FORMATS, row_parser
from phasegate.workload.files import open_text
from phasegate.workload.json_traces import (
    TokenCount,
    array_items,
    estimate_tokens,
    json_line,
    lines_of,
    mooncake_row,
    sharegpt_row,
)
from phasegate.workload.lengths import Lengths
from phasegate.workload.rows import BadRowError, Row, collect, is_number, tokens
from phasegate.workload.table import RequestTable

_START = 1 << 16
_JSON_FORMATS = (
    "known JSON traces are Mooncake (one object per line: timestamp, input_length, output_length)"
    " and ShareGPT (one array of objects with conversations)"
)
_SUFFIXES = {".gz", ".csv", ".json", ".jsonl", ".txt"}


def read_trace(
    path: str | Path, *, limit: int | None = None, count_tokens: TokenCount = estimate_tokens
) -> RequestTable:
    """The requests of a trace file: Azure LLM, BurstGPT, Mooncake or ShareGPT; gzip accepted.

    Requests are sorted by time and the first one arrives at 0 s (ShareGPT has no times:
    `arrival` is None). Requests with 0 prompt or 0 output tokens failed when they were recorded;
    they are left out. `notes` of the table says what was sorted, left out or estimated.

    Args:
        path: the file.
        limit: read only the first so many requests, in the order of the file.
        count_tokens: tokens of a text, for ShareGPT.

    Raises:
        WorkloadError: one line that names the file and, for a bad row, its line number.
    """
    if limit is not None and limit < 1:
        raise WorkloadError(f"requests={limit}: has to be at least 1")
    with open_text(path) as file:
        start = file.read(_START)
        try:
            return _read(start, file, _label(path), limit, count_tokens)
        except WorkloadError as error:
            raise WorkloadError(f"{path}: {error}") from None


def read_lengths(path: str | Path, side: Literal["prompt", "output"]) -> Lengths:
    """Lengths in tokens from a file: one number per line, or one side of a trace.

    Raises:
        WorkloadError: as read_trace.
    """
    with open_text(path) as file:
        start = file.read(_START)
        try:
            if is_number(start.lstrip().partition("\n")[0]):
                table = collect(_label(path), lines_of(start, file), _plain_row)
            else:
                table = _read(start, file, _label(path), None, estimate_tokens)
        except WorkloadError as error:
            raise WorkloadError(f"{path}: {error}") from None
    return table.prompt if side == "prompt" else table.output


def _read(
    start: str, rest: TextIO, label: str, limit: int | None, count_tokens: TokenCount
) -> RequestTable:
    first = start.lstrip()[:1]
    if not first:
        raise WorkloadError("the file holds nothing but blanks")
    if first == "[":
        return _read_json(array_items(start, rest), lambda item: item, label, limit, count_tokens)
    if first == "{":
        return _read_json(lines_of(start, rest), json_line, label, limit, count_tokens)
    lines = lines_of(start, rest)
    _, header = next(lines)
    parse = row_parser(header)
    if parse is None:
        known = "; ".join(f"{f.name}: {f.time},{f.prompt},{f.output}" for f in FORMATS)
        raise WorkloadError(
            f"no known trace format begins with {header.strip()[:60]!r}; known are JSON of"
            f" Mooncake or ShareGPT and CSV with a header ({known})"
        )
    return collect(label, lines, parse, limit=limit)


def _read_json(
    raw_rows: Iterator[tuple[int, Any]],
    decode: Callable[[Any], Any],
    label: str,
    limit: int | None,
    count_tokens: TokenCount,
) -> RequestTable:
    """A JSON trace; the keys of its first record tell the format."""
    line, raw = next(raw_rows, (0, None))
    if not line:
        raise WorkloadError("there is no request in it")
    try:
        first = decode(raw)
    except BadRowError as error:
        hint = "" if line > 1 else f"; {_JSON_FORMATS}"
        raise WorkloadError(f"line {line}: {error}{hint}") from None
    keys = set(first) if isinstance(first, dict) else set()
    notes: list[str] = []

    def conversation(raw: Any) -> Row:
        return sharegpt_row(decode(raw), count_tokens)

    def request(raw: Any) -> Row:
        return mooncake_row(decode(raw))

    if "conversations" in keys:
        parse = conversation
        if count_tokens is estimate_tokens:
            notes.append("lengths are estimated: one token for every 4 bytes of text")
    elif keys & {"input_length", "output_length"}:
        parse = request
    else:
        raise WorkloadError(
            f"line {line}: no known trace format; {_JSON_FORMATS}; its keys are"
            f" {', '.join(sorted(keys))[:200] or 'none'}"
        )
    return collect(label, chain([(line, raw)], raw_rows), parse, limit=limit, notes=notes)


def _plain_row(line: str) -> Row:
    length = tokens("the length", line.strip())
    if length == 0:
        raise BadRowError("the length is 0; a length is at least 1")
    return Row(None, length, length)


def _label(path: str | Path) -> str:
    name = Path(path)
    while name.suffix.lower() in _SUFFIXES:
        name = name.with_suffix("")
    return name.name
