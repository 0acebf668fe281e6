"""What `auto` loses against the best fixed setting in hindsight, and against other policies.

    python benchmarks/regret.py grid            # 2 GPUs x 9 workloads x 5 concurrencies
    python benchmarks/regret.py kappa           # interference 1..5
    python benchmarks/regret.py shifts          # lengths, concurrency and kappa change mid-run
    python benchmarks/regret.py broken          # engines that no cost model describes

`auto` starts from constants that are each wrong by a random factor of 0.2 to 5 (`--prior none`:
from none at all), and every iteration takes a random 3 % more or less. `--cache FILE` keeps the
runs of fixed settings; `--cells N` takes every N-th cell; `--write DIR` writes tables,
and for `figures.py` the rates of the grid and of kappa as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from cells import DEVICES, WORKLOADS, Cell, all_cells
from hindsight import Hindsight, Setting, rate, run, safe_n
from worlds import Changing, Grudging, Noisy, Sluggish, wrong_prior

from phasegate.cost.model import CostModel, InterferenceCost
from phasegate.cost.profile import load_profile
from phasegate.engine.record import MIXED, RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.auto import Auto
from phasegate.policy.spec import build_policy
from phasegate.workload import RequestTable, WorkloadSpec, source_of
from phasegate.workload.draw import draw

NOISE = 0.03
SEED = 1000


def constants(device: str) -> InterferenceCost:
    """The cost model of a preset."""
    cost = load_profile(device).cost_model()
    assert isinstance(cost, InterferenceCost)
    return cost


def auto(cell: Cell, cost: InterferenceCost, prior: str, seed: int) -> Auto:
    """A fresh `auto` with a wrong prior, or with none."""
    guess = None if prior == "none" else wrong_prior(cost, seed)
    policy = build_policy("auto", guess, cell.limits)
    assert isinstance(policy, Auto)
    return policy


@dataclass(frozen=True)
class Result:
    """Rates of one cell, requests per second."""

    name: str
    best: float
    setting: str
    auto: float
    mixed: float
    hybrid: float
    fell_back: bool

    @property
    def regret(self) -> float:
        """Share of throughput that auto loses."""
        return 1.0 - self.auto / self.best


def measure(cell: Cell, cost: InterferenceCost, hindsight: Hindsight, prior: str) -> Result:
    """Run one cell: the grid of fixed settings, `auto`, `mixed` and `hybrid` with safe N."""
    seed = SEED
    table = cell.table(seed)
    setting, best = hindsight.best(cell, seed, table, cost)
    mixed = Setting(None, min(safe_n(cell, table), cell.concurrency), cell.limits.token_budget)
    policy = auto(cell, cost, prior, hash_of(cell.name))
    own = rate(run(cell, table, Noisy(cost, NOISE, hash_of(cell.name)), policy))
    hybrid = rate(run(cell, table, cost, build_policy("hybrid", cost, cell.limits)))
    return Result(
        cell.name,
        best,
        str(setting),
        own,
        hindsight.rate(cell, seed, table, cost, mixed),
        hybrid,
        bool(policy.error),
    )


def hash_of(text: str) -> int:
    """A seed that does not change from run to run."""
    return sum(ord(c) * 31**i for i, c in enumerate(text)) % 2**31


def show(results: Sequence[Result]) -> list[str]:
    """A table in Markdown and what it comes to."""
    lines = [
        "| cell | best in hindsight | req/s | auto loses | auto / mixed | auto / hybrid |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r.name} | {r.setting} | {r.best:.3f} | {r.regret:+.2%} | "
            f"{r.auto / r.mixed:.3f} | {r.auto / r.hybrid:.3f} |"
        )
    regrets = np.array([r.regret for r in results])
    mixed = np.array([r.auto / r.mixed for r in results])
    hybrid = np.array([r.auto / r.hybrid for r in results])
    lost = np.array([1.0 - r.hybrid / r.best for r in results])
    lost_mixed = np.array([1.0 - r.mixed / r.best for r in results])
    lines += [
        "",
        f"{len(results)} cells: auto loses {regrets.mean():.2%} on average, "
        f"{regrets.max():.2%} at most (hybrid {lost.mean():.2%} / {lost.max():.2%}, "
        f"mixed with a safe N {lost_mixed.mean():.2%} / {lost_mixed.max():.2%});",
        f"against mixed at least {mixed.min():.3f}, below 0.995 in {(mixed < 0.995).mean():.1%} "
        f"of the cells; against hybrid {hybrid.mean():.3f} on average, {hybrid.min():.3f} at "
        "least.",
    ]
    if any(r.fell_back for r in results):
        lines.append("AUTO FELL BACK in " + ", ".join(r.name for r in results if r.fell_back))
    return lines


def keep(results: Sequence[Result], args: argparse.Namespace, part: str) -> None:
    """Write rates as JSON into the folder of `--write`, if there is one."""
    if args.write is not None:
        args.write.mkdir(parents=True, exist_ok=True)
        suffix = "" if args.prior == "wrong" else f"-{args.prior}"
        text = json.dumps([asdict(r) for r in results], indent=1)
        (args.write / f"{part}{suffix}.json").write_text(text + "\n")


def grid(args: argparse.Namespace, hindsight: Hindsight) -> list[str]:
    """The grid of all cells."""
    results = []
    for cell in all_cells()[:: args.cells]:
        results.append(measure(cell, constants(cell.device), hindsight, args.prior))
        progress(results[-1])
    keep(results, args, "grid")
    return show(results)


def kappa(args: argparse.Namespace, hindsight: Hindsight) -> list[str]:
    """Interference from none to five-fold, where mixed and exclusive change places."""
    results = []
    for device in DEVICES:
        for workload in ("chat", "prefill-heavy", "decode-heavy"):
            for factor in (1.0, 1.5, 2.0, 3.0, 5.0)[:: args.cells]:
                base = constants(device)
                cost = InterferenceCost(
                    base.alpha_p, base.alpha_d, base.beta_p, base.b_d, base.k_d, factor
                )
                cell = Cell(device, workload, 128)
                result = measure(cell, cost, hindsight, args.prior)
                results.append(Result(**{**vars(result), "name": f"{cell.name} x{factor:g}"}))
                progress(results[-1])
    keep(results, args, "kappa")
    return show(results)


def progress(result: Result) -> None:
    """Say on stderr what was found."""
    print(
        f"{result.name:40s} {result.regret:+.4f}  mixed {result.auto / result.mixed:.3f}  "
        f"hybrid {result.auto / result.hybrid:.3f}  {result.setting}",
        file=sys.stderr,
        flush=True,
    )


SHIFTS = {
    "prefill-heavy to decode-heavy": "prompt=1024,output=128,prompt_dist=uniform:0.5,"
    "output_dist=uniform:0.5,concurrency=256,requests=3000;prompt=128,output=1024,"
    "prompt_dist=uniform:0.5,output_dist=uniform:0.5,concurrency=256,requests=3000",
    "decode-heavy to prefill-heavy": "prompt=128,output=1024,prompt_dist=uniform:0.5,"
    "output_dist=uniform:0.5,concurrency=256,requests=3000;prompt=1024,output=128,"
    "prompt_dist=uniform:0.5,output_dist=uniform:0.5,concurrency=256,requests=3000",
    "concurrency 32 to 512 to 64": "prompt=512,output=256,prompt_dist=lognormal:1,"
    "output_dist=geometric,concurrency=32,requests=1500;prompt=512,output=256,"
    "prompt_dist=lognormal:1,output_dist=geometric,concurrency=512,requests=4000;prompt=512,"
    "output=256,prompt_dist=lognormal:1,output_dist=geometric,concurrency=64,requests=1500",
}


def shifts(args: argparse.Namespace, hindsight: Hindsight) -> list[str]:
    """Traffic and engine that change while they run."""
    lines = ["| shift | best fixed setting | auto loses |", "|---|---|---|"]
    for device in DEVICES:
        cost = constants(device)
        for name, text in SHIFTS.items():
            table = draw(WorkloadSpec.parse(text).resolve(), SEED)
            cell = Cell(device, name, 512)
            setting, best = hindsight.best(cell, SEED, table, cost)
            policy = auto(cell, cost, args.prior, hash_of(name))
            own = rate(run(cell, table, Noisy(cost, NOISE, hash_of(name)), policy))
            lines.append(f"| {cell.name} | {setting} | {1 - own / best:+.2%} |")
    lines += ["", "| kappa changes | iterations to the right mode |", "|---|---|"]
    for device in DEVICES:
        for before, after in ((1.0, 5.0), (5.0, 1.0)):
            took = iterations_to_adapt(device, before, after, args.prior)
            where = device.split("/")[0]
            lines.append(f"| {where} chat 128, {before:g} to {after:g} | {took} |")
    return lines


def iterations_to_adapt(device: str, before: float, after: float, prior: str) -> str:
    """Iterations after a change of kappa until refills are done in the mode that is right then."""
    base = constants(device)
    first, then = (
        InterferenceCost(base.alpha_p, base.alpha_d, base.beta_p, base.b_d, base.k_d, factor)
        for factor in (before, after)
    )
    cell = Cell(device, "chat", 128)
    table = draw(WorkloadSpec.parse(WORKLOADS["chat"]).resolve(concurrency=128, requests=6000), 5)
    change = 4000
    cost = Changing(Noisy(first, NOISE, 1), Noisy(then, NOISE, 2), change)
    record = simulate(cost, source_of(table), auto(cell, first, prior, 3), cell.limits)
    settled = [kind_of(simulate_fixed(cell, table, c, prior)) for c in (first, then)]
    if settled[0] == settled[1]:
        return f"{settled[1]} is right before and after"
    kinds = record.iterations["kind"][change:]
    wanted = kinds == MIXED if settled[1] == "mixed" else kinds == 0
    other = kinds == 0 if settled[1] == "mixed" else kinds == MIXED
    # From here on 19 of 20 refill iterations are of the right kind.
    for i in range(0, len(kinds) - 400, 10):
        ahead = slice(i, i + 400)
        if wanted[ahead].sum() >= 19 * other[ahead].sum():
            return f"{i} (to {settled[1]})"
    return "never"


def simulate_fixed(cell: Cell, table: RequestTable, cost: CostModel, prior: str) -> RunRecord:
    """A run of `auto` that knows an engine which does not change."""
    return simulate(cost, source_of(table), build_policy("auto", cost, cell.limits), cell.limits)


def kind_of(record: RunRecord) -> str:
    """How most refill iterations of the second half of a run were done."""
    kinds = record.iterations["kind"]
    kinds = kinds[len(kinds) // 2 :]
    return "mixed" if (kinds == MIXED).sum() > (kinds == 0).sum() else "exclusive"


def broken(args: argparse.Namespace, hindsight: Hindsight) -> list[str]:
    """Engines that no cost model describes: the safety net."""
    lines = [
        "| engine | mixed, req/s | auto / mixed | checks | lost checks |",
        "|---|---|---|---|---|",
    ]
    worlds: list[tuple[str, str, int, str, Callable[[CostModel], CostModel]]] = [
        ("h200/qwen3-8b", "chat", 256, "0.3 s for each refill", lambda c: Sluggish(c, 0.3, 1)),
        ("h200/qwen3-8b", "balanced", 256, "0.3 s over 60", lambda c: Sluggish(c, 0.3, 60)),
        ("rtx-pro-6000/qwen3-8b", "balanced", 128, "2 s over 40", lambda c: Sluggish(c, 2.0, 40)),
        ("h200/qwen3-8b", "prefill-heavy", 512, "20 % over 10", lambda c: Grudging(c, 0.2, 10)),
        ("h200/qwen3-8b", "chat", 512, "30 % over 20", lambda c: Grudging(c, 0.3, 20)),
        ("h200/qwen3-8b", "balanced", 1024, "20 % over 50", lambda c: Grudging(c, 0.2, 50)),
    ]
    for device, workload, concurrency, what, broke in worlds:
        cost = constants(device)
        cell = Cell(device, workload, concurrency)
        spec = WorkloadSpec.parse(WORKLOADS[workload])
        table = draw(spec.resolve(concurrency=concurrency, requests=20_000), SEED)
        n = min(safe_n(cell, table), concurrency)
        fixed = Setting(None, n, cell.limits.token_budget).policy()
        mixed = rate(run(cell, table, broke(cost), fixed))
        policy = auto(cell, cost, args.prior, hash_of(workload))
        own = rate(run(cell, table, broke(cost), policy))
        guard = policy.guard
        lines.append(
            f"| {cell.name}: after a prefill {what} decodes | {mixed:.2f} "
            f"| {own / mixed:.3f} | {guard.checks} | {guard.trips} |"
        )
    return lines


PARTS: dict[str, Callable[[argparse.Namespace, Hindsight], list[str]]] = {
    "grid": grid,
    "kappa": kappa,
    "shifts": shifts,
    "broken": broken,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default="all", choices=[*PARTS, "all"])
    parser.add_argument("--prior", default="wrong", choices=("wrong", "none"))
    parser.add_argument("--cells", type=int, default=1, help="take every N-th cell")
    parser.add_argument("--cache", type=Path, help="file that keeps runs of fixed settings")
    parser.add_argument("--write", type=Path, help="folder for the tables, one file each")
    args = parser.parse_args()
    hindsight = Hindsight(args.cache)
    for part in PARTS if "all" in args.parts else args.parts:
        lines = PARTS[part](args, hindsight)
        print(f"\n## {part}\n", *lines, sep="\n")
        if args.write is not None:
            args.write.mkdir(parents=True, exist_ok=True)
            suffix = "" if args.prior == "wrong" else f"-{args.prior}"
            (args.write / f"{part}{suffix}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
