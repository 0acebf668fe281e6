"""What the formulas cost online: microseconds per call, best of 20 rounds.

.venv/bin/python benchmarks/theory_speed.py
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import numpy as np
from harness import markdown

from phasegate.cost.profile import load_profile
from phasegate.theory import (
    KaplanMeier,
    OccurrenceExposure,
    SlotLoad,
    Traffic,
    best_k,
    exclusive_rate,
    memory_safe_n,
    mixed_rate,
)


def running_server() -> KaplanMeier:
    """An estimate with 1,024 running and over 1,000 finished requests."""
    estimate = KaplanMeier()
    rng = np.random.default_rng(1)
    for request, output in enumerate(rng.geometric(1 / 256, 3000).tolist()):
        estimate.start(request)
        if request < 1976:
            estimate.finish(request, output)
    estimate.advance(300)
    return estimate


def main() -> None:
    """Print the table."""
    cost = load_profile("rtx-pro-6000/qwen3-8b").cost_model()
    balanced = Traffic(512, 512, 1000.0, 150.0)
    prefill_heavy = Traffic(1024, 128, 1150.0, 300.0)
    load = SlotLoad.from_laws(512, 512)
    survival, exposure = running_server(), OccurrenceExposure()

    def threshold(n: int) -> int:
        return best_k(n, 256, 4.7e-3, 8.1e-3, mean_prompt=512, prompt_std=150, token_budget=8192)

    calls: dict[str, Callable[[], object]] = {
        "best_k, N 256": lambda: threshold(256),
        "best_k, N 1024": lambda: threshold(1024),
        "mixed_rate, N 1024, 512/512": lambda: mixed_rate(cost, 1024, balanced, 8192),
        "mixed_rate, N 1024, 1024/128": lambda: mixed_rate(cost, 1024, prefill_heavy, 8192),
        "exclusive_rate, N 1024": lambda: exclusive_rate(cost, 1024, 60, balanced, 8192),
        "memory_safe_n": lambda: memory_safe_n(load, 488_000),
        "KaplanMeier.law, 1,024 running": survival.law,
        "OccurrenceExposure.add": lambda: exposure.add(256, 1),
    }
    rows = [
        [name, f"{min(timeit.repeat(call, number=20, repeat=20)) / 20 * 1e6:.1f}"]
        for name, call in calls.items()
    ]
    print(markdown(["call", "us"], rows))


if __name__ == "__main__":
    main()
