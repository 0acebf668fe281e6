"""CSV traces: Azure LLM inference and BurstGPT. Columns are found by name, in any order.

Azure (2023: `TIMESTAMP,ContextTokens,GeneratedTokens` with 2023-11-16 18:15:46.6805900; 2024:
the same columns with a UTC offset behind the time and sometimes no fraction; 2025: one more
column), https://github.com/Azure/AzurePublicDataset.

BurstGPT (`Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, time in
seconds; release 2.0 adds `Session ID` and `Elapsed time`), https://github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from phasegate.errors import WorkloadError
from phasegate.workload.rows import BadRowError, Row, is_number, seconds, tokens


class CsvFormat(NamedTuple):
    """A format and its columns: time, prompt tokens, output tokens."""

    name: str
    time: str
    prompt: str
    output: str


FORMATS = (
    CsvFormat("Azure LLM", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    CsvFormat("BurstGPT", "Timestamp", "Request tokens", "Response tokens"),
)


def row_parser(header: str) -> Callable[[str], Row] | None:
    """The parser for the lines below `header`, None if that is the header of no known format.

    Raises:
        WorkloadError: the header belongs to a known format, but a column is missing or there
            twice.
    """
    try:
        names = [_key(name) for name in _fields(header)]
    except BadRowError:
        return None
    for form in FORMATS:
        wanted = form[1:]
        missing = [column for column in wanted if _key(column) not in names]
        if {form.prompt, form.output} <= set(missing):
            continue
        if missing:
            raise WorkloadError(
                f"this looks like a trace of {form.name}, but its header lacks"
                f" {' and '.join(missing)}: {header.strip()[:200]!r}"
            )
        for column in wanted:
            if names.count(_key(column)) > 1:
                raise WorkloadError(f"the column {column} is in the header twice")
        return _CsvParser(form, [names.index(_key(column)) for column in wanted], len(names))
    return None


class _CsvParser:
    """Parses lines of one file. Whether times are dates or seconds is settled by the first."""

    def __init__(self, form: CsvFormat, columns: list[int], width: int) -> None:
        self._form = form
        self._time, self._prompt, self._output = columns
        self._width = width
        self._epoch: datetime | None = None
        self._in_seconds: bool | None = None

    def __call__(self, line: str) -> Row:
        fields = line.rstrip("\n").split(",") if '"' not in line else _fields(line)
        if len(fields) != self._width:
            raise BadRowError(f"has {len(fields)} columns, the header has {self._width}")
        form = self._form
        return Row(
            self._seconds(fields[self._time].strip()),
            tokens(form.prompt, fields[self._prompt]),
            tokens(form.output, fields[self._output]),
        )

    def _seconds(self, text: str) -> float:
        if self._in_seconds is None:
            self._in_seconds = is_number(text)
        if self._in_seconds:
            return seconds(self._form.time, text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise BadRowError(
                f"{self._form.time} is {text[:40]!r}, not an ISO date and time"
            ) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        # Relative to the first row: seconds since 1970 leave only 0.2 us of a float's precision.
        self._epoch = self._epoch or time
        return (time - self._epoch).total_seconds()


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\n")], strict=True), [])
    except csv.Error as error:
        raise BadRowError(f"is not CSV ({error})") from None


def _key(name: str) -> str:
    return "".join(name.split()).replace("_", "").lower()
