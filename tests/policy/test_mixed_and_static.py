"""What mixed and static batching plan, by what they see."""

from __future__ import annotations

from typing import Any

import pytest

from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.capacity import FixedCapacity
from phasegate.policy.mixed import Mixed, mixed_plan
from phasegate.policy.options import Options
from phasegate.policy.static import Static


def seen(**changes: Any) -> Snapshot:
    """A server with 10 slots and a budget of 100 tokens."""
    values: dict[str, Any] = {
        "now": 0.0,
        "waiting": 0,
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
        "head": lambda limit: [],
    }
    return Snapshot(**(values | changes))


def admitted(count: int) -> StepReport:
    """A report of a step that admitted `count` requests."""
    return StepReport(0.0, 1.0, (1.0,), 1, 50, 0.0, 0, 0, 5, (), count, (), (), (), False, 0)


def mixed(now: Snapshot, **options: Any) -> Plan:
    chosen = Options(**options)
    return Mixed(chosen, FixedCapacity(chosen.n), None, "mixed").plan(now)


class TestMixed:
    def test_decodes_and_fills_the_rest_of_the_budget(self) -> None:
        plan = mixed(seen(waiting=5, decoding=7))
        assert plan == Plan(True, admit=3, prefill_tokens=93, capacity=10)

    def test_goes_on_with_started_prompts_when_no_slot_is_free(self) -> None:
        plan = mixed(seen(waiting=5, decoding=8, prefilling=2), chunk=30)
        assert plan == Plan(True, admit=0, prefill_tokens=92, capacity=10, chunk=30)

    @pytest.mark.parametrize(
        "state",
        [
            {"waiting": 0, "decoding": 4},
            {"waiting": 5, "decoding": 10},
            {"waiting": 5, "decoding": 4, "kv_blocked": True},
        ],
        ids=["nobody waits", "no slot", "no KV"],
    )
    def test_only_decodes_when_nothing_can_be_prefilled(self, state: dict[str, Any]) -> None:
        """Then nothing changes until somebody comes or goes: it may be jumped over."""
        assert mixed(seen(**state)) == Plan(True, 0, 0, 10, repeat=UNLIMITED)

    def test_its_own_limits_within_those_of_the_engine(self) -> None:
        assert mixed(seen(waiting=5), n=4).admit == 4
        assert mixed(seen(waiting=5), n=400).capacity == 10
        plan = mixed(seen(waiting=9, decoding=5), token_budget=8)
        assert (plan.capacity, plan.admit, plan.prefill_tokens) == (8, 3, 3)

    def test_an_urgent_request_takes_over_a_slot_and_its_token(self) -> None:
        plan = mixed(seen(waiting=1, decoding=8, urgent=True), token_budget=8)
        assert (plan.admit, plan.prefill_tokens) == (1, 1)

    def test_a_reserve_is_passed_on(self) -> None:
        assert mixed_plan(seen(waiting=1), 10, Options(), kv_reserve=40).kv_reserve == 40

    def test_nothing_shrinks_below_zero_where_n_has(self) -> None:
        plan = mixed(seen(waiting=5, decoding=9, prefilling=1), n=4)
        assert (plan.admit, plan.capacity) == (0, 4)

    def test_its_decision(self) -> None:
        policy = Mixed(Options(), FixedCapacity(64), None, "mixed:n=64")
        policy.plan(seen())
        assert policy.decision == Decision("mixed", None, 10)


class TestStatic:
    def test_a_batch_is_put_together_prefilled_and_decoded_to_its_end(self) -> None:
        policy = Static(Options(n=4), "static:n=4")
        assert policy.plan(seen(waiting=6)) == Plan(False, 4, 100, 4)
        policy.observe(admitted(3))
        # The budget was full after three: the fourth still belongs to the batch.
        assert policy.plan(seen(waiting=3, prefilling=1, decoding=2)) == Plan(False, 1, 100, 4)
        policy.observe(admitted(1))
        decode = Plan(True, 0, 0, 4, repeat=UNLIMITED)
        assert policy.plan(seen(waiting=2, decoding=4)) == decode
        assert policy.plan(seen(waiting=9, decoding=1)) == decode
        assert policy.plan(seen(waiting=9)).admit == 4
        assert policy.decision == Decision("static", None, 4)

    def test_a_batch_is_no_larger_than_what_waited_when_it_began(self) -> None:
        policy = Static(Options(n=4), "static:n=4")
        assert policy.plan(seen(waiting=2)).admit == 2
        policy.observe(admitted(2))
        assert policy.plan(seen(waiting=5, decoding=2)).decode

    def test_it_is_cut_short_where_kv_is_full(self) -> None:
        policy = Static(Options(n=4), "static:n=4")
        policy.plan(seen(waiting=4))
        policy.observe(admitted(2))
        assert policy.plan(seen(waiting=2, decoding=2, kv_blocked=True)).decode
        assert policy.plan(seen(waiting=2, decoding=1)).decode, "and not topped up later"
