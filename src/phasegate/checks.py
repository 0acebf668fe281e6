"""Checks of values that come from a person, for errors in one line."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from phasegate.errors import InputError


def whole_number(name: str, value: Any, least: int = 1, most: int = 1 << 53) -> int:
    """`value` if it is a whole number from `least` to `most`. Raises InputError, which names the
    field and the value."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} is {_shown(value)}; it must be a whole number")
    whole = int(value)
    if whole < least:
        raise InputError(f"{name} is {whole}; it must be at least {least}")
    if whole > most:
        raise InputError(f"{name} is {whole}; it must be at most {most}")
    return whole


def number(name: str, value: Any) -> float:
    """`value` if it is a number (not a bool). Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is {_shown(value)}; it must be a number")
    return float(value)


def text(name: str, value: Any) -> str:
    """`value` if it is a text that UTF-8 can hold. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {_shown(value)}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        odd = _shown(value[error.start])
        raise InputError(f"{name} holds {odd}, which is no character") from None
    return value


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
