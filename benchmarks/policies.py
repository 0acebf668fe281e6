"""`threshold` against the best fixed k, `hybrid` against the better of its two modes, and how often
`hybrid` changes its mind: on a grid of steady traffic, where both modes are equal, and when the
traffic changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from harness import DEVICES, draw_requests, each, markdown, mode_switches, parser, publish, rate
from harness import run_policy as run

from phasegate.engine.record import RunRecord
from phasegate.workload import RequestTable

PAIRS = ((128, 1024), (512, 512), (1024, 128))
LAWS = ("geometric", "uniform:0.5", "lognormal:1", "gamma:3")
CONCURRENCIES = (32, 256, 1024)
FIXED_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192)

CROSSOVER = {
    "h200/qwen3-8b": (40, 56, 80, 112, 160, 224),
    "rtx-pro-6000/qwen3-8b": (4, 8, 12, 16, 24, 32),
}
"""Concurrencies between which the better mode changes."""

THRESHOLD_LIMIT, HYBRID_LIMIT, HYBRID_SHARE, SWITCHES = 0.01, 0.01, 0.9, 2


@dataclass(frozen=True)
class Cell:
    """One device under steady closed-loop traffic."""

    device: str
    prompt: int
    output: int
    law: str
    concurrency: int

    def __str__(self) -> str:
        device = self.device.split("/")[0]
        return f"{device}, {self.prompt}/{self.output}, {self.law}, {self.concurrency} concurrent"

    def table(self, requests: int, seed: int = 0) -> RequestTable:
        """The requests of a run; prompts are uniform +-50 %."""
        spec = (
            f"prompt={self.prompt},output={self.output},"
            f"prompt_dist=uniform:0.5,output_dist={self.law}"
        )
        return draw_requests(spec, concurrency=self.concurrency, requests=requests, seed=seed)


@dataclass(frozen=True)
class Score:
    """Requests/s of a cell."""

    best_k: int
    fixed: float
    threshold: float
    mixed: float
    hybrid: float
    switches: int
    preemptions: int

    @property
    def threshold_gain(self) -> float:
        """`threshold` over the best fixed k."""
        return self.threshold / self.fixed - 1

    @property
    def hybrid_gain(self) -> float:
        """`hybrid` over the better of mixed:n=safe and `threshold`."""
        return self.hybrid / max(self.mixed, self.threshold) - 1


def score(cell: Cell, scale: int) -> Score:
    """All policies on one cell, on the same requests, all with the memory-safe N."""
    table = cell.table(max(scale, scale * cell.concurrency // 400))
    fixed = {
        k: rate(run(cell.device, f"exclusive:k={k},n=safe,max_hold=none", table))
        for k in FIXED_K
        if k == 1 or k < 0.8 * cell.concurrency
    }
    best = max(fixed, key=lambda k: fixed[k])
    threshold = run(cell.device, "threshold", table)
    hybrid = run(cell.device, "hybrid", table)
    return Score(
        best,
        fixed[best],
        rate(threshold),
        rate(run(cell.device, "mixed:n=safe", table)),
        rate(hybrid),
        mode_switches(hybrid),
        int(threshold.requests["preemptions"].sum() + hybrid.requests["preemptions"].sum()),
    )


def crossover(pair_and_law: tuple[str, int, int, str], requests: int) -> tuple[Cell, float, int]:
    """The cell where mixed and exclusive batching are nearest to each other, by how much exclusive
    wins there, and how often `hybrid` switches in a long run."""
    device, prompt, output, law = pair_and_law
    gaps = {}
    for concurrency in CROSSOVER[device]:
        cell = Cell(device, prompt, output, law, concurrency)
        table = cell.table(2000)
        exclusive = rate(run(device, "threshold", table))
        gaps[cell] = exclusive / rate(run(device, "mixed:n=safe", table)) - 1
    nearest = min(gaps, key=lambda cell: abs(gaps[cell]))
    switches = mode_switches(run(device, "hybrid", nearest.table(requests, seed=1)))
    return nearest, gaps[nearest], switches


# One phase: prompt, output, law, concurrency, requests.
Phase = tuple[int, int, str, int, int]
SHIFTS: dict[str, tuple[Phase, ...]] = {
    "lengths": tuple(
        (prompt, output, "uniform:0.5", 256, 2500)
        for prompt, output in ((1024, 128), (512, 512), (128, 1024), (1024, 128))
    ),
    "lengths, geometric": tuple(
        (prompt, output, "geometric", 512, 4000)
        for prompt, output in ((128, 1024), (1024, 128), (512, 512))
    ),
    "concurrency": tuple(
        (512, 256, "uniform:0.5", concurrency, requests)
        for concurrency, requests in ((32, 1000), (1024, 6000), (16, 1000), (512, 4000))
    ),
    "concurrency, geometric": tuple(
        (512, 512, "geometric", concurrency, requests)
        for concurrency, requests in ((8, 500), (256, 3000), (8, 500), (256, 3000))
    ),
    "load in and out": tuple(
        (512, 256, "lognormal:1", concurrency, 1500)
        for concurrency in (16, 64, 160, 400, 160, 64, 16)
    ),
}


def shift(case: tuple[str, str], share: float) -> tuple[list[int], dict[str, float]]:
    """Switches of `hybrid` in each phase of a shift, and requests/s of hybrid, mixed, threshold."""
    device, name = case
    phases = [(*phase[:4], max(50, round(share * phase[4]))) for phase in SHIFTS[name]]
    table = draw_requests(";".join(map(_phase_spec, phases)))
    record = run(device, "hybrid", table)
    rates = {"hybrid": rate(record)}
    for policy in ("mixed:n=safe", "threshold"):
        rates[policy] = rate(run(device, policy, table))
    return _switches_per_phase(record, [phase[4] for phase in phases]), rates


def _phase_spec(phase: Phase) -> str:
    prompt, output, law, concurrency, requests = phase
    return (
        f"prompt={prompt},output={output},prompt_dist=uniform:0.5,output_dist={law},"
        f"concurrency={concurrency},requests={requests}"
    )


def _switches_per_phase(record: RunRecord, sizes: Sequence[int]) -> list[int]:
    """Mode switches between the arrival of a phase's first request and that of the next phase."""
    arrival = np.empty(record.submitted)
    arrival[record.requests["id"].astype(int)] = record.requests["arrival"]
    starts = arrival[np.cumsum([0, *sizes[:-1]])]
    counts = [0] * len(sizes)
    for (_, before), (when, after) in zip(record.decisions, record.decisions[1:], strict=False):
        if before.mode != after.mode:
            counts[int(np.searchsorted(starts, when, side="right")) - 1] += 1
    return counts


def grid(quick: bool) -> Iterator[Cell]:
    """The cells of steady traffic."""
    for device in DEVICES:
        for prompt, output in PAIRS:
            for law in LAWS[:2] if quick else LAWS:
                for concurrency in CONCURRENCIES[:2] if quick else CONCURRENCIES:
                    yield Cell(device, prompt, output, law, concurrency)


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def report_grid(results: Sequence[tuple[Cell, Score]]) -> str:
    """Whether the requirements hold on the grid, and every cell."""
    worst = min(s.threshold_gain for _, s in results)
    near = sum(s.hybrid_gain >= -HYBRID_LIMIT for _, s in results) / len(results)
    most = max(s.switches for _, s in results)
    checks = markdown(
        (f"{len(results)} cells of steady traffic", "measured", "required", "holds"),
        (
            (
                "`threshold` against the best fixed k, worst cell",
                _percent(worst),
                f">= -{100 * THRESHOLD_LIMIT:.0f} %",
                _yes(worst >= -THRESHOLD_LIMIT),
            ),
            (
                f"cells with `hybrid` within {100 * HYBRID_LIMIT:.0f} % of the better mode",
                f"{100 * near:.0f} %",
                f">= {100 * HYBRID_SHARE:.0f} %",
                _yes(near >= HYBRID_SHARE),
            ),
            ("most mode switches of `hybrid`", most, f"<= {SWITCHES}", _yes(most <= SWITCHES)),
        ),
    )
    rows = markdown(
        (
            "cell", "best fixed k", "requests/s", "`threshold`", "against it", "`mixed:n=safe`",
            "`hybrid`", "against the better", "switches", "preempted",
        ),
        (
            (
                cell, s.best_k, f"{s.fixed:.3f}", f"{s.threshold:.3f}", _percent(s.threshold_gain),
                f"{s.mixed:.3f}", f"{s.hybrid:.3f}", _percent(s.hybrid_gain), s.switches,
                s.preemptions,
            )
            for cell, s in results
        ),
    )  # fmt: skip
    return f"{checks}\n\n{rows}"


def report_crossover(results: Sequence[tuple[Cell, float, int]], requests: int) -> str:
    """Switches where there is nothing to choose."""
    rows = ((cell, _percent(gap), switches) for cell, gap, switches in results)
    header = ("nearest to equal", "exclusive over mixed", f"switches in {requests:,} requests")
    return markdown(header, rows)


def report_shifts(
    results: Sequence[tuple[tuple[str, str], tuple[list[int], dict[str, float]]]],
) -> str:
    """Switches per change of traffic."""
    rows = []
    for (device, name), (switches, rates) in results:
        better = max(rates["mixed:n=safe"], rates["threshold"])
        holds = all(count <= SWITCHES for count in switches)
        rows.append(
            (
                f"{device.split('/')[0]}, {name}",
                " ".join(map(str, switches)),
                _yes(holds),
                _percent(rates["hybrid"] / better - 1),
            )
        )
    header = (
        "traffic that shifts", "switches in each phase", "<= 2 each", "against the better mode"
    )  # fmt: skip
    return markdown(header, rows)


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def main(argv: Sequence[str]) -> None:
    """Run everything and print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--scale", type=int, default=2000, help="requests per run, at least")
    args = options.parse_args(argv)
    scale, processes = args.scale, args.processes
    cells = list(grid(args.quick))
    steady = list(zip(cells, each(partial(score, scale=scale), cells, processes), strict=True))
    kinds = [
        (device, *pair, law)
        for device in DEVICES
        for pair in (PAIRS[:1] if args.quick else PAIRS)
        for law in (LAWS[:1] if args.quick else LAWS)
    ]
    long = 10 * scale
    equal = each(partial(crossover, requests=long), kinds, processes)
    cases = [(device, name) for device in DEVICES for name in SHIFTS]
    shifted = each(partial(shift, share=scale / 2000), cases, processes)
    text = "\n\n".join(
        (
            report_grid(steady),
            report_crossover(equal, long),
            report_shifts(list(zip(cases, shifted, strict=True))),
        )
    )
    publish("policies", argv, text, args.write)


if __name__ == "__main__":
    main(sys.argv[1:])
