"""The figures of docs/auto.md and docs/slo.md, as SVG in docs/figures.

    python benchmarks/regret.py grid --write DIR    # grid.json in DIR: what the first one shows
    python benchmarks/figures.py --grid DIR/grid.json

The second one shows the table that `slo.py --write` puts into docs/slo.md.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import matplotlib
from harness import DOCS, SLO_PAGE
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FIGURES = DOCS / "figures"
POLICIES = (("mixed", "o", "#999999"), ("hybrid", "s", "#4c8fd0"), ("auto", "D", "#c0392b"))
_ROW = re.compile(r"\| (\S+ \S+, \d+ ms) \| \S+ \| ([\d.]+) \| ([\d.]+) \|")


def regret(grid: Path) -> Figure:
    """What each policy loses against the best in hindsight, one column per cell."""
    cells = json.loads(grid.read_text())
    devices = list(dict.fromkeys(c["name"].split()[0] for c in cells))
    figure = Figure(figsize=(9, 2.9 * len(devices)), layout="constrained")
    axes = figure.subplots(len(devices), 1, squeeze=False)[:, 0]
    for ax, device in zip(axes, devices, strict=True):
        own = [c for c in cells if c["name"].split()[0] == device]
        _regret_of(ax, own)
        ax.set_title(device, loc="left")
    axes[0].legend([name for name, _, _ in POLICIES], ncols=3, loc="upper right")
    return figure


def _regret_of(ax: Axes, cells: list[dict[str, float | str]]) -> None:
    places = range(len(cells))
    for name, marker, color in POLICIES:
        lost = [100 * (1 - float(c[name]) / float(c["best"])) for c in cells]
        ax.plot(places, lost, marker, color=color, markersize=4)
    # Most lie within 1 %, some beyond 30 %.
    ax.set_yscale("symlog", linthresh=1)
    ax.minorticks_off()
    ticks = (-1, 0, 1, 2, 10, 40)
    ax.set_yticks(ticks, [f"{t} %" for t in ticks])
    ax.set_ylabel("lost throughput")
    ax.grid(axis="y", alpha=0.3)
    workloads = [str(c["name"]).split()[1] for c in cells]
    starts = [i for i in places if i == 0 or workloads[i] != workloads[i - 1]]
    for start in starts[1:]:
        ax.axvline(start - 0.5, color="#dddddd")
    ends = [*starts[1:], len(cells)]
    middles = [(s + e - 1) / 2 for s, e in zip(starts, ends, strict=True)]
    ax.set_xticks(middles, [workloads[s] for s in starts])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("workload; concurrency rises from left to right within each")


def goodput(page: Path) -> Figure:
    """Goodput of `auto` and of the best fixed setting, from the table of slo.py."""
    rows = _ROW.findall(page.read_text())
    figure = Figure(figsize=(7, 0.3 * len(rows) + 1), layout="constrained")
    ax = figure.subplots()
    for shift, column, label, color in (
        (-0.2, 1, "best fixed setting", "#999999"),
        (0.2, 2, "auto", "#c0392b"),
    ):
        places = [i + shift for i in range(len(rows))]
        ax.barh(places, [float(row[column]) for row in rows], 0.4, color=color, label=label)
    ax.set_yticks(range(len(rows)), [row[0] for row in rows])
    ax.invert_yaxis()
    ax.set_xlabel("goodput, requests/s")
    ax.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", type=Path, default=FIGURES / "grid.json")
    parser.add_argument("--out", type=Path, default=FIGURES)
    args = parser.parse_args()
    # Text stays text, and the same data make the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "phasegate"})
    args.out.mkdir(parents=True, exist_ok=True)
    for name, figure in (("regret", regret(args.grid)), ("goodput", goodput(SLO_PAGE))):
        path = args.out / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        path.write_text("\n".join(x.strip() for x in path.read_text().splitlines()) + "\n")
        print(path)


if __name__ == "__main__":
    main()
