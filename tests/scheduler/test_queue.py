"""The waiting queues: order, preempted requests, aborted ones."""

from __future__ import annotations

import random

import pytest

from phasegate.scheduler.queue import FcfsQueue, PriorityQueue, WaitingQueue
from phasegate.scheduler.request import Request, State


def request(id: int, order: float | None = None) -> Request:
    """A waiting request; its prompt is as long as its id says."""
    return Request(id, id, 1, order=float(id) if order is None else order, to_prefill=id)


def abort(queue: WaitingQueue, gone: Request) -> None:
    """What the scheduler does with a waiting request."""
    gone.state = State.ABORTED
    queue.forget()


def drain(queue: WaitingQueue) -> list[int]:
    ids = []
    while queue.peek() is not None:
        ids.append(queue.pop().id)
    return ids


@pytest.fixture(params=[FcfsQueue, PriorityQueue])
def queue(request: pytest.FixtureRequest) -> WaitingQueue:
    made: WaitingQueue = request.param()
    return made


def test_in_order(queue: WaitingQueue) -> None:
    for i in (1, 2, 3):
        queue.add(request(i))
    assert queue.prompts(2) == [1, 2]
    assert len(queue) == 3
    assert drain(queue) == [1, 2, 3]
    assert len(queue) == 0


def test_a_preempted_request_goes_in_front_of_later_arrivals(queue: WaitingQueue) -> None:
    """Preemption takes the latest of those that run: first 3, then 2, then they come back."""
    running = [request(1), request(2), request(3)]
    for i in (4, 5):
        queue.add(request(i))
    queue.add(running[2])
    queue.add(running[1])
    assert queue.prompts(10) == [2, 3, 4, 5]
    queue.add(request(6))
    assert queue.pop().id == 2
    queue.add(running[0])
    assert drain(queue) == [1, 3, 4, 5, 6]


def test_a_preempted_request_may_find_the_queue_empty(queue: WaitingQueue) -> None:
    queue.add(request(2))
    queue.add(request(1))
    queue.add(request(3))
    assert drain(queue) == [1, 2, 3]


def test_aborted_requests_are_neither_counted_nor_returned(queue: WaitingQueue) -> None:
    waiting = [request(i) for i in range(1, 6)]
    for one in waiting:
        queue.add(one)
    for gone in (waiting[0], waiting[2], waiting[4]):
        abort(queue, gone)
    assert len(queue) == 2
    assert queue.prompts(10) == [2, 4]
    assert drain(queue) == [2, 4]


def test_aborted_requests_do_not_pile_up_behind_a_blocked_head(queue: WaitingQueue) -> None:
    """A thousand clients give up while the head waits for KV: nothing is kept of them."""
    queue.add(request(0))
    for i in range(1, 1000):
        one = request(i)
        queue.add(one)
        abort(queue, one)
    assert len(queue) == 1
    assert len(queue._items) < 100  # type: ignore[attr-defined]
    assert drain(queue) == [0]


def test_a_preempted_request_behind_an_aborted_one(queue: WaitingQueue) -> None:
    last = request(9)
    queue.add(last)
    abort(queue, last)
    queue.add(request(3))
    queue.add(request(10))
    assert drain(queue) == [3, 10]


def test_priority_with_equal_orders_keeps_the_sequence() -> None:
    queue = PriorityQueue()
    for i in (5, 7, 6):
        queue.add(request(i, order=1.0))
    queue.add(request(8, order=0.5))
    assert drain(queue) == [8, 5, 6, 7]


def test_priority_order_against_sorting() -> None:
    rng = random.Random(1)
    queue, model = PriorityQueue(), list[Request]()
    for i in range(500):
        one = request(i, order=rng.randrange(50) / 2)
        queue.add(one)
        model.append(one)
        if rng.random() < 0.3:
            gone = model.pop(rng.randrange(len(model)))
            abort(queue, gone)
        if rng.random() < 0.3 and model:
            model.sort(key=lambda r: (r.order, r.id))
            assert queue.peek() is model[0]
            assert queue.pop() is model.pop(0)
        assert len(queue) == len(model)
    model.sort(key=lambda r: (r.order, r.id))
    assert queue.prompts(1000) == [r.to_prefill for r in model]
