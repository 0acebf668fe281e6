"""Goodput under latency targets: `auto:itl=X,ttft=2` against sweeps of fixed settings.

    python benchmarks/slo.py --fixed /tmp/fixed.json   # again, with `auto` only: much faster

2 GPUs x {conversation, long prompts, code} x {50, 100, 200 ms}. The fixed settings are token
budgets of 256 to 8192 (mixed batching as in vLLM), a cap of 2,048 prompt tokens while two or more
prompts are under way, and 1 to 8 decode iterations between two prefill iterations. A request is
good if its TTFT and the P99 of its inter-token latencies meet the targets; every policy is judged
by the offered rate (Poisson) at which most requests per second are good. Every iteration takes a
random 3 % more or less; `auto` starts from constants that are each wrong by a factor of 0.2 to 5.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from cells import DEVICES, WORKLOADS
from harness import SLO_PAGE, each, markdown, parser, publish
from regret import NOISE, constants, hash_of
from worlds import Noisy, wrong_prior

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import UNLIMITED, Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.capacity import FixedCapacity
from phasegate.policy.mixed import Mixed, mixed_plan
from phasegate.policy.options import Options
from phasegate.policy.spec import build_policy
from phasegate.report.summary import quantiles
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, WorkloadSpec, source_of
from phasegate.workload.draw import draw

TTFT = 2.0
TARGETS = (0.05, 0.1, 0.2)
ASKED = ("conversation", "long-prompts")
"""Workloads for which issue 3 asks 0.99 of the best fixed setting; code is there for its E2E."""

SLOTS, BUDGET = 1024, 8192
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
CAP = 2048
TURNS = (1, 2, 3, 4, 6, 8)

STEP = 1.03
"""Ratio of neighbouring offered rates."""

START = {"h200/qwen3-8b": 15.0, "rtx-pro-6000/qwen3-8b": 5.0}
"""Where the search begins, requests per second."""


# ---------------------------------------------------------------------- fixed settings
class PrefillCap:
    """Mixed batching with at most `cap` prompt tokens while two or more prompts are under way."""

    decision = Decision("mixed", None, SLOTS)

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.spec = f"prefill cap {cap}"

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        plan = mixed_plan(now, now.slots, Options())
        if now.prefilling + min(now.waiting, plan.admit) >= 2:
            plan = plan._replace(prefill_tokens=min(plan.prefill_tokens, self._cap))
        return plan

    def observe(self, step: StepReport) -> None:
        """See Policy."""


class Turns:
    """One prefill iteration, then `n` decode iterations, as long as there is work for both."""

    decision = Decision("turns", None, SLOTS)

    def __init__(self, n: int) -> None:
        self._n = n
        self._left = 0
        self.spec = f"{n} decodes between prefills"

    def plan(self, now: Snapshot) -> Plan:
        """See Policy."""
        more = now.waiting and not now.kv_blocked and now.running < now.slots
        if not now.prefilling and not more:
            return Plan(True, 0, 0, now.slots, repeat=UNLIMITED)
        if now.decoding and self._left > 0:
            return Plan(True, 0, 0, now.slots, repeat=self._left)
        return Plan(False, now.slots, BUDGET, now.slots)

    def observe(self, step: StepReport) -> None:
        """See Policy."""
        self._left = self._left - step.iterations if step.decodes else self._n


def _budget(tokens: int) -> Policy:
    name = f"token_budget={tokens}"
    return Mixed(Options(token_budget=tokens), FixedCapacity(SLOTS), None, name)


def fixed() -> Iterator[Callable[[], Policy]]:
    """Makers of the fixed settings; medium ones first, they leave less to try of the others."""
    for tokens in sorted(BUDGETS, key=lambda b: abs(b - 1024)):
        yield partial(_budget, tokens)
    yield partial(PrefillCap, CAP)
    for n in TURNS:
        yield partial(Turns, n)


# ---------------------------------------------------------------------- one cell
@dataclass(frozen=True)
class Cell:
    """An engine, its traffic, and the ITL target, seconds."""

    device: str
    workload: str
    itl: float
    requests: int

    @property
    def name(self) -> str:
        """A short name for tables."""
        return f"{self.device.split('/')[0]} {self.workload}, {1e3 * self.itl:g} ms"

    @property
    def limits(self) -> Limits:
        """The engine of all policies."""
        capacity = load_profile(self.device).kv_capacity_tokens
        return Limits(capacity, slots=SLOTS, token_budget=BUDGET)

    def table(self) -> RequestTable:
        """Its requests; rates come later."""
        spec = WorkloadSpec.parse(WORKLOADS[self.workload])
        return draw(spec.resolve(rate=1.0, requests=self.requests), 3)


@dataclass(frozen=True)
class Goodput:
    """One run at one offered rate.

    Attributes:
        spec: the policy.
        rate: offered, requests per second.
        good: requests per second that met both targets.
        itl_p99: P99 of all inter-token latencies, seconds.
        e2e: mean, seconds.
    """

    spec: str
    rate: float
    good: float
    itl_p99: float
    e2e: float


NOTHING = Goodput("", 0.0, 0.0, 0.0, 0.0)


def goodput(record: RunRecord, itl: float) -> Goodput:
    """What a run served within the targets."""
    requests = record.requests
    arrivals = requests["arrival"]
    quick = requests["first_token"] - arrivals <= TTFT
    good = 0
    for row in np.flatnonzero(quick & (requests["status"] == 0)):
        gaps = record.itl_values(int(row))
        good += int((gaps > itl).sum() <= 0.01 * gaps.size)
    values, weights = record.itl()
    p99 = quantiles(values, weights, (0.99,))[0] if values.size else 0.0
    span = float(arrivals.max())
    e2e = float(np.nanmean(requests["end"] - arrivals))
    return Goodput(record.policy, len(arrivals) / span, good / span, p99, e2e)


class Search:
    """Runs policies in a cell at many offered rates, all on one grid."""

    def __init__(self, cell: Cell) -> None:
        self._cell, self._table, self._limits = cell, cell.table(), cell.limits
        self._seed = hash_of(cell.name)

    def best(self, make: Callable[[], Policy], start: float, beat: Goodput) -> Goodput:
        """The best run of a policy, or `beat` if none is better: at rates from `start` on, and,
        with nothing to beat, at lower ones as well."""
        first = math.ceil(math.log(start) / math.log(STEP) - 1e-9)
        best, index, worse = beat, first, 0
        most = 10.0 * START[self._cell.device]  # a handful of requests is served at any rate
        while worse < 3 and STEP**index < most:
            found = self._run(make, index)
            best, worse = (found, 0) if found.good > best.good else (best, worse + 1)
            index += 1
        index, worse = first - 1, 0
        while not beat.good and worse < 3 and STEP**index > best.good:
            found = self._run(make, index)
            best, worse = (found, 0) if found.good > best.good else (best, worse + (best.good > 0))
            index -= 1
        return best

    def _run(self, make: Callable[[], Policy], index: int) -> Goodput:
        table = self._table.at_rate(STEP**index, seed=7)
        cost = Noisy(constants(self._cell.device), NOISE, self._seed)
        return goodput(simulate(cost, source_of(table), make(), self._limits), self._cell.itl)


def latency_aware(cell: Cell) -> Policy:
    """`auto` with a wrong prior."""
    prior = wrong_prior(constants(cell.device), hash_of(cell.name))
    return build_policy(f"auto:itl={cell.itl},ttft={TTFT}", prior, cell.limits)


Both = tuple[Goodput, Goodput]
"""The best fixed setting, and `auto`."""


def judge(cell: Cell, known: dict[str, list[object]]) -> Both:
    """Run a cell; the best fixed setting may be known already, by name and number of requests."""
    search = Search(cell)
    entry = known.get(key_of(cell))
    best = NOTHING if entry is None else Goodput(*entry)  # type: ignore[arg-type]
    if entry is None:
        for make in fixed():
            # Goodput is at most the offered rate: below the best so far there is nothing to find.
            best = search.best(make, best.good or START[cell.device], best)
    return best, search.best(partial(latency_aware, cell), best.good, NOTHING)


def key_of(cell: Cell) -> str:
    """Names a cell and the length of its runs."""
    return f"{cell.name}, {cell.requests}"


# ---------------------------------------------------------------------- the table
def report(cells: Sequence[Cell], outcomes: Sequence[Both]) -> str:
    """One row per cell, and what it comes to."""
    header = (
        "cell, ITL target", "best fixed setting", "goodput, req/s", "auto", "auto / best",
        "ITL P99 of auto, ms", "E2E at that rate, s: fixed", "auto",
    )  # fmt: skip
    rows = [
        (
            cell.name,
            best.spec,
            f"{best.good:.2f}",
            f"{own.good:.2f}",
            f"{own.good / best.good:.3f}",
            f"{1e3 * own.itl_p99:.1f}",
            f"{best.e2e:.1f}",
            f"{own.e2e:.1f}",
        )
        for cell, (best, own) in zip(cells, outcomes, strict=True)
    ]
    ratios = [
        own.good / best.good
        for cell, (best, own) in zip(cells, outcomes, strict=True)
        if cell.workload in ASKED
    ]
    kept = [own.itl_p99 <= cell.itl for cell, (_, own) in zip(cells, outcomes, strict=True)]
    summary = (
        f"In the {len(ratios)} cells of {' and '.join(ASKED)}, `auto` reaches at least "
        f"{min(ratios):.3f} of the best fixed setting (0.99 wanted: "
        f"{sum(r >= 0.99 for r in ratios)} of {len(ratios)} cells), "
        f"{sum(ratios) / len(ratios):.3f} on average; P99 of ITL within the target in "
        f"{sum(kept)} of {len(kept)} cells (0.95 of them wanted)."
    )
    return f"{summary}\n\n{markdown(header, rows)}"


def main(argv: Sequence[str]) -> None:
    """Run the cells and print the table."""
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--requests", type=int, default=3000, help="requests per run")
    options.add_argument("--workloads", default=",".join((*ASKED, "code")))
    options.add_argument("--fixed", type=Path, help="JSON file that keeps the best fixed settings")
    args = options.parse_args(argv)
    devices = DEVICES[:1] if args.quick else DEVICES
    targets = TARGETS[1:2] if args.quick else TARGETS
    workloads = ASKED[:1] if args.quick else args.workloads.split(",")
    cells = [Cell(d, w, itl, args.requests) for d in devices for w in workloads for itl in targets]
    known = json.loads(args.fixed.read_text()) if args.fixed and args.fixed.exists() else {}
    outcomes = each(partial(judge, known=known), cells, args.processes)
    if args.fixed:
        known |= {key_of(c): astuple(best) for c, (best, _) in zip(cells, outcomes, strict=True)}
        args.fixed.write_text(json.dumps(known, indent=1))
    publish("slo", argv, report(cells, outcomes), args.write, SLO_PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
