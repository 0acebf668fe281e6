"""Limits of the engine: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from phasegate.errors import InputError
from phasegate.scheduler.limits import Limits


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_capacity": 0}, "kv_capacity is 0; it must be at least 1"),
        ({"slots": 0}, "slots is 0; it must be at least 1"),
        ({"token_budget": -1}, "token_budget is -1; it must be at least 1"),
        ({"page": 0}, "page is 0; it must be at least 1"),
        ({"kv_capacity": 8}, "kv_capacity is 8 tokens, less than one page of 16; "),
        ({"queue_limit": 0}, "queue_limit is 0; it must be at least 1, or unset"),
        ({"order": "lifo"}, "order is 'lifo'; it must be 'fcfs' or 'priority'"),
        ({"ageing": 0.0}, "ageing is 0.0 s; it must be positive"),
        ({"ageing": float("nan")}, "ageing is nan s; it must be positive"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="^" + message.replace("(", r"\(")):
        Limits(**{"kv_capacity": 1000, **values})


def test_a_slot_without_a_token_in_the_budget_is_of_no_use() -> None:
    assert Limits(1000, slots=64, token_budget=10).running == 10
    assert Limits(1000, slots=8, token_budget=10).running == 8
