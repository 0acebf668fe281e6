"""Contiguous KV regions in one address space: placement, growth, and compaction.

The scheduler counts pages (`scheduler.kv`); the arena says *where* they are. A request owns one
contiguous region of whole pages, so that attention reads a plain slice. Because the scheduler
never hands out more pages than there are, every request for space succeeds; when no single hole
is large enough, regions move. The arena only plans the moves: whoever owns the memory carries
them out, in order (invariant I2: regions never overlap, used + free = capacity).

Three habits keep moves rare: a region is placed where it has room for the length it may reach,
a new region leaves its neighbours' expected growth alone as long as there is another place, and
`tidy` joins holes between iterations in bounded slices (THEORY section 7, last point).
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LIGHT = 0.3
"""Below this share of the free space in the largest hole, compaction is worth its while."""


class Move(NamedTuple):
    """Copy `length` tokens from `source` to `target`. The two ranges may overlap: what arrives
    must be what was at `source` before the copy (memmove)."""

    source: int
    target: int
    length: int


@dataclass(slots=True)
class Region:
    """`size` tokens from `start`, expected to grow to `expected` tokens (all whole pages)."""

    start: int
    size: int
    expected: int

    @property
    def end(self) -> int:
        """First token after the region."""
        return self.start + self.size


class Hole(NamedTuple):
    """Free tokens from `start`; `after` is the index of the region before it (-1: none)."""

    start: int
    size: int
    after: int


class Arena:
    """Who holds which tokens of a KV cache of `capacity` tokens.

    Args:
        capacity: tokens; only whole pages are used.
        page: tokens per page; regions start and end at page boundaries.
    """

    def __init__(self, capacity: int, page: int) -> None:
        if page < 1 or capacity < page:
            raise ValueError(f"an arena of {capacity} tokens cannot hold a page of {page}")
        self.page = page
        self.capacity = capacity // page * page
        self.used = 0
        self.moved = 0
        self._regions: dict[Hashable, Region] = {}
        self._order: list[tuple[int, Hashable]] = []  # (start, owner), by start

    # ---------------------------------------------------------------- what is where
    def __len__(self) -> int:
        return len(self._regions)

    def __contains__(self, owner: Hashable) -> bool:
        return owner in self._regions

    def start(self, owner: Hashable) -> int:
        """First token of the owner's region."""
        return self._regions[owner].start

    def size(self, owner: Hashable) -> int:
        """Tokens in the owner's region (whole pages)."""
        return self._regions[owner].size

    @property
    def free(self) -> int:
        """Tokens that nobody holds."""
        return self.capacity - self.used

    def regions(self) -> Iterator[tuple[Hashable, int, int]]:
        """(owner, start, size) of every region, in the order of the addresses."""
        for start, owner in self._order:
            yield owner, start, self._regions[owner].size

    def holes(self) -> list[Hole]:
        """The free ranges, in the order of the addresses."""
        holes = []
        end = 0
        for i, (start, owner) in enumerate(self._order):
            if start > end:
                holes.append(Hole(end, start - end, i - 1))
            end = start + self._regions[owner].size
        if end < self.capacity:
            holes.append(Hole(end, self.capacity - end, len(self._order) - 1))
        return holes

    def contiguity(self) -> float:
        """Largest hole / all free tokens: 1 when the free space is in one piece (or none is left).

        THEORY section 7 calls this the fragmentation ratio; below 0.3 it suggests compaction.
        """
        if self.used == self.capacity:
            return 1.0
        return max(hole.size for hole in self.holes()) / self.free

    # ---------------------------------------------------------------- taking and giving back
    def allocate(self, owner: Hashable, tokens: int, expected: int = 0) -> Sequence[Move]:
        """Give `owner` a region for `tokens` tokens that may grow to `expected` tokens.

        Returns the moves that make room, to be carried out before the region is used.
        Raises ValueError if the owner has a region already, and MemoryError if fewer than
        `tokens` tokens are free in total.
        """
        size = self._whole_pages(max(tokens, 1))
        if owner in self._regions:
            raise ValueError(f"{owner!r} holds a region already")
        if size > self.free:
            raise MemoryError(f"{tokens} KV tokens wanted, {self.free} are free")
        expected = max(size, self._whole_pages(expected))
        start = self._place(size, expected)
        moves: Sequence[Move] = ()
        if start < 0:
            start, moves = self._gather(size)
        self._insert(owner, Region(start, size, expected))
        self.used += size
        return moves

    def grow(self, owner: Hashable, tokens: int) -> Sequence[Move]:
        """Make the owner's region hold at least `tokens` tokens; what it holds is kept.

        Returns the moves to be carried out before the region is used again (often none).
        Raises MemoryError if the free tokens do not suffice.
        """
        region = self._regions[owner]
        size = self._whole_pages(tokens)
        extra = size - region.size
        if extra <= 0:
            return ()
        if extra > self.free:
            raise MemoryError(f"{extra} more KV tokens wanted, {self.free} are free")
        region.expected = max(region.expected, size)
        index = self._index(owner)
        if self._gap_after(index) >= extra:
            moves: Sequence[Move] = ()
        else:
            moves = self._make_adjacent(index, size)
        region.size = size
        self.used += extra
        return moves

    def release(self, owner: Hashable) -> None:
        """Take the owner's region back; nothing happens if it has none."""
        region = self._regions.get(owner)
        if region is None:
            return
        del self._order[self._index(owner)]
        del self._regions[owner]
        self.used -= region.size

    # ---------------------------------------------------------------- compaction
    def tidy(self, limit: int, target: float = _LIGHT) -> Sequence[Move]:
        """Enlarge the largest hole with moves of at most `limit` tokens in all.

        Stops as soon as `contiguity` reaches `target`, or when no region next to the largest
        hole can be moved within what is left of the limit. Call it between iterations; the next
        call continues.
        """
        moves: list[Move] = []
        while limit > 0 and self.used < self.capacity:
            holes = self.holes()
            largest = max(holes, key=lambda hole: hole.size)
            if largest.size >= target * self.free:
                break
            best = self._best_tidy_move(holes, largest, limit)
            if best is None:
                break
            owner, start = best
            moves.append(self._relocate(owner, start))
            limit -= moves[-1].length
        return moves

    def compact(self) -> Sequence[Move]:
        """Move every region down: afterwards the free space is one hole at the end."""
        moves = []
        end = 0
        for start, owner in list(self._order):
            if start > end:
                moves.append(self._relocate(owner, end))
            end += self._regions[owner].size
        return moves

    def _best_tidy_move(
        self, holes: Sequence[Hole], largest: Hole, limit: int
    ) -> tuple[Hashable, int] | None:
        """The move of a neighbour of the largest hole that gains most free tokens per token moved.

        A neighbour moves into another hole that it fits into, or slides over the gap beyond it.
        """
        best: tuple[Hashable, int] | None = None
        best_rate = 0.0
        for index in (largest.after, largest.after + 1):
            if not 0 <= index < len(self._order):
                continue
            start, owner = self._order[index]
            size = self._regions[owner].size
            if size > limit:
                continue
            before = start - (self._end(index - 1) if index > 0 else 0)
            beyond = before if index == largest.after else self._gap_after(index)
            others = [h for h in holes if h.size >= size and h is not largest]
            if others:
                # Joins the largest hole, the neighbour's place and the gap beyond it.
                gain, target = size + beyond, min(others, key=lambda h: h.size).start
                if beyond >= size:  # the gap beyond is one of the others: sliding gains as much
                    gain = beyond
            elif beyond > 0:
                gain = beyond
                target = start - beyond if index == largest.after else start + beyond
            else:
                continue
            if gain / size > best_rate:
                best, best_rate = (owner, target), gain / size
        return best

    # ---------------------------------------------------------------- placement
    def _place(self, size: int, expected: int) -> int:
        """Where a new region goes without moving anything (-1: nowhere).

        First choice: the tightest hole with room for the expected length that leaves the
        region before it its own expected growth. Otherwise the hole with most room to spare.
        """
        tight, tight_size = -1, self.capacity + 1
        loose, loose_room = -1, -1
        for hole in self.holes():
            if hole.size < size:
                continue
            reserved = 0
            if hole.after >= 0:
                before = self._regions[self._order[hole.after][1]]
                reserved = max(0, before.expected - before.size)
            room = hole.size - reserved
            if room >= expected:
                if hole.size < tight_size:
                    tight, tight_size = hole.start + reserved, hole.size
            elif hole.size > loose_room:
                # Share what there is: both regions get part of the room to grow.
                loose_room = hole.size
                spare = hole.size - size
                loose = hole.start + min(reserved, spare // 2 // self.page * self.page)
        return tight if tight >= 0 else loose

    def _gather(self, size: int) -> tuple[int, Sequence[Move]]:
        """Join neighbouring holes into one of `size` tokens, moving as few tokens as possible."""
        holes = self.holes()
        best_cost, best = self.capacity + 1, (0, 0)
        first, total = 0, 0
        for last, hole in enumerate(holes):
            total += hole.size
            while total - holes[first].size >= size:
                total -= holes[first].size
                first += 1
            if total >= size:
                span = hole.start + hole.size - holes[first].start
                if span - total < best_cost:
                    best_cost, best = span - total, (first, last)
        first, last = best
        end = holes[first].start
        moves = []
        for index in range(holes[first].after + 1, holes[last].after + 1):
            owner = self._order[index][1]
            moves.append(self._relocate(owner, end))
            end += self._regions[owner].size
        return end, moves

    def _make_adjacent(self, index: int, size: int) -> Sequence[Move]:
        """Give the region at `index` `size` tokens in one piece, moving as few as possible."""
        owner = self._order[index][1]
        region = self._regions[owner]
        extra = size - region.size
        # pulled[n]: (free tokens gained, tokens moved) by moving this region and the n-1 regions
        # before it down; the same for pushing n regions after it up.
        pulled = [(0, 0)]
        for at in range(index, -1, -1):
            gained, cost = pulled[-1]
            pulled.append((gained + self._gap_before(at), cost + self._size(at)))
            if pulled[-1][0] >= extra:
                break
        pushed = [(self._gap_after(index), 0)]
        for at in range(index + 1, len(self._order)):
            gained, cost = pushed[-1]
            if gained >= extra:
                break
            pushed.append((gained + self._gap_after(at), cost + self._size(at)))
        best, left, right = self.capacity + 1, 0, 0
        n = len(pulled) - 1
        for m, (gained, cost) in enumerate(pushed):
            while n > 0 and pulled[n - 1][0] + gained >= extra:
                n -= 1
            if pulled[n][0] + gained >= extra and pulled[n][1] + cost < best:
                best, left, right = pulled[n][1] + cost, n, m
        # ... or take the region to a hole that has room for all of it.
        start = self._place(size, region.expected) if region.size <= best else -1
        if start >= 0:
            return [self._relocate(owner, start)]
        moves: list[Move] = []
        if left:
            first = index - left + 1
            end = self._end(first - 1) if first > 0 else 0
            for at in range(first, index + 1):
                moves += self._slide(at, end)
                end = self._end(at)
        if right:
            beyond = index + right + 1
            top = self.capacity if beyond == len(self._order) else self._order[beyond][0]
            for at in range(index + right, index, -1):
                top -= self._size(at)
                moves += self._slide(at, top)
        return moves

    def _slide(self, index: int, start: int) -> list[Move]:
        """Move the region at `index` to `start` without passing a neighbour."""
        old, owner = self._order[index]
        if old == start:
            return []
        region = self._regions[owner]
        region.start = start
        self._order[index] = (start, owner)
        self.moved += region.size
        return [Move(old, start, region.size)]

    def _relocate(self, owner: Hashable, start: int) -> Move:
        region = self._regions[owner]
        move = Move(region.start, start, region.size)
        del self._order[self._index(owner)]
        region.start = start
        self._insert(owner, region)
        self.moved += region.size
        return move

    # ---------------------------------------------------------------- bookkeeping
    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def _insert(self, owner: Hashable, region: Region) -> None:
        self._regions[owner] = region
        insort(self._order, (region.start, owner), key=lambda item: item[0])

    def _index(self, owner: Hashable) -> int:
        start = self._regions[owner].start
        return bisect_right(self._order, start, key=lambda item: item[0]) - 1

    def _size(self, index: int) -> int:
        return self._regions[self._order[index][1]].size

    def _end(self, index: int) -> int:
        return self._regions[self._order[index][1]].end

    def _gap_after(self, index: int) -> int:
        last = index + 1 == len(self._order)
        return (self.capacity if last else self._order[index + 1][0]) - self._end(index)

    def _gap_before(self, index: int) -> int:
        return self._order[index][0] - (self._end(index - 1) if index > 0 else 0)


class Tidier:
    """Compaction between iterations, kept within bounds (THEORY section 7): light, only while the
    free space is in pieces, so many tokens per gap and ten times as many per period of 5 s."""

    def __init__(
        self,
        per_gap: int,
        clock: Callable[[], float] = time.monotonic,
        period: float = 5.0,
    ) -> None:
        self._per_gap = per_gap
        self._clock = clock
        self._period = period
        self._period_ends = 0.0
        self._left = 0

    def tidy(self, arena: Arena) -> Sequence[Move]:
        """The moves for this gap; carry them out before the next iteration."""
        if arena.contiguity() >= _LIGHT:
            return ()
        now = self._clock()
        if now >= self._period_ends:
            self._period_ends = now + self._period
            self._left = 10 * self._per_gap
        moves = arena.tidy(min(self._per_gap, self._left))
        self._left -= sum(move.length for move in moves)
        return moves
