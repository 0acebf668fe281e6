"""Few requests in KV: does `hybrid` choose N well between memory-safe and a full cache?

    python benchmarks/tight_kv.py --write

KV for 4 to 128 requests of mean load, always more of them in the system. `hybrid` (default N)
against the better of `mixed` (no bound but KV) and `mixed:n=safe`.
"""

from __future__ import annotations

import sys
from statistics import mean
from typing import NamedTuple

from harness import (
    DEVICES,
    draw_requests,
    each,
    markdown,
    parser,
    percent,
    publish,
    rate,
    run_policy,
)

from phasegate.theory.memory import SlotLoad

LENGTHS = ((100, 1000), (512, 512), (1000, 300), (2000, 100))
LAWS = ("geometric", "uniform:0.5", "lognormal:1")
FIT = (4, 8, 16, 32, 64, 128)
POLICIES = ("mixed", "mixed:n=safe", "hybrid")


class Cell(NamedTuple):
    """KV for `fit` requests of mean load, twice as many in the system."""

    device: str
    prompt: int
    output: int
    law: str
    fit: int

    def run(self) -> list[tuple[float, int]]:
        """Requests/s and preemptions of every policy."""
        law, _, shape = self.law.partition(":")
        load = SlotLoad.from_laws(
            self.prompt, self.output, "fixed", law, output_shape=float(shape or 0.0)
        )
        capacity = max(round(self.fit * load.mean), 2 * (self.prompt + self.output))
        table = draw_requests(
            f"prompt={self.prompt},output={self.output},output_dist={self.law}",
            concurrency=2 * self.fit,
            requests=max(600, 12 * self.fit),
        )
        records = [run_policy(self.device, p, table, kv_capacity=capacity) for p in POLICIES]
        return [(rate(r), int(r.requests["preemptions"].sum())) for r in records]


def _run(cell: Cell) -> list[tuple[float, int]]:
    return cell.run()


def main() -> None:
    """Print the table."""
    options = parser(__doc__).parse_args()
    lengths, laws, fits = LENGTHS, LAWS, FIT
    if options.quick:
        lengths, laws, fits = LENGTHS[1:3], LAWS[:1], FIT[1::2]
    cells = [
        Cell(device, prompt, output, law, fit)
        for device in DEVICES
        for prompt, output in lengths
        for law in laws
        for fit in fits
    ]
    rows = []
    losses = []
    gains = []
    for cell, results in zip(cells, each(_run, cells, options.processes), strict=True):
        (full, _), (safe, _), (hybrid, preempted) = results
        losses.append(hybrid / max(full, safe) - 1)
        gains.append(full / safe - 1)
        rows.append(
            (
                f"{cell.device.split('/')[0]}, {cell.prompt}/{cell.output}, {cell.law}, "
                f"{cell.fit} fit",
                f"{full:.3f}",
                f"{safe:.3f}",
                f"{hybrid:.3f}",
                percent(hybrid, max(full, safe)),
                preempted,
            )
        )
    header = ("cell", "`mixed`", "`mixed:n=safe`", "`hybrid`", "against the better", "preempted")
    worst = sorted(range(len(rows)), key=lambda i: losses[i])[: 12 if not options.quick else None]
    text = (
        f"{len(cells)} cells, `hybrid` against the better of the two: {100 * mean(losses):+.1f} % "
        f"on average, {100 * min(losses):+.1f} % at worst. A full cache against memory-safe N: "
        f"{100 * min(gains):+.0f} % to {100 * max(gains):+.0f} %. The worst cells for `hybrid`:\n\n"
        + markdown(header, [rows[i] for i in worst])
    )
    publish("tight_kv", sys.argv[1:], text, options.write)


if __name__ == "__main__":
    main()
