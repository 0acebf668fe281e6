"""How much the rules for k lose against the best k, over 108 cells (THEORY section 2).

    .venv/bin/python benchmarks/theory_grid.py            # about a minute on one core
    .venv/bin/python benchmarks/theory_grid.py --quick    # 18 cells

12 output-length laws x N of 32, 128, 1024 x mu_O*alpha_d/alpha_p of 110, 440, 3900. The judge is
a simulation of EB(k) that knows no formula: each cell tries up to 25 values of k and measures
freed slots per phase, F, and mean requests decoding, n. The fixed cost per request is
alpha_p/F + alpha_d*(mu_O - 1)/n, which is far less noisy than the same from elapsed time.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np
from harness import each, markdown

from phasegate.theory import (
    LengthLaw,
    best_k,
    exact_geometric_k,
    exact_geometric_overhead,
    insensitive_k,
    paper_theta,
    renewal_k,
)

Draw = Callable[[np.random.Generator, int], np.ndarray]

CELLS = [(64, 0.58), (256, 0.58), (1024, 0.26)]  # mu_O, alpha_p/alpha_d
SLOTS = [32, 128, 1024]


def laws(mean: float) -> dict[str, Draw]:
    """Twelve laws of output lengths with this mean, tokens."""

    def lognormal(cv: float) -> Draw:
        s2 = math.log1p(cv * cv)
        return lambda rng, size: rng.lognormal(math.log(mean) - s2 / 2, math.sqrt(s2), size)

    def gamma(shape: float) -> Draw:
        return lambda rng, size: rng.gamma(shape, mean / shape, size)

    def uniform(half: float) -> Draw:
        return lambda rng, size: rng.uniform(mean * (1 - half), mean * (1 + half), size)

    def mixture(rng: np.random.Generator, size: int) -> np.ndarray:
        short = rng.random(size) < 0.75
        return np.where(short, rng.exponential(mean / 3, size), rng.exponential(mean * 3, size))

    def two(rng: np.random.Generator, size: int) -> np.ndarray:
        return np.where(rng.random(size) < 0.8, mean / 2, mean * 3) * rng.uniform(0.8, 1.2, size)

    return {
        "geometric": lambda rng, size: rng.geometric(1 / mean, size),
        "uniform 25 %": uniform(0.25),
        "uniform 50 %": uniform(0.5),
        "uniform 100 %": uniform(1.0),
        "lognormal 0.5": lognormal(0.5),
        "lognormal 1": lognormal(1.0),
        "lognormal 2": lognormal(2.0),
        "gamma 0.5": gamma(0.5),
        "gamma 2": gamma(2.0),
        "gamma 4": gamma(4.0),
        "hyperexponential": mixture,
        "two kinds": two,
    }


def measure(
    outputs: np.ndarray, slots: int, k: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean slots freed per decode phase and mean requests decoding, for EB(k).

    Starts in the steady state of a full server (length-biased, ages uniform); the first third
    is not counted.
    """
    biased = rng.choice(outputs, slots, p=outputs / outputs.sum())
    ends = [int(x) for x in np.ceil(biased * rng.random(slots))]
    heapq.heapify(ends)
    queue = outputs.tolist()
    skip = len(queue) // 3
    tick = served = phases = area = counted = 0
    began = -1
    while served < len(queue):
        if served >= skip and began < 0:
            began, phases, area, counted = tick, 0, 0, served
        need = slots - k
        while len(ends) > need:
            end = ends[0]
            area += len(ends) * (end - tick)
            tick = end
            while ends and ends[0] == end:
                heapq.heappop(ends)
        phases += 1
        free = slots - len(ends)
        for output in queue[served : served + free]:
            if output > 1:
                heapq.heappush(ends, tick + output - 1)
        served += free
    return (served - counted) / phases, area / (tick - began)


def candidates(center: int, slots: int) -> list[int]:
    """Up to 25 values of k around a guess, half to twice."""
    low, high = max(1, center // 2), min(slots, 2 * center + 1)
    return sorted({round(x) for x in np.linspace(low, high, 25)})


def cell(spec: tuple[str, float, float, int, int]) -> dict[str, float]:
    """Loss of each rule in one cell (law, mu_O, alpha_p/alpha_d, N, seed), as a share of the
    fixed cost of the best k."""
    name, nominal, ratio, slots, seed = spec
    rng = np.random.default_rng(seed)
    draws = laws(nominal)[name](rng, 12_000 + 12 * slots)
    outputs = np.maximum(1, np.rint(draws)).astype(np.int64)
    mean = float(outputs.mean())
    law = LengthLaw.of(outputs)
    theta = paper_theta(1 / mean, ratio, 1.0)
    chosen = {
        "eq. 3": max(1, round(theta * slots)),
        "eq. 3, floor": max(1, math.floor(theta * slots)),
        "insensitive": insensitive_k(slots, mean, ratio, 1.0),
        "renewal": renewal_k(slots, law.shifted(-1), ratio, 1.0),
        "best_k": best_k(slots, mean, ratio, 1.0, law=law),
    }
    cost = {}
    for k in sorted({*candidates(chosen["insensitive"], slots), *chosen.values()}):
        freed, decoding = measure(outputs, slots, k, np.random.default_rng(seed + 1))
        cost[k] = ratio / freed + (mean - 1) / decoding
    best = min(cost.values())
    return {name: cost[k] / best - 1 for name, k in chosen.items()}


def simulated_table(specs: Sequence[tuple[str, float, float, int, int]], processes: int) -> str:
    """Markdown: largest loss per law and rule, then mean and largest over all."""
    results = each(cell, specs, processes)
    rules = list(results[0])

    def row(name: str, values: list[float]) -> list[str]:
        return [name, *(f"{100 * v:.2f} %" for v in values)]

    rows = []
    for law in dict.fromkeys(spec[0] for spec in specs):
        mine = [r for spec, r in zip(specs, results, strict=True) if spec[0] == law]
        rows.append(row(law, [max(r[rule] for r in mine) for rule in rules]))
    rows.append(row("mean of all", [float(np.mean([r[rule] for r in results])) for rule in rules]))
    rows.append(row("largest", [max(r[rule] for r in results) for rule in rules]))
    within = [np.mean([r[rule] <= 0.001 for r in results]) for rule in rules]
    rows.append(["cells up to 0.1 %", *(f"{100 * share:.0f} %" for share in within)])
    return markdown(["law", *rules], rows)


def exact_table() -> str:
    """Markdown: losses against the exact optimum for geometric lengths, no simulation."""
    rows = []
    for slots in SLOTS:
        for mean, ratio in [(16, 0.05), *CELLS]:
            cost = exact_geometric_overhead(slots, mean, ratio, 1.0)
            theta = paper_theta(1 / mean, ratio, 1.0)
            ks = [
                max(1, round(theta * slots)),
                max(1, math.floor(theta * slots)),
                insensitive_k(slots, mean, ratio, 1.0),
                best_k(slots, mean + 1, ratio, 1.0),
            ]
            losses = [f"{100 * (cost[k - 1] / cost.min() - 1):.2f} %" for k in ks]
            best = exact_geometric_k(slots, mean, ratio, 1.0)
            rows.append([f"N {slots}, mu_O {mean}, alpha_p/alpha_d {ratio}", best, *losses])
    return markdown(["cell", "exact k", "eq. 3", "eq. 3, floor", "insensitive", "best_k"], rows)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 laws, 2 values of N")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    names = ["geometric", "uniform 50 %", "lognormal 1"] if options.quick else list(laws(1.0))
    specs = [
        (name, float(mean), ratio, slots, 100 * i + j)
        for i, name in enumerate(names)
        for j, (mean, ratio) in enumerate(CELLS)
        for slots in (SLOTS[:2] if options.quick else SLOTS)
    ]
    print("Loss against the exact optimum for geometric lengths:\n\n" + exact_table())
    print(f"\nLargest loss per law, {len(specs)} cells, against the best simulated k:\n")
    print(simulated_table(specs, options.processes))


if __name__ == "__main__":
    main()
