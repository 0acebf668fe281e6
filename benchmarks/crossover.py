"""X_MB and X_EB against the engine (THEORY section 4).

    .venv/bin/python benchmarks/crossover.py            # about 2 minutes
    .venv/bin/python benchmarks/crossover.py --quick    # a third of the cells

Each cell simulates `mixed` and `exclusive:k=k*` on the engine, in a closed loop, and compares
requests per second in the middle of the run with `mixed_rate` and `exclusive_rate`. A second
column leaves the token budget out of the formula.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from harness import DEVICES, draw_requests, each, markdown, run_policy

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.theory import SlotLoad, Traffic, best_k, exclusive_rate, mixed_rate

PAIRS = [(128, 1024), (512, 256), (1024, 128), (2048, 32), (8000, 200)]


@dataclass(frozen=True)
class Cell:
    """One workload on one device: mean lengths (uniform +-50 %), slots, token budget."""

    device: str
    prompt: int
    output: int
    slots: int
    budget: int


def steady_rate(record: RunRecord) -> float:
    """Requests per second between the first 40 % and 90 % of the completions."""
    ends = np.sort(record.requests["end"])
    first, last = int(0.4 * ends.size), int(0.9 * ends.size)
    return float((last - first) / (ends[last] - ends[first]))


def errors(cell: Cell) -> dict[str, float]:
    """Relative errors of the formulas in one cell."""
    workload = (
        f"prompt={cell.prompt},output={cell.output},prompt_dist=uniform:0.5,output_dist=uniform:0.5"
    )
    table = draw_requests(workload, requests=1500 + 12 * cell.slots, concurrency=cell.slots, seed=1)
    load = SlotLoad.from_laws(cell.prompt, cell.output, "uniform", "uniform", 0.5, 0.5)
    std = cell.prompt * 0.5 / math.sqrt(3)
    traffic = Traffic(cell.prompt, cell.output, load.mean, std)
    cost = load_profile(cell.device).cost_model()
    k = best_k(
        cell.slots,
        cell.output,
        cost.alpha_prefill,
        cost.alpha_decode,
        mean_prompt=cell.prompt,
        prompt_std=std,
        token_budget=cell.budget,
    )

    def simulated(policy: str) -> float:
        # KV for all: this is about time, not memory.
        return steady_rate(
            run_policy(
                cell.device,
                policy,
                table,
                slots=cell.slots,
                token_budget=cell.budget,
                kv_capacity=100_000_000,
            )
        )

    mixed = simulated(f"mixed:n={cell.slots}")
    exclusive = simulated(f"exclusive:k={k},n={cell.slots},max_hold=none")
    return {
        "X_MB": mixed_rate(cost, cell.slots, traffic, cell.budget) / mixed - 1,
        "X_MB, no budget": mixed_rate(cost, cell.slots, traffic) / mixed - 1,
        "X_EB": exclusive_rate(cost, cell.slots, k, traffic, cell.budget) / exclusive - 1,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one device, two sizes")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    cells = [
        Cell(device, prompt, output, slots, budget)
        for device in (DEVICES[:1] if options.quick else DEVICES)
        for prompt, output in PAIRS
        for slots in ((64, 256) if options.quick else (16, 64, 256))
        for budget in (2048, 8192)
    ]
    found = each(errors, cells, options.processes)
    rows = []
    for prompt, output in PAIRS:
        mine = [
            e for c, e in zip(cells, found, strict=True) if (c.prompt, c.output) == (prompt, output)
        ]
        rows.append([f"{prompt}/{output}", *summary(mine)])
    rows.append(["all", *summary(found)])
    print(f"Error against the engine, mean (largest), {len(cells)} cells:\n")
    print(markdown(["prompt/output", *found[0]], rows))


def summary(found: list[dict[str, float]]) -> list[str]:
    """Mean and largest absolute error of each formula."""
    return [
        f"{100 * np.mean(sizes):.1f} % ({100 * max(sizes):.1f} %)"
        for sizes in ([abs(e[name]) for e in found] for name in found[0])
    ]


if __name__ == "__main__":
    main()
