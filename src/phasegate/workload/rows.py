"""Collecting the rows of a trace file: good ones in arrays, bad ones by line number."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from phasegate.errors import WorkloadError
from phasegate.workload.lengths import MAX_LENGTH
from phasegate.workload.table import RequestTable

Raw = TypeVar("Raw")

MAX_TIME = 1e15
"""Largest time in a trace, in its own unit: in it, a float tells seconds apart."""

# Compared by identity, which is fast and keeps out bool.
_PLAIN = (str, int)
_NUMERIC = (str, int, float)


class Row(NamedTuple):
    """One request of a file: time in seconds (None if the format has none), lengths in tokens."""

    time: float | None
    prompt: int
    output: int


class BadRowError(Exception):
    """A row that cannot be understood; the message says why, e.g. "ContextTokens is 'x'..."."""


class Unusable(Exception):  # noqa: N818 - not an error: the row is understood and left out
    """A row that is well-formed but no request; the message says what it is, in the plural."""


def collect(
    label: str,
    raw_rows: Iterable[tuple[int, Raw]],
    parse: Callable[[Raw], Row],
    *,
    limit: int | None = None,
    notes: Iterable[str] = (),
) -> RequestTable:
    """Parse rows into a table: sorted by time, the first request at 0 s.

    Args:
        label: of the table.
        raw_rows: (line number, what `parse` takes) pairs.
        parse: makes a Row, or raises BadRowError or Unusable.
        limit: stop after so many requests.
        notes: what else a person should know about the table.

    Raises:
        WorkloadError: a bad row (the first one is named and all are counted), or no request.
    """
    times, prompts, outputs = array("d"), array("q"), array("q")
    first_bad, bad = "", 0
    left_out: dict[str, int] = {}
    for line, raw in raw_rows:
        try:
            time, prompt, output = parse(raw)
            if not (prompt and output):
                raise Unusable("requests with 0 prompt or output tokens")
        except BadRowError as error:
            first_bad = first_bad or f"line {line}: {error}"
            bad += 1
            continue
        except Unusable as what:
            left_out[str(what)] = left_out.get(str(what), 0) + 1
            continue
        prompts.append(prompt)
        outputs.append(output)
        if time is not None:
            times.append(time)
        if len(prompts) == limit:
            break
    if bad:
        more = f" ({bad - 1} more bad line{'s' * (bad > 2)})" if bad > 1 else ""
        raise WorkloadError(f"{first_bad}{more}; fix or remove it")
    remarks = [f"{count} {what} were left out" for what, count in left_out.items()]
    if not prompts:
        raise WorkloadError("there is no request in it" + "".join(f"; {r}" for r in remarks))
    arrival = None
    if times:
        arrival = np.array(times)
        backwards = int(np.count_nonzero(np.diff(arrival) < 0.0))
        if backwards:
            remarks.append(f"requests were sorted by time; it went back {backwards} times")
        arrival -= arrival.min()
    return RequestTable.of(
        np.array(prompts),
        np.array(outputs),
        arrival=arrival,
        label=label,
        notes=(*remarks, *notes),
    )


def tokens(field: str, value: Any) -> int:
    """A number of tokens from a CSV field or a JSON value.

    Raises:
        BadRowError: not a whole number, negative, or larger than any length can be.
    """
    try:
        number = int(value) if type(value) in _PLAIN else _whole_float(field, value)
    except ValueError:
        number = _whole_float(field, value)
    if not 0 <= number <= MAX_LENGTH:
        raise BadRowError(f"{field} is {_shown(value)}, outside 0 to {MAX_LENGTH}")
    return number


def seconds(field: str, value: Any) -> float:
    """A finite number of seconds, or whatever unit the caller uses, from a CSV or JSON value.

    Raises:
        BadRowError: not a finite number.
    """
    try:
        if type(value) not in _NUMERIC:
            raise ValueError
        number = float(value)
        if number - number != 0.0:  # inf and nan
            raise ValueError
        if abs(number) > MAX_TIME:
            raise BadRowError(f"{field} is {_shown(value)}, beyond any clock ({MAX_TIME:g})")
    except (ValueError, OverflowError):
        raise BadRowError(f"{field} is {_shown(value)}, not a number") from None
    return number


def is_number(text: str) -> bool:
    """Whether `text` is a number of any kind."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole_float(field: str, value: Any) -> int:
    """Whole numbers that a tool has written as floats, such as 374.0."""
    try:
        if type(value) in _NUMERIC and float(value).is_integer():
            return int(float(value))
    except (ValueError, OverflowError):
        pass
    raise BadRowError(f"{field} is {_shown(value)}, not a whole number")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
