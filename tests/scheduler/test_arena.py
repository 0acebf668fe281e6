"""The arena: contiguous regions that never overlap, whatever is allocated, grown or moved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasegate.scheduler.arena import Arena, Move

PAGE = 4


class Memory:
    """Stands for the KV tensors: carries out moves, so that lost tokens are noticed."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.cells: list[object] = [None] * arena.capacity
        self.written: dict[object, int] = {}

    def carry_out(self, moves: list[Move] | tuple[Move, ...]) -> int:
        for source, target, length in moves:
            self.cells[target : target + length] = self.cells[source : source + length]
        return sum(move.length for move in moves)

    def write_up_to(self, owner: object, tokens: int) -> None:
        start = self.arena.start(owner)
        for i in range(self.written.get(owner, 0), tokens):
            self.cells[start + i] = (owner, i)
        self.written[owner] = tokens

    def check(self) -> None:
        """I2: no overlap, used + free = capacity, whole pages; and nobody lost a token."""
        end = used = 0
        for owner, start, size in self.arena.regions():
            assert start >= end
            assert start % PAGE == size % PAGE == 0
            assert size >= self.written[owner]
            content = self.cells[start : start + self.written[owner]]
            assert content == [(owner, i) for i in range(self.written[owner])]
            end, used = start + size, used + size
        assert end <= self.arena.capacity
        assert used == self.arena.used
        assert used + self.arena.free == self.arena.capacity
        assert sum(hole.size for hole in self.arena.holes()) == self.arena.free


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_regions_never_overlap_and_tokens_survive_any_history(data: st.DataObject) -> None:
    arena = Arena(capacity=PAGE * data.draw(st.integers(1, 24)), page=PAGE)
    memory = Memory(arena)
    tokens: dict[int, int] = {}
    for step in range(data.draw(st.integers(1, 40))):
        action = data.draw(
            st.sampled_from(["allocate", "grow", "grow", "release", "tidy", "compact"])
        )
        if action == "allocate" and arena.free:
            wanted = data.draw(st.integers(1, arena.free))
            memory.carry_out(arena.allocate(step, wanted, wanted + data.draw(st.integers(0, 20))))
            tokens[step] = wanted
            memory.write_up_to(step, wanted)
        elif action == "grow" and tokens:
            owner = data.draw(st.sampled_from(sorted(tokens)))
            room = arena.size(owner) + arena.free
            tokens[owner] = data.draw(st.integers(tokens[owner], room))
            memory.carry_out(arena.grow(owner, tokens[owner]))
            memory.write_up_to(owner, tokens[owner])
        elif action == "release" and tokens:
            owner = data.draw(st.sampled_from(sorted(tokens)))
            arena.release(owner)
            del tokens[owner], memory.written[owner]
        elif action == "tidy":
            before, limit = arena.contiguity(), data.draw(st.integers(0, 40))
            assert memory.carry_out(arena.tidy(limit, target=1.0)) <= limit
            assert arena.contiguity() >= before
        elif action == "compact":
            memory.carry_out(arena.compact())
            assert len(arena.holes()) <= 1
        memory.check()
    assert len(arena) == len(tokens)


def test_every_page_can_be_used_however_scattered_the_free_ones_are() -> None:
    arena = Arena(8 * PAGE, PAGE)
    memory = Memory(arena)
    for owner in range(8):
        memory.carry_out(arena.allocate(owner, PAGE))
        memory.write_up_to(owner, PAGE)
    for owner in (0, 2, 4, 6):
        arena.release(owner)
    memory.carry_out(arena.allocate("big", 3 * PAGE))
    memory.write_up_to("big", 3 * PAGE)
    memory.check()
    memory.carry_out(arena.grow(1, 2 * PAGE))
    memory.write_up_to(1, 2 * PAGE)
    memory.check()
    assert arena.free == 0


def test_expected_growth_needs_no_moves() -> None:
    arena = Arena(64 * PAGE, PAGE)
    for owner in range(4):
        assert arena.allocate(owner, PAGE, expected=8 * PAGE) == ()
    for pages in range(2, 9):
        for owner in range(4):
            assert arena.grow(owner, pages * PAGE) == ()


def test_making_room_moves_as_little_as_possible() -> None:
    # |a.b.......cccccccc.| with one page in "a", one in "b" and eight in "c"
    arena = Arena(18 * PAGE, PAGE)
    arena.allocate("a", PAGE)
    arena.allocate("x", PAGE)
    arena.allocate("b", PAGE)
    arena.allocate("y", 6 * PAGE)
    arena.allocate("c", 8 * PAGE)
    arena.release("x")
    arena.release("y")
    moves = arena.allocate("new", 7 * PAGE)
    assert [move.length for move in moves] == [PAGE]


def test_growing_against_a_neighbour_moves_the_smaller_of_the_two() -> None:
    arena = Arena(12 * PAGE, PAGE)
    arena.allocate("big", 5 * PAGE)
    arena.allocate("small", PAGE)
    moves = arena.grow("big", 6 * PAGE)
    assert sum(move.length for move in moves) == PAGE
    assert arena.start("big") == 0


def test_tidying_continues_from_call_to_call_within_its_limit() -> None:
    arena = Arena(40 * PAGE, PAGE)
    for owner in range(40):
        arena.allocate(owner, PAGE)
    for owner in range(0, 40, 2):
        arena.release(owner)
    assert arena.contiguity() == pytest.approx(1 / 20)
    calls = 0
    while arena.contiguity() < 0.3:
        assert 0 < sum(move.length for move in arena.tidy(limit=2 * PAGE)) <= 2 * PAGE
        calls += 1
    assert calls >= 2
    assert arena.tidy(limit=2 * PAGE) == []


def test_tidying_leaves_a_region_alone_that_is_longer_than_the_limit() -> None:
    arena = Arena(20 * PAGE, PAGE)
    arena.allocate("a", 4 * PAGE)
    arena.allocate("b", 8 * PAGE)
    arena.allocate("c", 4 * PAGE)
    arena.release("a")
    assert arena.tidy(limit=3 * PAGE, target=1.0) == []


def test_refuses_what_does_not_fit() -> None:
    arena = Arena(3 * PAGE + 1, PAGE)
    assert arena.capacity == 3 * PAGE
    arena.allocate("a", 2 * PAGE)
    with pytest.raises(MemoryError, match="5 KV tokens wanted, 4 are free"):
        arena.allocate("b", 5)
    with pytest.raises(MemoryError, match="8 more KV tokens wanted, 4 are free"):
        arena.grow("a", 4 * PAGE)
    with pytest.raises(ValueError, match="holds a region already"):
        arena.allocate("a", 1)
    with pytest.raises(ValueError, match="cannot hold a page"):
        Arena(PAGE - 1, PAGE)
    arena.release("nobody")
    assert arena.free == PAGE
