"""KV cache accounting, page-accurate, O(1) per iteration.

All decoding requests grow by one token per decode tick, so which of them needs a new page is
known from the tick modulo the page size: we keep one counter per residue instead of a counter
per request. With page = 1 this is token-accurate accounting.
"""

from __future__ import annotations


class KVCache:
    """Counts pages. A request that holds t tokens holds ceil(t / page) pages (invariant I2)."""

    __slots__ = ("_growth", "page", "pages", "used_pages")

    def __init__(self, capacity: int, page: int) -> None:
        self.page = page
        self.pages = capacity // page
        self.used_pages = 0
        self._growth = [0] * page

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens of one request occupy."""
        return -(-tokens // self.page)

    @property
    def capacity(self) -> int:
        """Usable size, tokens (whole pages)."""
        return self.pages * self.page

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return self.pages - self.used_pages

    def take(self, tokens: int) -> None:
        """A request takes room for `tokens` tokens (its prefill)."""
        self.used_pages += -(-tokens // self.page)

    def drop(self, tokens: int) -> None:
        """A request that holds `tokens` tokens gives all of it back."""
        self.used_pages -= -(-tokens // self.page)

    def join(self, tokens: int, tick: int) -> None:
        """A request holding `tokens` tokens starts to grow with the ticks, from `tick` on."""
        self._growth[(tick - tokens) % self.page] += 1

    def leave(self, tokens: int, tick: int) -> None:
        """A growing request that holds `tokens` tokens at `tick` stops growing."""
        self._growth[(tick - tokens) % self.page] -= 1

    def growth(self, tick: int) -> int:
        """New pages that the decode tick number `tick` needs."""
        return self._growth[tick % self.page]

    def grow(self, tick: int, ticks: int = 1) -> None:
        """Take the pages for `ticks` decode ticks, the first of which is number `tick`."""
        page = self.page
        if ticks == 1:
            self.used_pages += self._growth[tick % page]
            return
        rounds, rest = divmod(ticks, page)
        taken = rounds * sum(self._growth) if rounds else 0
        for t in range(tick, tick + rest):
            taken += self._growth[t % page]
        self.used_pages += taken

    def ticks_that_fit(self, growing: int) -> int:
        """Decode ticks for which `growing` requests surely have room (a lower bound)."""
        return self.page * (self.free_pages // growing) if growing else 0
