"""Looks at what the cheaper way would never show, on counters."""

from __future__ import annotations

import numpy as np
import pytest
from policy_worlds import RTX

from phasegate.cost.online import MIXED, PREFILL, OnlineCost, Prior
from phasegate.policy.exploration import Exploration
from phasegate.policy.refill import Refill


def experienced() -> tuple[OnlineCost, Exploration]:
    cost = OnlineCost(Prior.of(RTX))
    cost.rows[PREFILL] = cost.rows[MIXED] = 100
    return cost, Exploration(cost)


def looks(exploration: Exploration, difference: float, error: float, refills: int) -> int:
    refill = Refill(exclusive=0.005, mixed=0.005 + difference)
    return sum(exploration.other_mode(refill, error, True, 0.0) for _ in range(refills))


def test_a_burst_climbs_a_ladder() -> None:
    _, exploration = experienced()
    rungs = [exploration.limit(500) for _ in range(6)]
    assert rungs == [1, 4, 16, 64, 500, 500]


def test_the_ladder_ends_where_the_burst_does() -> None:
    _, exploration = experienced()
    assert [exploration.limit(c) for c in (10, 9, 5, 300)] == [1, 4, 5, 300]
    assert exploration.pause == 0


def test_no_ladder_for_single_arrivals() -> None:
    _, exploration = experienced()
    assert exploration.limit(1) == 1
    assert exploration.pause == 0


def test_a_mode_that_was_hardly_seen_takes_every_second_refill() -> None:
    cost, exploration = experienced()
    cost.rows[MIXED] = 0
    assert looks(exploration, 0.001, 1e-6, 10) == 5


def test_later_looks_are_rare_and_rarer_the_clearer_the_difference() -> None:
    counts = [
        looks(experienced()[1], difference, 0.001, 2560)
        for difference in (0.0005, 0.0025, 0.005, 0.05)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 1280, "a toss-up costs nothing"
    assert counts[-1] == 10


def test_a_look_comes_when_it_is_a_small_share_of_the_time() -> None:
    """A refill takes 1 s: a look that costs 0.1 s is due every 84 of them."""
    _, exploration = experienced()
    refill = Refill(0.005, 0.105)
    looks = [r for r in range(300) if exploration.other_mode(refill, 1e-6, True, float(r))]
    assert np.diff(looks).tolist() == [84] * (len(looks) - 1)


@pytest.mark.parametrize("sign", ["drift", "surprise"])
def test_a_surprise_is_looked_into_at_once_but_not_for_ever(sign: str) -> None:
    """The other mode was better than expected: of late, or just the last time."""
    cost, exploration = experienced()
    setattr(cost, sign, lambda kind: -3.0 if kind == MIXED else 0.0)
    refill = Refill(0.005, 0.105)
    looks = [exploration.other_mode(refill, 1e-6, True, 0.0) for _ in range(100)]
    assert sum(looks) == sum(looks[:16]) == 16
    assert not exploration.other_mode(Refill(0.105, 0.005), 1e-6, False, 0.0)


@pytest.mark.parametrize("sign", ["drift", "surprise"])
def test_worse_than_expected_is_no_reason_to_look_again(sign: str) -> None:
    cost, exploration = experienced()
    setattr(cost, sign, lambda kind: 3.0)
    assert not any(exploration.other_mode(Refill(0.005, 0.1), 1e-6, True, 0.0) for _ in range(100))


def test_small_slices_now_and_then() -> None:
    _, exploration = experienced()
    slices = []
    for _ in range(300):
        exploration.other_mode(Refill(0.005, 0.1), 1e-6, True, 0.0)
        slices.append(exploration.small_slice(10_000))
    assert sum(map(bool, slices)) == 2
    assert exploration.small_slice(500) == 0, "small anyway"
