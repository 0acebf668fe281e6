"""What the benchmark scripts share: runs in processes, Markdown tables, docs/results.md."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.files import write_atomic
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, WorkloadSpec, source_of
from phasegate.workload.draw import draw

DEVICES = ("h200/qwen3-8b", "rtx-pro-6000/qwen3-8b")

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS, SLO_PAGE = DOCS / "results.md", DOCS / "slo.md"

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_policy(
    device: str,
    policy: str,
    table: RequestTable,
    *,
    slots: int = 1024,
    token_budget: int = 8192,
    kv_capacity: int | None = None,
) -> RunRecord:
    """One simulated run of a policy spec on a preset."""
    profile = load_profile(device)
    cost = profile.cost_model()
    limits = Limits(kv_capacity or profile.kv_capacity_tokens, slots, token_budget)
    return simulate(cost, source_of(table), build_policy(policy, cost, limits), limits)


def draw_requests(
    workload: str,
    *,
    requests: int | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> RequestTable:
    """The requests of a workload spec."""
    spec = WorkloadSpec.parse(workload)
    return draw(spec.resolve(rate=rate, concurrency=concurrency, requests=requests), seed)


def rate(record: RunRecord) -> float:
    """Finished requests per second of the whole run."""
    return record.counts["finished"] / record.duration


def mode_switches(record: RunRecord) -> int:
    """How often the policy went from one mode to another."""
    modes = [decision.mode for _, decision in record.decisions]
    return sum(a != b for a, b in pairwise(modes))


def parser(description: str) -> argparse.ArgumentParser:
    """Options that every script has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    result.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    result.add_argument("--write", action="store_true", help="also put the tables into docs/")
    return result


def each(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> list[Result]:
    """function(item) for every item, in order, in several processes; a line of progress on
    stderr if a person watches."""
    work = list(items)
    results: list[Result] = []
    started = time.monotonic()

    def collect(stream: Iterable[Result]) -> None:
        for result in stream:
            results.append(result)
            if sys.stderr.isatty():
                done = f"{len(results)}/{len(work)} {time.monotonic() - started:.0f} s"
                print(f"\r{done}", end="" if len(results) < len(work) else "\n", file=sys.stderr)

    if processes < 2 or len(work) < 2:
        collect(map(function, work))
    else:
        with multiprocessing.Pool(processes) as pool:
            collect(pool.imap(function, work))
    return results


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|---|" + "---:|" * (len(header) - 1))
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def percent(value: float, reference: float) -> str:
    """How far `value` is above `reference`."""
    return f"{100 * (value / reference - 1):+.1f} %"


def publish(
    script: str, argv: Sequence[str], text: str, write: bool, page: Path | None = None
) -> None:
    """Print the result of a script, and with `write` put it into its section of a page (default
    docs/results.md), between the comments that name the script, or else at the end, with
    command, date and machine."""
    command = shlex.join(
        ["python", f"benchmarks/{script}.py", *(a for a in argv if a != "--write")]
    )
    stamp = f"`{command}`, {time.strftime('%Y-%m-%d')}, {_machine()}"
    print(f"{text}\n\n{stamp}")
    if not write:
        return
    page = page or RESULTS
    text_of_page = page.read_text()
    begin, end = f"<!-- {script} -->", f"<!-- end of {script} -->"
    new = f"{begin}\n{stamp}\n\n{text}\n{end}"
    section = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if section.search(text_of_page):
        text_of_page = section.sub(lambda _: new, text_of_page)
    else:
        text_of_page = f"{text_of_page.rstrip()}\n\n## {script}\n\n{new}\n"
    write_atomic(page, text_of_page)


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text()
        model = re.findall(r"model name\s*: (.*)", info)[0].strip()
    except (OSError, IndexError):
        pass
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"
