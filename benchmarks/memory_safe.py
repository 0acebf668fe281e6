"""How often the KV need of memory-safe N exceeds the cache, by Monte Carlo (THEORY section 3).

    .venv/bin/python benchmarks/memory_safe.py            # about 2 minutes on one core
    .venv/bin/python benchmarks/memory_safe.py --quick    # one capacity, fewer samples

72 cells: 3 capacities x 6 pairs of mean lengths x 4 laws of lengths, eps = 0.01. The judge draws
requests, not moments: N slots hold independent requests each, picked as a random moment picks
them (long outputs more often) and at a random point of their output. The overflow probability is
the share of moments in which the N of them need more than the capacity.
"""

from __future__ import annotations

import argparse

import numpy as np
from harness import each, markdown

from phasegate.theory import SlotLoad, memory_safe_n, paper_memory_safe_n, paper_theta, raw_moments

EPS = 0.01
CAPACITIES = [60_000, 299_584, 780_000]
PAIRS = [(128, 1024), (512, 512), (1024, 128), (512, 256), (1000, 5000), (4096, 512)]
LAWS: dict[str, tuple[tuple[str, float], tuple[str, float]]] = {
    "uniform": (("uniform", 0.5), ("uniform", 0.5)),
    "geometric": (("uniform", 0.5), ("geometric", 0.0)),
    "gamma 0.5": (("lognormal", 0.5), ("gamma", 0.5)),
    "lognormal 1": (("lognormal", 1.0), ("lognormal", 1.0)),
}
"""Law and shape of prompt and output lengths."""

ALPHA_RATIO = 4.69 / 8.07  # alpha_p/alpha_d of the RTX PRO 6000 preset, for theta in eq. (6)

Cell = tuple[str, int, tuple[int, int], int, int]


def draw(law: tuple[str, float], mean: float, rng: np.random.Generator, size: int) -> np.ndarray:
    """Lengths in whole tokens, at least 1."""
    name, shape = law
    if name == "geometric":
        return rng.geometric(1 / mean, size)
    if name == "uniform":
        lengths = rng.uniform(mean * (1 - shape), mean * (1 + shape), size)
    elif name == "gamma":
        lengths = rng.gamma(shape, mean / shape, size)
    else:
        s2 = np.log1p(shape * shape)
        lengths = rng.lognormal(np.log(mean) - s2 / 2, np.sqrt(s2), size)
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


def seen_at_random(
    prompts: np.ndarray, outputs: np.ndarray, rng: np.random.Generator, size: int
) -> np.ndarray:
    """KV tokens of `size` running requests at random moments."""
    time = np.cumsum(outputs)
    picked = np.searchsorted(time, rng.random(size) * time[-1])
    return (prompts[picked] + rng.integers(1, outputs[picked] + 1)).astype(np.float32)


def overflow(
    loads: np.ndarray, n: int, capacity: int, rng: np.random.Generator, moments: int
) -> float:
    """Share of `moments` in which n of the loads need more than `capacity`."""
    over = 0
    step = max(1, 2_000_000 // n)
    for first in range(0, moments, step):
        picked = rng.integers(0, loads.size, (min(step, moments - first), n))
        over += int((loads[picked].sum(axis=1) > capacity).sum())
    return over / moments


def cell(spec: Cell) -> dict[str, tuple[int, float]]:
    """N and overflow probability of each formula in one cell."""
    law, capacity, (prompt, output), moments, seed = spec
    rng = np.random.default_rng(seed)
    (prompt_law, prompt_shape), (output_law, output_shape) = LAWS[law]
    exact = SlotLoad.from_moments(
        raw_moments(prompt_law, prompt, prompt_shape), raw_moments(output_law, output, output_shape)
    )
    prompts = draw(LAWS[law][0], prompt, rng, 1_000_000)
    outputs = draw(LAWS[law][1], output, rng, 1_000_000)
    loads = seen_at_random(prompts, outputs, rng, 500_000)
    learnt = SlotLoad.from_samples(prompts[:1000], outputs[:1000])
    theta = paper_theta(1 / output, ALPHA_RATIO, 1.0)
    chosen = {
        "ours": memory_safe_n(exact, capacity, EPS),
        "plain normal": memory_safe_n(SlotLoad(exact.mean, exact.variance), capacity, EPS),
        "ours, 1,000 samples": memory_safe_n(learnt, capacity, EPS),
        "eq. 6": paper_memory_safe_n(capacity, prompt, 1 / output, theta, EPS),
    }
    seen: dict[int, float] = {}
    for n in chosen.values():
        if n not in seen:
            seen[n] = overflow(loads, n, capacity, rng, moments)
    return {name: (n, seen[n]) for name, n in chosen.items()}


def grid(capacities: list[int], moments: int) -> list[Cell]:
    """All cells."""
    return [
        (law, capacity, pair, moments, 100 * i + 10 * j + k)
        for i, law in enumerate(LAWS)
        for j, capacity in enumerate(capacities)
        for k, pair in enumerate(PAIRS)
    ]


def summary(results: list[dict[str, tuple[int, float]]]) -> str:
    """Markdown: how the formulas do over all cells."""
    rows = []
    for name in results[0]:
        p = np.array([r[name][1] for r in results])
        n = np.array([r[name][0] / r["ours"][0] for r in results])
        rows.append(
            [
                name,
                f"{np.median(p):.4f}",
                f"{np.quantile(p, 0.95):.4f}",
                f"{p.max():.4f}",
                f"{100 * np.mean(p <= 3 * EPS):.0f} %",
                f"{np.median(n):.2f}",
            ]
        )
    header = ["N by", "overflow, median", "95 %", "largest", "cells <= 3 eps", "N / ours, median"]
    return markdown(header, rows)


def details(specs: list[Cell], results: list[dict[str, tuple[int, float]]]) -> str:
    """Markdown: N and overflow probability of the default formula, cell by cell."""
    found = {spec[:3]: r["ours"] for spec, r in zip(specs, results, strict=True)}
    rows = []
    for law, capacity in dict.fromkeys(spec[:2] for spec in specs):
        cells = [found[law, capacity, pair] for pair in PAIRS]
        rows.append([f"{law}, {capacity:,}", *(f"{n}: {p:.4f}" for n, p in cells)])
    return markdown(["law, capacity", *(f"{p}/{o}" for p, o in PAIRS)], rows)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one capacity, 2,000 moments")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    specs = grid([60_000], 2_000) if options.quick else grid(CAPACITIES, 10_000)
    results: list[dict[str, tuple[int, float]]] = each(cell, specs, options.processes)
    print(f"Overflow probability over {len(specs)} cells, eps = {EPS}:\n")
    print(summary(results) + "\n\nN and overflow probability (prompt/output means, tokens):\n")
    print(details(specs, results))


if __name__ == "__main__":
    main()
