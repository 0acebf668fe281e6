"""Batch formation, preemption, displacement and `kv_blocked`, one batch at a time.

KV is counted in pages of one token here, so that the numbers add up by eye.
"""

from __future__ import annotations

from typing import Any

from phasegate.engine.step import Batch
from phasegate.policy.base import UNLIMITED, Plan
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request, State
from phasegate.scheduler.scheduler import Scheduler

EVERYTHING = Plan(True, UNLIMITED, UNLIMITED, UNLIMITED)
DECODE = Plan(True, 0, 0, UNLIMITED)
LOW, HIGH = 1, 0


def scheduler(kv: int = 100, **limits: Any) -> Scheduler:
    return Scheduler(Limits(kv, page=1, **limits))


def submit(s: Scheduler, *requests: Request) -> None:
    for request in requests:
        assert s.submit(request, request.arrival), request.reason


def run(s: Scheduler, plan: Plan = EVERYTHING, iterations: int = 1) -> Batch:
    """Form a batch and let it happen."""
    batch = s.form(plan, 0.0)
    s.commit(batch, iterations)
    return batch


def ids(batch: Batch) -> list[tuple[int, int, int, bool]]:
    return [(s.request.id, s.start, s.length, s.last) for s in batch.prefill]


class TestForming:
    def test_decodes_first_then_started_prompts_then_new_ones(self) -> None:
        s = scheduler(token_budget=10)
        submit(s, Request(0, 4, 9), Request(1, 12, 9), Request(2, 5, 9), Request(3, 5, 9))
        assert ids(run(s)) == [(0, 0, 4, True), (1, 0, 6, False)]
        second = run(s)
        assert second.decodes == 1
        assert ids(second) == [(1, 6, 6, True), (2, 0, 3, False)]
        third = run(s)
        assert third.decodes == 2
        assert ids(third) == [(2, 3, 2, True), (3, 0, 5, True)], "8 tokens of budget were left"

    def test_a_chunk_is_the_longest_slice_of_one_request(self) -> None:
        s = scheduler(token_budget=10)
        submit(s, Request(0, 9, 1), Request(1, 9, 1), Request(2, 9, 1))
        plan = EVERYTHING._replace(chunk=4)
        assert ids(run(s, plan)) == [(0, 0, 4, False), (1, 0, 4, False), (2, 0, 2, False)]
        assert ids(run(s, plan)) == [(0, 4, 4, False), (1, 4, 4, False), (2, 2, 2, False)]
        assert ids(run(s, plan)) == [(0, 8, 1, True), (1, 8, 1, True), (2, 4, 4, False)]

    def test_attention_counts_what_came_before_a_slice(self) -> None:
        """Q = length * (start + length/2)."""
        s = scheduler(token_budget=6)
        submit(s, Request(0, 10, 1))
        assert run(s).prefill_attention == 6 * 3.0
        assert run(s).prefill_attention == 4 * (6 + 2.0)

    def test_an_admission_leaves_the_reserve_and_the_growth_of_this_iteration_free(self) -> None:
        s = scheduler(kv=40)
        submit(s, Request(0, 10, 5), Request(1, 20, 5))
        run(s, EVERYTHING._replace(admit=1))
        # 30 free; 20 for the prompt, 1 for the decode, 10 to spare are one too many ...
        assert not run(s, EVERYTHING._replace(kv_reserve=10)).prefill
        assert s.kv_blocked
        # ... and with the decode 29 are free now.
        assert run(s, EVERYTHING._replace(kv_reserve=8)).prefill_tokens == 20

    def test_alone_a_request_is_admitted_whatever_is_to_stay_free(self) -> None:
        s = scheduler(kv=40)
        submit(s, Request(0, 30, 5))
        assert run(s, EVERYTHING._replace(kv_reserve=1000)).prefill_tokens == 30

    def test_jumps_end_where_kv_might(self) -> None:
        s = scheduler(kv=32)
        submit(s, Request(0, 10, 5), Request(1, 10, 5))
        run(s)
        assert s.form(DECODE._replace(repeat=3), 0.0).repeat == 3
        s = scheduler(kv=32)
        submit(s, Request(0, 10, 5), Request(1, 10, 5))
        run(s)
        assert s.form(DECODE._replace(repeat=UNLIMITED), 0.0).repeat == 6, "12 tokens for two"

    def test_plans_that_run_nothing_are_overridden(self) -> None:
        """Decode if something decodes, else prefill: exclusive phases stay exclusive."""
        nothing = Plan(False, 0, 0, 0)
        s = scheduler()
        submit(s, Request(0, 10, 5), Request(1, 10, 5))
        assert ids(run(s, nothing)) == [(0, 0, 10, True), (1, 0, 10, True)]
        submit(s, Request(2, 10, 5))
        batch = run(s, nothing)
        assert (batch.decodes, ids(batch)) == (2, [])
        assert s.overridden == 2


class TestPreemption:
    def test_the_latest_goes_and_comes_back_first(self) -> None:
        s = scheduler(kv=32)
        early, late, later = Request(0, 15, 9), Request(1, 15, 9), Request(2, 1, 9)
        submit(s, early, late)
        run(s)
        run(s)
        submit(s, later)
        batch = run(s)  # 16 + 16 tokens held, two more needed
        assert s.preempted == [late]
        assert (batch.decodes, ids(batch)) == (1, []), "nobody is admitted in the same iteration"
        assert (late.state, late.generated, late.to_prefill) == (State.WAITING, 2, 17)
        assert (late.preemptions, late.recomputed) == (1, 16)
        assert s.queue.peek() is late
        assert s.kv.used_pages == s.kv_tokens == 17

    def test_a_jump_ends_with_a_preemption(self) -> None:
        """The plan was made for what ran before it."""
        s = scheduler(kv=32)
        submit(s, Request(0, 15, 9), Request(1, 15, 9))
        run(s)
        run(s)
        batch = s.form(DECODE._replace(repeat=UNLIMITED), 0.0)
        assert s.preempted
        assert batch.repeat == 1

    def test_whoever_is_preempted_for_a_batch_that_is_overridden_is_reported(self) -> None:
        """Request 1 decodes, request 0 is still prefilled, KV is full. The plan is to decode only:
        request 1 is preempted for its own growth, and nothing is left to decode."""
        s = scheduler(kv=20, token_budget=8)
        long, short = Request(0, 16, 2), Request(1, 4, 4)
        submit(s, long, short)
        run(s, EVERYTHING._replace(chunk=4))
        assert (long.state, short.state) == (State.PREFILLING, State.DECODING)
        batch = run(s, DECODE)
        assert s.preempted == [short]
        assert (batch.decodes, ids(batch)) == (0, [(0, 4, 8, False)])


class TestPriorities:
    def priorities(self, kv: int = 100, **limits: Any) -> Scheduler:
        return scheduler(kv, order="priority", ageing=30.0, **limits)

    def test_a_more_urgent_request_takes_a_slot_from_the_least_urgent(self) -> None:
        s = self.priorities(slots=2)
        first, second = Request(0, 5, 9, 0.0, LOW), Request(1, 5, 9, 1.0, LOW)
        urgent = Request(2, 5, 9, 2.0, HIGH)
        submit(s, first, second)
        run(s)
        submit(s, urgent)
        assert s.snapshot(2.0).urgent
        batch = run(s)
        assert s.preempted == [second]
        assert batch.decodes == 1
        assert ids(batch) == [(2, 0, 5, True)]
        assert not s.snapshot(3.0).urgent, "whoever waits now is of the lower class"

    def test_a_displaced_prompt_is_not_in_the_batch(self) -> None:
        """The victim is being prefilled, and would have been continued in this very batch."""
        s = self.priorities(slots=1, token_budget=8)
        victim, urgent = Request(0, 20, 2, 0.0, LOW), Request(1, 3, 2, 1.0, HIGH)
        submit(s, victim)
        run(s)
        submit(s, urgent)
        assert ids(run(s, EVERYTHING._replace(chunk=4))) == [(1, 0, 3, True)]
        assert (victim.state, victim.prefilled, victim.recomputed) == (State.WAITING, 0, 8)
        assert s.pending == 0

    def test_an_old_request_of_low_priority_is_left_alone(self) -> None:
        """31 s of waiting make up for one step of priority when ageing is 30 s."""
        s = self.priorities(slots=1)
        submit(s, Request(0, 5, 9, 0.0, LOW))
        run(s)
        submit(s, Request(1, 5, 9, 31.0, HIGH))
        assert not s.snapshot(31.0).urgent
        assert not run(s).prefill

    def test_kv_is_taken_from_as_many_as_it_needs(self) -> None:
        s = self.priorities(kv=30)
        submit(s, *(Request(i, 9, 2, float(i), LOW) for i in range(3)))
        run(s, EVERYTHING)
        submit(s, Request(3, 14, 2, 4.0, HIGH))
        assert ids(run(s, EVERYTHING._replace(decode=False))) == [(3, 0, 14, True)]
        assert [r.id for r in s.preempted] == [2, 1]

    def test_nobody_is_displaced_in_vain(self) -> None:
        """Even without the low one, the urgent request would not fit beside its own class."""
        s = self.priorities(kv=30)
        submit(s, Request(0, 15, 2, 0.0, HIGH), Request(1, 9, 2, 1.0, LOW))
        run(s)
        submit(s, Request(2, 20, 2, 2.0, HIGH))
        batch = run(s)
        assert (batch.decodes, ids(batch), s.preempted) == (2, [], [])
        assert s.kv_blocked
        assert not s.snapshot(3.0).urgent, "it was tried; wait until something leaves"

    def test_slots_are_swapped_one_for_one_where_n_has_shrunk(self) -> None:
        s = self.priorities(slots=4)
        submit(s, *(Request(i, 5, 9, float(i), LOW) for i in range(4)))
        run(s)
        submit(s, Request(4, 5, 9, 5.0, HIGH))
        run(s, EVERYTHING._replace(capacity=2))
        assert [r.id for r in s.preempted] == [3]
        assert s.running == 4


class TestKVBlocked:
    """`kv_blocked`: the head of the queue did not fit into KV, and nothing has left it since."""

    def blocked(self, **limits: Any) -> Scheduler:
        s = scheduler(kv=30, **limits)
        submit(s, Request(0, 10, 9), Request(1, 5, 9), Request(2, 20, 9, 1.0))
        run(s)
        assert s.kv_blocked
        return s

    def test_stays_while_nothing_changes(self) -> None:
        s = self.blocked()
        run(s, DECODE)
        submit(s, Request(3, 1, 9, 2.0))
        assert s.snapshot(0.0).kv_blocked, "whoever comes later waits behind the head"

    def test_ends_when_a_request_leaves_kv(self) -> None:
        s = self.blocked()
        s.finish(s.requests[1], 0.0)
        assert not s.kv_blocked

    def test_ends_when_a_running_request_is_aborted(self) -> None:
        s = self.blocked()
        s.abort(0, 0.0)
        assert not s.kv_blocked

    def test_ends_when_the_head_is_aborted(self) -> None:
        s = self.blocked()
        s.abort(2, 0.0)
        assert not s.kv_blocked

    def test_ends_when_another_request_becomes_the_head(self) -> None:
        s = self.blocked(order="priority")
        submit(s, Request(3, 1, 9, 2.0, -1))
        assert not s.kv_blocked
        assert ids(run(s)) == [(3, 0, 1, True)]

    def test_is_not_set_when_slots_are_short(self) -> None:
        s = scheduler(slots=1)
        submit(s, Request(0, 10, 9), Request(1, 10, 9))
        run(s)
        run(s)
        assert not s.kv_blocked


class TestAbort:
    def test_in_every_state(self) -> None:
        s = scheduler(kv=40, token_budget=12)
        decoding, prefilling, waiting = Request(0, 6, 9), Request(1, 20, 9), Request(2, 5, 9)
        submit(s, decoding, prefilling, waiting)
        run(s)
        states = [r.state for r in (decoding, prefilling, waiting)]
        assert states == [State.DECODING, State.PREFILLING, State.WAITING]
        run(s, DECODE)
        for request, tokens in ((waiting, 0), (prefilling, 0), (decoding, 2)):
            assert s.abort(request.id, 5.0) is request
            assert (request.state, request.generated) == (State.ABORTED, tokens)
            assert request.finished_at == 5.0
        assert (s.kv.used_pages, s.context, s.pending, s.kv_tokens) == (0, 0, 0, 0)
        assert not s.has_work
        assert s.abort(0, 6.0) is None

    def test_a_preempted_one(self) -> None:
        s = scheduler(kv=32)
        submit(s, Request(0, 15, 9), Request(1, 15, 9))
        for _ in range(3):
            run(s)
        (preempted,) = s.preempted
        assert s.abort(preempted.id, 0.0) is preempted
        assert preempted.generated == 2
        assert len(s.queue) == 0
        assert s.queue.peek() is None
        assert s.kv.used_pages == 17


def test_free_slots_are_no_waiting_room() -> None:
    """Requests that find a slot wait only for the next iteration to begin."""
    s = scheduler(slots=2, queue_limit=1)
    submit(s, Request(0, 5, 5), Request(1, 5, 5), Request(2, 5, 5))
    assert not s.submit(Request(3, 5, 5), 0.0)


def test_a_full_queue_rejects_at_once_and_loses_nothing() -> None:
    s = scheduler(queue_limit=2)
    s.capacity = 0  # no slot is free
    submit(s, Request(0, 5, 5), Request(1, 5, 5))
    refused = Request(2, 5, 5)
    assert not s.submit(refused, 1.0)
    assert refused.reason == "2 requests are waiting already (queue_limit); retry later"
    assert (refused.state, refused.finished_at) == (State.REJECTED, 1.0)
    assert s.requests.keys() == {0, 1}
    run(s)
    submit(s, Request(3, 5, 5))
