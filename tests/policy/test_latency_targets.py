"""How much prefill fits between two tokens, and how many requests it can feed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from policy_worlds import RTX, state, step

from phasegate.cost.online import OnlineCost, Prior
from phasegate.policy.base import NEVER
from phasegate.policy.slo import FLOOR, LatencyTargets, parse_targets, target_of
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.theory.lengths import LengthLaw

COST = OnlineCost(Prior.of(RTX))
BUSY = state(decoding=50, context=50_000)


def test_without_a_target_the_budget_is_the_limit() -> None:
    room = LatencyTargets().room(BUSY, COST, 8192, 0)
    assert (room.exclusive, room.mixed) == (8192, 8192 - 50)


def test_a_slice_and_a_decode_iteration_fill_the_gap_to_nine_tenths() -> None:
    room = LatencyTargets(itl=0.1).room(BUSY, COST, 8192, 0)
    exclusive = RTX.seconds(room.exclusive, 0.0, 0, 0) + RTX.seconds(0, 0.0, 50, 50_000)
    mixed = RTX.seconds(room.mixed, 0.0, 50, 50_000)
    assert exclusive == pytest.approx(0.09, rel=1e-3)
    assert mixed == pytest.approx(0.09, rel=1e-3)


def test_nobody_to_wait_for() -> None:
    room = LatencyTargets(itl=0.1).room(state(), COST, 8192, 0)
    assert room.exclusive == 8192


def test_what_is_spent_of_a_gap_is_gone() -> None:
    targets = LatencyTargets(itl=0.1)
    whole = targets.room(BUSY, COST, 8192, 0).exclusive
    targets.observe(step(0.03, prefill=500), COST, None)
    assert targets.spent()
    left = targets.room(BUSY, COST, 8192, 0).exclusive
    assert left < whole - 0.02 / RTX.beta_p
    targets.observe(step(0.02, decodes=50, context=50_000), COST, None)
    assert not targets.spent()


def test_prefill_while_nobody_decodes_spends_nothing() -> None:
    targets = LatencyTargets(itl=0.1)
    targets.room(state(), COST, 8192, 0)
    targets.observe(step(0.5, prefill=8000), COST, None)
    assert not targets.spent()


def test_prompts_go_on_when_those_that_waited_for_a_token_have_left() -> None:
    """Also where the engine's budget is smaller than the smallest slice."""
    policy = build_policy("auto:itl=0.1", RTX, Limits(100_000, 8, 32))
    policy.plan(state(decoding=1, context=100, prefilling=1, pending=250, token_budget=32))
    policy.observe(step(0.01, prefill=32))
    for left in (218, 186, 154):
        plan = policy.plan(state(prefilling=1, pending=left, token_budget=32))
        assert plan.prefill_tokens == 32
        policy.observe(step(0.01, prefill=32))


def test_slices_shrink_when_tokens_cost_more_than_modelled() -> None:
    """Long prompts: attention makes each token dearer, and the next slice shorter at once."""
    targets = LatencyTargets(itl=0.2)
    before = targets.room(BUSY, COST, 8192, 0).exclusive
    slow = RTX.alpha_p + 3.0 * RTX.beta_p * 1000
    targets.observe(step(slow, prefill=1000), COST, None)
    targets.observe(step(0.02, decodes=50, context=50_000), COST, None)
    assert targets.room(BUSY, COST, 8192, 0).exclusive == pytest.approx(before / 3.0, rel=0.01)


def fill(targets: LatencyTargets, gaps: Iterable[float], law: LengthLaw | None = None) -> None:
    """Gaps that were filled to the limit, of so many times the length that was planned."""
    for gap in gaps:
        targets.sliced(500, False)
        seconds = gap * targets.mixed.trim * targets.itl
        targets.observe(step(seconds, prefill=500, decodes=50, context=50_000), COST, law)


def scattered(sigma: float, count: int) -> Iterator[float]:
    """Around 1, always the same."""
    draw = random.Random(1)
    return (draw.gauss(1.0, sigma) for _ in range(count))


def test_the_trim_follows_the_scatter_of_the_gaps_that_were_filled() -> None:
    targets = LatencyTargets(itl=0.1)
    assert targets.mixed.trim == pytest.approx(0.9, abs=0.01)
    fill(targets, scattered(0.01, 300))
    assert 0.95 < targets.mixed.trim < 0.97, "they are as planned"
    fill(targets, scattered(0.05, 300))
    assert 0.8 < targets.mixed.trim < 0.9, "they scatter"
    fill(targets, (gap + 0.2 for gap in scattered(0.01, 4000)))
    assert 0.75 < targets.mixed.trim < 0.83, "they take a fifth longer than planned"
    before = targets.mixed.trim
    targets.observe(step(0.5, decodes=50, context=50_000), COST, None)
    targets.sliced(500, False)
    targets.observe(step(0.5, prefill=300, decodes=50, context=50_000), COST, None)
    assert targets.mixed.trim == before, "a gap that was not filled says nothing"


def test_the_trim_leaves_more_room_than_normal_scatter_needs_where_the_tail_is_heavy() -> None:
    """One gap in fifty is a third longer."""
    targets = LatencyTargets(itl=0.1)
    missed = 0
    for i in range(3000):
        gap = 1.33 if i % 50 == 0 else 1.0
        missed += i >= 1500 and gap * targets.mixed.trim > 1.0
        fill(targets, [gap])
    assert missed <= 0.003 * 1500


def test_short_outputs_need_more_certainty() -> None:
    """One miss spoils a request of 20 tokens, and a tenth of those that run are in that gap."""
    laws = {output: LengthLaw.of([output]) for output in (20, 400)}
    trims = {}
    for output, law in laws.items():
        targets = LatencyTargets(itl=0.1)
        fill(targets, scattered(0.03, 300), law)
        trims[output] = targets.mixed.trim
    assert trims[20] < trims[400] - 0.005


def test_capacity_is_where_slices_can_feed_what_ends() -> None:
    """At N the gap holds a decode iteration of N and the prompts of the N/mu_O that end in it."""
    n = LatencyTargets(itl=0.1).capacity(COST, 1000.0, 200.0, 1100.0, True) / 1.1
    gap = RTX.seconds(0, 0.0, n, 1100.0 * n) + RTX.seconds(1000.0 * n / 200.0, 0.0, 0, 0)
    assert gap == pytest.approx(0.09, rel=1e-3)
    assert LatencyTargets().capacity(COST, 1000.0, 200.0, 1100.0, True) == float("inf")
    assert FLOOR > 0


def test_targets_by_priority_class() -> None:
    targets = parse_targets("0:0.05/5:0.5/9:none")
    assert targets == ((0, 0.05), (5, 0.5), (9, NEVER))
    assert [target_of(targets, p) for p in (-3, 0, 4, 5, 8, 9, 99)] == [
        0.05, 0.05, 0.05, 0.5, 0.5, NEVER, NEVER,
    ]  # fmt: skip
    assert parse_targets("0.1") == ((0, 0.1),)


@pytest.mark.parametrize("bad", ["0:0.1/0:0.2", "0.1/5:1", "x:1", "0:-1", "0:inf", "", "0:"])
def test_targets_that_make_no_sense(bad: str) -> None:
    with pytest.raises(ValueError, match=r"must|could not|invalid"):
        parse_targets(bad)


def test_the_strictest_of_those_that_run_counts() -> None:
    """A batch class without a target has the engine for itself while it is alone."""
    targets = LatencyTargets(itl=parse_targets("0:0.05/5:none"), ttft=parse_targets("0:1/5:60"))
    assert targets.limits_slices, "to begin with"
    targets.look(state(decoding=3, classes={0: 1, 5: 2}))
    assert targets.itl == 0.05
    targets.look(state(decoding=2, classes={0: 0, 5: 2}, head_class=7))
    assert not targets.limits_slices
    assert targets.ttft == 60.0
    targets.look(state(decoding=2, classes={}))
    assert not targets.limits_slices, "an engine without classes changes nothing"
