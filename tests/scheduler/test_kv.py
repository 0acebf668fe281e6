"""Page accounting of requests that all grow by a token per tick, against counting each of them."""

from __future__ import annotations

import random

import pytest

from phasegate.scheduler.kv import KVCache


def test_only_whole_pages_count() -> None:
    kv = KVCache(capacity=50, page=16)
    assert (kv.pages, kv.capacity, kv.free_pages) == (3, 48, 3)
    assert [kv.pages_for(t) for t in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_new_page_when_the_last_one_is_full() -> None:
    """A request of 15 tokens in pages of 16 joins at tick 3: its 17th token needs a new page."""
    kv = KVCache(capacity=64, page=16)
    kv.take(15)
    kv.join(15, tick=3)
    needed = []
    for tick in range(3, 22):
        needed.append(kv.growth(tick))
        kv.grow(tick)
    assert needed == [0, 1, *[0] * 15, 1, 0]
    assert kv.used_pages == 3
    kv.leave(15 + 19, tick=22)
    kv.drop(15 + 19)
    assert kv.used_pages == 0
    assert kv.growth(22) == 0


@pytest.mark.parametrize("page", [1, 3, 16, 256])
def test_against_counting_each_request(page: int) -> None:
    rng = random.Random(page)
    kv = KVCache(10**6, page)
    held: dict[int, int] = {}  # the model: tokens by request
    tick = 0
    for i in range(400):
        if rng.random() < 0.5:
            tokens = rng.randrange(1, 700)
            kv.take(tokens)
            kv.join(tokens, tick)
            held[i] = tokens
        if held and rng.random() < 0.3:
            tokens = held.pop(rng.choice(list(held)))
            kv.leave(tokens, tick)
            kv.drop(tokens)
        before = sum(-(-t // page) for t in held.values())
        after = sum(-(-(t + 1) // page) for t in held.values())
        assert kv.used_pages == before
        assert kv.growth(tick) == after - before
        ticks = rng.choice((1, 1, 2, page, 2 * page + 1))
        kv.grow(tick, ticks)
        tick += ticks
        held = {r: t + ticks for r, t in held.items()}
    assert kv.used_pages == sum(-(-t // page) for t in held.values())


@pytest.mark.parametrize("page", [1, 16])
def test_ticks_that_fit_never_overflow(page: int) -> None:
    rng = random.Random(page)
    for _ in range(200):
        kv = KVCache(rng.randrange(page, 60 * page), page)
        growing = 0
        while True:
            tokens = rng.randrange(1, 10 * page)
            if kv.pages_for(tokens) > kv.free_pages or growing == 12:
                break
            kv.take(tokens)
            kv.join(tokens, 0)
            growing += 1
        ticks = kv.ticks_that_fit(growing)
        kv.grow(0, ticks)
        assert kv.used_pages <= kv.pages
    assert KVCache(64, 16).ticks_that_fit(0) == 0
