"""Published throughput against the simulator: section 9 of THEORY.md and what else there is.

Published figures: "Threshold-Based Exclusive Batching for LLM Inference" (arXiv 2606.00516) and
the reports in its reproduction repository (github.com/weifang231/eb-vllm). Every run sends 4,000
requests in a closed loop. The costs of a device are one set of constants (the preset), the same
for every cell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from harness import draw_requests, each, markdown, parser, percent, publish, rate, run_policy

from phasegate.engine.record import RunRecord
from phasegate.report.summary import request_latencies

H200, RTX = "h200/qwen3-8b", "rtx-pro-6000/qwen3-8b"

COLUMNS = {
    "MB": "mixed",
    "EB(1)": "exclusive:k=1",
    "EB": "exclusive:theta=0.7,max_hold=none",  # the paper's cold-start value of theta
    "EB(k*)": "threshold:rule=paper",
    "EB+": "hybrid:rule=paper",
}
"""The schedulers of the paper, as policy specs. MB is vLLM v1, EB(1) vLLM v0."""

SLOTS, BUDGETS = (256, 512, 1024, 2048), (4096, 8192, 12288, 18432)
QUICK_SLOTS, QUICK_BUDGETS = (256, 1024), (18432,)
BEST = tuple((n, b) for n in SLOTS for b in BUDGETS)
"""The settings (N, B) of a grid search; the best one counts."""

MIXES = {"decode-heavy": (128, 1024), "balanced": (512, 512), "prefill-heavy": (1024, 128)}


@dataclass(frozen=True)
class Cell:
    """One published number.

    Attributes:
        section: which table below it belongs to.
        name: workload, for a person.
        workload: spec; `concurrency` requests in the system if the spec does not say.
        column: scheduler, one of COLUMNS.
        published: throughput, tokens/s (prompt and output) or, if `tokens` is 0, requests/s.
        tokens: tokens per request that turn requests/s into the published unit.
        tpot, ttft: published mean latencies, seconds; None if there are none.
        settings: (N, B) to try.
    """

    section: str
    device: str
    name: str
    workload: str
    concurrency: int | None
    column: str
    published: float
    tokens: float = 0.0
    tpot: float | None = None
    ttft: float | None = None
    settings: tuple[tuple[int, int], ...] = BEST


@dataclass(frozen=True)
class Outcome:
    """The best setting of a cell: throughput in the published unit, mean latencies in seconds."""

    throughput: float
    setting: tuple[int, int]
    tpot: float
    ttft: float
    preemptions: int


def lengths(prompt: int, output: int, law: str = "uniform:0.5") -> str:
    """Workload spec of a pair of mean lengths; prompts are uniform +-50 % as published."""
    return f"prompt={prompt},output={output},prompt_dist=uniform:0.5,output_dist={law}"


def cells() -> Iterator[Cell]:
    """Every published number that we know the workload of."""
    yield from _section_9()
    yield from _grid("Figure 4, H200", H200, FIGURE_4)
    yield from _table_4()
    yield from _table_5()
    yield from _repeated()


# Throughput in requests/s, TPOT and TTFT in seconds, per workload of MIXES.
Rows = dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]]
RTX_GRID: Rows = {
    "EB(1)": ((5.6, 8.4, 14.0), (0.096, 0.122, 0.233), (197, 136, 90)),
    "MB": ((5.3, 7.7, 10.3), (0.046, 0.063, 0.190), (243, 172, 133)),
    "EB(k*)": ((6.1, 9.2, 14.6), (0.083, 0.083, 0.138), (180, 132, 92)),
}
FIGURE_4: Rows = {
    "EB(1)": ((15.63, 20.83, 28.32), (0.066, 0.049, 0.174), (47.2, 55.4, 41.1)),
    "MB": ((13.85, 20.26, 28.55), (0.067, 0.047, 0.169), (54.2, 57.2, 40.6)),
    "EB(k*)": ((13.58, 20.41, 28.72), (0.063, 0.059, 0.107), (60.8, 51.9, 44.6)),
}

# Table 4 on H200: (scheduler, concurrency), then tokens/s, TPOT and TTFT in seconds.
TABLE_4 = {
    ("MB", 32): (11584, 8.2e-3, 0.049),
    ("EB", 32): (8609, 7.1e-3, 1.046),
    ("EB+", 32): (11586, 8.2e-3, 0.050),
    ("MB", 512): (27464, 52.7e-3, 0.7),
    ("EB", 512): (27207, 36.8e-3, 4.6),
    ("EB+", 512): (27460, 52.7e-3, 0.7),
    ("MB", 2048): (26368, 0.128, 24.4),
    ("EB", 2048): (27198, 72.8e-3, 34.6),
    ("EB+", 2048): (27043, 79.2e-3, 33.7),
}
IN_SECTION_9 = {("MB", 32), ("EB", 32), ("MB", 512), ("EB", 512)}


def _grid(section: str, device: str, published: Rows) -> Iterator[Cell]:
    """The best of a grid of (N, B), for three workloads."""
    for column, values in published.items():
        for (mix, pair), x, tpot, ttft in zip(MIXES.items(), *values, strict=True):
            yield Cell(section, device, mix, lengths(*pair), 2048, column, x, 0, tpot, ttft)


def _traffic(section: str, column: str, concurrency: int) -> Cell:
    """A cell of Table 4, with (N, B) as in the script that made it."""
    x, tpot, ttft = TABLE_4[column, concurrency]
    spec = lengths(512, 256)
    cell = Cell(section, H200, "512/256", spec, concurrency, column, x, 768, tpot, ttft)
    return replace(cell, settings=((1024, 14336),))


def _section_9() -> Iterator[Cell]:
    for column, concurrency in TABLE_4:
        if (column, concurrency) in IN_SECTION_9:
            yield _traffic("section 9", column, concurrency)
    yield from _grid("section 9", RTX, RTX_GRID)


def _table_4() -> Iterator[Cell]:
    for column, concurrency in TABLE_4:
        if (column, concurrency) not in IN_SECTION_9:
            yield _traffic("Table 4, what section 9 leaves out", column, concurrency)


def _table_5() -> Iterator[Cell]:
    """Traffic that shifts: lengths (2,000 requests each), or the number of requests in flight."""
    narrow = "prompt_dist=uniform:0.25,output_dist=uniform:0.25"
    by_length = ";".join(
        f"prompt={prompt},output={output},{narrow},requests=2000,concurrency=2048"
        for prompt, output in reversed(MIXES.values())
    )
    by_count = ";".join(
        f"prompt=512,output=256,{narrow},requests={requests},concurrency={concurrency}"
        for concurrency, requests in (
            (32, 500),
            (512, 2000),
            (1024, 2000),
            (256, 2000),
            (2048, 4000),
        )
    )
    # The figures of the two devices only agree with each other if H200's count all tokens and
    # RTX PRO 6000's the output tokens.
    for device, name, spec, tokens, values in (
        (H200, "lengths", by_length, 3328 / 3, (18307, 17394, 20776)),
        (RTX, "lengths", by_length, 1664 / 3, (3456, 4467, 4752)),
        (H200, "concurrency", by_count, 768, (24251, 23374, 24397)),
        (RTX, "concurrency", by_count, 256, (3019, 3306, 3451)),
    ):
        for column, x in zip(("MB", "EB(k*)", "EB+"), values, strict=True):
            cell = Cell("Table 5, traffic that shifts", device, name, spec, None, column, x, tokens)
            yield replace(cell, settings=((2048, 18432),))


def _repeated() -> Iterator[Cell]:
    """The authors' later repetition on H200, with geometric output lengths and (N, B) as in their
    scripts (REPRODUCTION_REPORT.md and PAPER_TEXT_CHANGES.md of the repository)."""
    section = "The authors' repetition on H200 (geometric output lengths)"
    for mix, setting, values in (
        ("decode-heavy", (2048, 16384), ((11200, 0.128), (11846, 0.084))),
        ("balanced", (1024, 14336), ((17424, 0.097), (18343, 0.087))),
        ("prefill-heavy", (512, 18432), ((31539, 0.156), (30903, 0.175))),
    ):
        pair = MIXES[mix]
        for column, (x, tpot) in zip(("MB", "EB(k*)"), values, strict=True):
            spec = lengths(*pair, "geometric")
            cell = Cell(section, H200, mix, spec, 2048, column, x, sum(pair), tpot)
            yield replace(cell, settings=(setting,))
    for column, concurrency, x, tpot, ttft in (
        ("MB", 32, 11543, 8.4e-3, 0.042),
        ("EB(k*)", 32, 10779, 9.0e-3, 0.060),
        ("MB", 512, 24099, 65.5e-3, 0.65),
        ("EB(k*)", 512, 23876, 69.8e-3, 0.93),
        ("MB", 2048, 23055, 135.5e-3, 24.8),
        ("EB(k*)", 2048, 22957, 137.7e-3, 26.2),
    ):
        spec = lengths(512, 256, "geometric")
        cell = Cell(section, H200, "512/256", spec, concurrency, column, x, 768, tpot, ttft)
        yield replace(cell, settings=((1024, 14336),))


def simulate_cell(cell: Cell, requests: int) -> Outcome:
    """The best of the cell's settings."""
    outcomes = []
    phased = cell.concurrency is None
    table = draw_requests(
        cell.workload, concurrency=cell.concurrency, requests=None if phased else requests
    )
    if phased and requests < 4000:
        table = table.first(requests)
    for slots, budget in cell.settings:
        record = run_policy(
            cell.device, COLUMNS[cell.column], table, slots=slots, token_budget=budget
        )
        outcomes.append(_outcome(record, cell, (slots, budget)))
    return max(outcomes, key=lambda outcome: outcome.throughput)


def _outcome(record: RunRecord, cell: Cell, setting: tuple[int, int]) -> Outcome:
    latencies = request_latencies(record)
    return Outcome(
        rate(record) * (cell.tokens or 1.0),
        setting,
        float(np.mean(latencies["tpot"])),
        float(np.mean(latencies["ttft"])),
        int(record.requests["preemptions"].sum()),
    )


def report(results: Sequence[tuple[Cell, Outcome]]) -> str:
    """All tables, and whether section 9 holds."""
    parts = [_verdict([pair for pair in results if pair[0].section == "section 9"])]
    parts.append("In brackets: published latencies, means over all requests.")
    for section in dict.fromkeys(cell.section for cell, _ in results):
        inside = [pair for pair in results if pair[0].section == section]
        rows = [_row(*pair) for pair in inside]
        mean = np.mean([abs(outcome.throughput / cell.published - 1) for cell, outcome in inside])
        header = (
            "device, workload", "scheduler", "published", "simulated", "error", "TPOT, ms",
            "TTFT, s", "best N, B", "preempted",
        )  # fmt: skip
        title = f"**{section[0].upper()}{section[1:]}**, mean error {100 * mean:.1f} %"
        parts.append(f"{title}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _row(cell: Cell, outcome: Outcome) -> tuple[object, ...]:
    digits = ".1f" if not cell.tokens else ",.0f"
    unit = "tokens/s" if cell.tokens else "requests/s"
    where = f"{cell.device.split('/')[0]}, {cell.name}"
    if cell.concurrency:
        where += f", {cell.concurrency} concurrent"
    return (
        where,
        cell.column,
        f"{cell.published:{digits}} {unit}",
        f"{outcome.throughput:{digits}}",
        percent(outcome.throughput, cell.published),
        _against(outcome.tpot, cell.tpot, 1e3, ".1f"),
        _against(outcome.ttft, cell.ttft, 1.0, ".2f"),
        f"{outcome.setting[0]}, {outcome.setting[1]}",
        outcome.preemptions,
    )


def _against(simulated: float, published: float | None, scale: float, digits: str) -> str:
    text = f"{simulated * scale:{digits}}"
    return text if published is None else f"{text} ({published * scale:{digits}})"


def _verdict(results: Sequence[tuple[Cell, Outcome]]) -> str:
    """The requirements on section 9, and what came out."""
    error = {cell: abs(outcome.throughput / cell.published - 1) for cell, outcome in results}
    ours = [e for cell, e in error.items() if cell.column != "EB(1)"]
    other = [e for cell, e in error.items() if cell.column == "EB(1)"]
    checks = (
        ("largest error of a cell", max(ours), 0.12),
        ("mean error", sum(ours) / len(ours), 0.06),
        ("largest error of EB(1), measured on vLLM v0", max(other), 0.20),
    )
    rows = [
        (what, f"{100 * value:.1f} %", f"{100 * limit:.0f} %", "yes" if value <= limit else "NO")
        for what, value, limit in checks
    ]
    header = ("section 9", "simulated", "limit", "holds")
    return markdown(header, rows)


def main(argv: Sequence[str]) -> None:
    """Run all cells and print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=4000, help="requests per run")
    args = options.parse_args(argv)
    todo = list(cells())
    if args.quick:
        few = tuple((n, b) for n in QUICK_SLOTS for b in QUICK_BUDGETS)
        todo = [replace(c, settings=few) if len(c.settings) > 1 else c for c in todo]
    outcomes = each(partial(simulate_cell, requests=args.requests), todo, args.processes)
    text = report(list(zip(todo, outcomes, strict=True)))
    publish("paper_tables", argv, text, args.write)


if __name__ == "__main__":
    main(sys.argv[1:])
