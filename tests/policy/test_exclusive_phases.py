"""The state machine of exclusive batching, one decision at a time.

`now(...)` is a server with 10 slots; the phases are asked with k = 4: a refill starts when 4 of
the 10 slots are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from phasegate.policy.base import NEVER, UNLIMITED, Plan, Snapshot, StepReport
from phasegate.policy.options import Options
from phasegate.policy.phases import ExclusivePhases


def now(time: float = 0.0, *, heads: Sequence[int] = (), **changes: Any) -> Snapshot:
    """A snapshot with KV for 1,000 tokens; `heads` are the prompts of the waiting requests."""
    values: dict[str, Any] = {
        "waiting": len(heads),
        "prefilling": 0,
        "decoding": 0,
        "pending_tokens": 0,
        "context_tokens": 0,
        "kv_capacity": 1000,
        "kv_free": 500,
        "oldest_wait": 0.0,
        "slots": 10,
        "token_budget": 100,
        "kv_blocked": False,
        "head": lambda limit: list(heads)[:limit],
    }
    return Snapshot(time, **(values | changes))


def step(**changes: Any) -> StepReport:
    """A report of one step; what is not named did not happen."""
    values: dict[str, Any] = {
        "start": 0.0,
        "end": 1.0,
        "durations": (1.0,),
        "iterations": 1,
        "prefill_tokens": 0,
        "prefill_attention": 0.0,
        "decodes": 0,
        "context_tokens": 0,
        "slots_busy": 0,
        "arrived": (),
        "admitted": 0,
        "started": (),
        "finished": (),
        "preempted": (),
        "kv_blocked": False,
        "waiting": 0,
    }
    return StepReport(**(values | changes))


def phases(max_hold: float = NEVER) -> ExclusivePhases:
    return ExclusivePhases(Options(max_hold=max_hold))


def refills(plan: Plan) -> bool:
    """Whether the plan prefills (alone) or decodes (alone)."""
    assert plan.decode != bool(plan.prefill_tokens)
    return not plan.decode


def test_decodes_until_k_of_n_slots_are_free() -> None:
    rule = phases()
    assert not refills(rule.plan(now(decoding=7, heads=[5] * 9), 4, 10))
    plan = rule.plan(now(decoding=6, heads=[5] * 9), 4, 10)
    assert refills(plan)
    assert plan.admit == 4


def test_at_light_load_the_same_share_of_those_in_use_counts() -> None:
    """min(q, N-n)*(N-k) >= n*k: 2 waiting make 2*6 >= 3*4."""
    assert refills(phases().plan(now(decoding=3, heads=[5] * 2), 4, 10))
    assert not refills(phases().plan(now(decoding=4, heads=[5] * 2), 4, 10))


def test_never_holds_arrivals_back_when_nothing_decodes() -> None:
    assert refills(phases().plan(now(heads=[5]), 10, 10))


def test_a_refill_goes_on_until_its_prompts_are_done() -> None:
    rule = phases()
    assert rule.plan(now(heads=[90, 90]), 4, 10).admit == 2
    rule.observe(step(admitted=2, slots_busy=2))
    later = now(prefilling=1, decoding=1, heads=[5])
    plan = rule.plan(later, 4, 10)
    assert refills(plan)
    assert plan.admit == 0, "whoever comes during a refill waits for the next"


def test_a_decode_phase_may_be_jumped_over_until_the_guard_has_to_be_looked_at() -> None:
    plan = phases(max_hold=2.0).plan(now(1.0, decoding=9, heads=[5]), 4, 10)
    assert (plan.repeat, plan.review_at) == (UNLIMITED, 3.0)
    assert phases(max_hold=2.0).plan(now(1.0, decoding=9), 4, 10).review_at == NEVER


def test_the_guard_ends_the_decode_phase_at_exactly_its_time() -> None:
    """The time at which it asks to be reviewed, rounding included."""
    rule = phases(max_hold=0.2)
    review = rule.plan(now(0.7, decoding=9, heads=[5]), 4, 10).review_at
    assert review == 0.7 + 0.2
    assert review - 0.7 < 0.2, "... although in floating point less than 0.2 s have passed"
    assert refills(rule.plan(now(review, decoding=9, heads=[5]), 4, 10))


def test_the_guard_forgets_a_request_that_was_aborted() -> None:
    rule = phases(max_hold=2.0)
    assert not refills(rule.plan(now(0.0, decoding=9, heads=[5]), 4, 10))
    assert rule.plan(now(1.0, decoding=9), 4, 10).review_at == NEVER
    plan = rule.plan(now(5.0, decoding=9, heads=[5]), 4, 10)
    assert not refills(plan)
    assert plan.review_at == 7.0


def test_the_guard_does_not_count_while_kv_has_no_room() -> None:
    rule = phases(max_hold=2.0)
    assert not refills(rule.plan(now(0.0, decoding=9, heads=[600]), 4, 10))
    plan = rule.plan(now(2.0, decoding=9, heads=[600]), 4, 10)
    assert not refills(plan), "600 tokens do not fit into 500"
    assert plan.review_at == NEVER


def test_without_room_in_kv_it_waits_for_a_completion() -> None:
    rule = phases()
    assert not refills(rule.plan(now(decoding=6, heads=[600] * 4), 4, 10))
    # One left: with 6 as the most that fits, k = 4 of 10 is 2 of 6.
    assert not refills(rule.plan(now(decoding=5, kv_free=700, heads=[600] * 4), 4, 10))
    assert refills(rule.plan(now(decoding=4, kv_free=700, heads=[600] * 4), 4, 10))


def test_another_head_that_fits_is_not_held_by_the_one_that_did_not() -> None:
    """The request that was too large has been aborted; the next is small and k are free."""
    rule = phases()
    assert not refills(rule.plan(now(decoding=6, heads=[600, *[5] * 4]), 4, 10))
    assert refills(rule.plan(now(decoding=6, heads=[5] * 4), 4, 10))


def test_a_refill_that_kv_stops_short_ends() -> None:
    rule = phases()
    assert rule.plan(now(heads=[300, 300, 600]), 4, 10).admit == 3
    rule.observe(step(admitted=2, slots_busy=2, kv_blocked=True, waiting=1))
    blocked = now(decoding=2, kv_free=400, heads=[600], kv_blocked=True)
    assert not refills(rule.plan(blocked, 4, 10))


def test_an_urgent_request_ends_the_decode_phase() -> None:
    plan = phases().plan(now(decoding=10, heads=[5], urgent=True), 4, 10)
    assert refills(plan)
    assert plan.admit == 1


def test_an_urgent_request_is_let_in_when_kv_is_full() -> None:
    """The scheduler displaces for KV as it does for slots, if it is asked to admit."""
    plan = phases().plan(now(decoding=5, heads=[600], urgent=True), 4, 10)
    assert refills(plan)
    assert plan.admit == 1


def test_an_urgent_request_joins_a_refill_that_is_going_on() -> None:
    rule = phases()
    assert rule.plan(now(heads=[500]), 4, 10).admit == 1
    rule.observe(step(admitted=1, slots_busy=1))
    during = now(prefilling=1, pending_tokens=400, heads=[5], urgent=True)
    assert rule.plan(during, 4, 10).admit == 1


def test_more_requests_than_usual_do_not_raise_the_threshold() -> None:
    """k = 1 of 4, as a mean: with 7 running one is still enough (by the share it were 3)."""
    assert refills(phases().plan(now(decoding=7, heads=[5]), 1, 10, of=4))
    assert not refills(phases().plan(now(decoding=7, heads=[5]), 2, 10, of=4))


def test_those_who_wait_are_held_no_longer_than_a_refill_would_cost_the_others() -> None:
    """A refill takes 0.1 s more than its tokens need: 6 running wait 0.6 s together."""
    rule = phases()
    plan = rule.plan(now(0.0, decoding=6, heads=[5]), 4, 10, patience=0.1)
    assert not refills(plan)
    assert plan.review_at == pytest.approx(0.6)
    # One alone for 0.2 s, then two of them: 0.2 s more make 0.6 s together.
    plan = rule.plan(now(0.2, decoding=6, heads=[5, 5]), 4, 10, patience=0.1)
    assert plan.review_at == pytest.approx(0.4)
    assert not refills(rule.plan(now(0.3, decoding=6, heads=[5, 5]), 4, 10, patience=0.1))
    assert refills(rule.plan(now(0.41, decoding=6, heads=[5, 5]), 4, 10, patience=0.1))


def test_patience_starts_anew_after_a_refill() -> None:
    rule = phases()
    assert not refills(rule.plan(now(0.0, decoding=6, heads=[5]), 4, 10, patience=0.1))
    assert refills(rule.plan(now(0.7, decoding=6, heads=[5]), 4, 10, patience=0.1))
    rule.observe(step(admitted=1, slots_busy=7))
    plan = rule.plan(now(1.0, decoding=7, heads=[5]), 4, 10, patience=0.1)
    assert not refills(plan)
    assert plan.review_at == pytest.approx(1.7)
