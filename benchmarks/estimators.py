"""Estimated mean output over the true one, through a server's life (THEORY section 6).

    .venv/bin/python benchmarks/estimators.py            # about half a minute
    .venv/bin/python benchmarks/estimators.py --quick    # fewer servers

Each row is one moment, as completions since the start or since a shift of the traffic: the mean
over independent servers, and the spread of one. All look back over 1,000 requests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from harness import markdown

from phasegate.theory import KaplanMeier, OccurrenceExposure, PaperHazard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "theory"))
from decode_world import Draw, geometric, lognormal, serve, uniform

LAWS = {
    "geometric": geometric,
    "uniform 50 %": uniform,
    "lognormal 1": lambda mean: lognormal(mean, 1.0),
}
BEFORE, AFTER, FIRST, SECOND = 256, 64, 3000, 4000


def life(draws: tuple[Draw, Draw], slots: int, seed: int, moments: list[int]) -> np.ndarray:
    """Mean output by exposure, Kaplan-Meier and the paper's hazard (1/h at t = 0 and the plain
    mean of its window), at each of the moments (completions)."""
    exposure, survival, hazard = OccurrenceExposure(), KaplanMeier(), PaperHazard(1000)
    phases = [(draws[0], FIRST + slots), (draws[1], SECOND)]
    rows: list[list[float]] = []
    done = 0
    for event in serve(phases, slots, np.random.default_rng(seed)):
        survival.advance(event.iterations)
        for request, output in event.finished:
            survival.finish(request, output)
            hazard.add(output)
        for request in event.started:
            survival.start(request)
        exposure.add(event.tokens, len(event.finished))
        done += len(event.finished)
        while len(rows) < len(moments) and done >= moments[len(rows)]:
            law = survival.law()
            fit = hazard.fit()
            mean = float("nan") if law is None else law.mean
            rows.append([exposure.mean, mean, 1 / max(fit.p0, 1 / fit.mean)])
    return np.array(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 servers per cell instead of 24")
    servers = 6 if parser.parse_args().quick else 24
    rows = []
    for name, law in LAWS.items():
        for slots in (64, 1024):
            end = FIRST + slots + SECOND
            stages = {
                "warm-up, 100 completions": (100, BEFORE),
                "warm-up, 500": (500, BEFORE),
                "steady state, 3,000": (FIRST, BEFORE),
                "2,000 after the shift": (FIRST + 2000, AFTER),
                "drain, half gone": (end - slots // 2, AFTER),
                "drain, 7/8 gone": (end - slots // 8, AFTER),
            }
            moments = [at for at, _ in stages.values()]
            lives = [life((law(BEFORE), law(AFTER)), slots, s, moments) for s in range(servers)]
            for i, (stage, (_, true)) in enumerate(stages.items()):
                found = np.array([one[i] for one in lives]) / true
                cells = [
                    f"{m:.2f} ± {s:.2f}"
                    for m, s in zip(found.mean(axis=0), found.std(axis=0), strict=True)
                ]
                rows.append([f"{name}, {slots} slots: {stage}", *cells])
    print(f"Estimated / true mean output, {servers} servers; {BEFORE}, then {AFTER} tokens:\n")
    print(
        markdown(
            ["moment", "Kaplan-Meier", "exposure", "paper"],
            [[r[0], r[2], r[1], r[3]] for r in rows],
        )
    )


if __name__ == "__main__":
    main()
