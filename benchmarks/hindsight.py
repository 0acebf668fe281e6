"""The best fixed setting (policy, k, N, B) of a cell in hindsight: what `auto` is measured by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cells import Cell

from phasegate.cost.model import CostModel
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import NEVER, Policy
from phasegate.policy.capacity import FixedCapacity
from phasegate.policy.exclusive import Exclusive
from phasegate.policy.mixed import Mixed
from phasegate.policy.options import Options
from phasegate.theory.memory import SlotLoad, memory_safe_n
from phasegate.theory.threshold import insensitive_k
from phasegate.workload import RequestTable, source_of

N_SHARES = (0.7, 0.8, 0.88, 0.94, 1.0, 1.08)
"""Of the N that just fits on average: the candidates for N."""

K_SHARES = (0.35, 0.6, 1.0, 1.6, 2.6)
"""Of the insensitive k*: the candidates for k (and 1)."""

BUDGETS = (4096, 8192)
"""Token budgets besides the largest."""


@dataclass(frozen=True)
class Setting:
    """A fixed policy: mixed (k None) or exclusive."""

    k: int | None
    n: int
    budget: int

    def __str__(self) -> str:
        mode = "mixed" if self.k is None else f"exclusive:k={self.k}"
        return f"{mode},n={self.n},token_budget={self.budget}"

    def policy(self) -> Policy:
        """A fresh policy with this setting."""
        options = Options(n=self.n, token_budget=self.budget, max_hold=NEVER)
        capacity = FixedCapacity(self.n)
        if self.k is None:
            return Mixed(options, capacity, None, str(self))
        return Exclusive(options, capacity, None, self.k, None, str(self))


def settings(cell: Cell, table: RequestTable, cost: CostModel, budget: int) -> Iterator[Setting]:
    """The grid of fixed settings of a cell for one token budget."""
    load = SlotLoad.from_samples(table.prompt, table.output, page=16)
    fits = cell.kv_capacity / load.mean
    most = min(cell.concurrency, cell.limits.slots)
    for n in sorted({max(1, min(most, round(share * fits))) for share in N_SHARES}):
        yield Setting(None, n, budget)
        ideal = insensitive_k(n, float(table.output.mean()), cost.alpha_prefill, cost.alpha_decode)
        for k in sorted({1, *(max(1, min(n, round(share * ideal))) for share in K_SHARES)}):
            yield Setting(k, n, budget)


def safe_n(cell: Cell, table: RequestTable) -> int:
    """N that is safe at 1 % for the lengths of the table."""
    load = SlotLoad.from_samples(table.prompt, table.output, page=16)
    return min(memory_safe_n(load, cell.kv_capacity, 0.01), cell.limits.slots)


def run(cell: Cell, table: RequestTable, cost: CostModel, policy: Policy) -> RunRecord:
    """One run of a cell."""
    return simulate(cost, source_of(table), policy, cell.limits)


def rate(record: RunRecord) -> float:
    """Requests per second over the whole run."""
    return record.counts["finished"] / record.duration


class Hindsight:
    """Rates of fixed settings, kept in a file, since they do not depend on `auto`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, float] = {}
        if path is not None and path.exists():
            self._known = json.loads(path.read_text())

    def rate(
        self, cell: Cell, seed: int, table: RequestTable, cost: CostModel, setting: Setting
    ) -> float:
        """Requests per second of one fixed setting."""
        what = f"{cell}|{len(table)}|{seed}|{cost}|{setting}"
        key = hashlib.sha1(what.encode()).hexdigest()[:16]
        if key not in self._known:
            self._known[key] = rate(run(cell, table, cost, setting.policy()))
        return self._known[key]

    def best(
        self, cell: Cell, seed: int, table: RequestTable, cost: CostModel
    ) -> tuple[Setting, float]:
        """The best fixed setting and its rate, requests per second.

        All N and k with the largest budget, then smaller budgets for the best of each policy.
        """
        largest = cell.limits.token_budget
        rates = {
            setting: self.rate(cell, seed, table, cost, setting)
            for setting in settings(cell, table, cost, largest)
        }
        for mixed in (True, False):
            of_kind = [s for s in rates if (s.k is None) == mixed]
            top = max(of_kind, key=lambda s: rates[s])
            for budget in BUDGETS:
                setting = Setting(top.k, top.n, budget)
                rates[setting] = self.rate(cell, seed, table, cost, setting)
        self.save()
        best = max(rates, key=lambda s: rates[s])
        return best, rates[best]

    def save(self) -> None:
        """Write the file."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._known))
