"""The numbers that reports show: where they are in a `RunSummary`, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from phasegate.report.summary import RunSummary

Kind = Literal["seconds", "rate", "count", "share", "number", "text"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a run.

    Attributes:
        path: its keys in `RunSummary`, joined by dots.
        group, name: words for a person; the group may hold several.
        kind: how it is printed.
        better: which way is better (None: neither).
    """

    path: str
    group: str
    name: str
    kind: Kind
    better: Literal["high", "low"] | None = None

    def read(self, run: RunSummary) -> Any:
        """The value in `run` (None if there is none)."""
        value: Any = run
        for key in self.path.split("."):
            value = cast("dict[str, Any]", value)[key]
        return value


def _latency(path: str, group: str) -> Iterator[Metric]:
    for key in ("mean", "p50", "p90", "p99", "max"):
        name = key if key in ("mean", "max") else key.upper()
        yield Metric(f"{path}.{key}", group, name, "seconds", "low")


METRICS: tuple[Metric, ...] = (
    Metric("throughput.requests_s", "Throughput", "requests/s", "rate", "high"),
    Metric("throughput.prompt_tokens_s", "Throughput", "prompt tokens/s", "rate", "high"),
    Metric("throughput.output_tokens_s", "Throughput", "output tokens/s", "rate", "high"),
    Metric("throughput.total_tokens_s", "Throughput", "total tokens/s", "rate", "high"),
    *_latency("ttft_s", "TTFT"),
    *_latency("itl_s", "ITL"),
    *_latency("tpot_s", "TPOT"),
    *_latency("e2e_s", "E2E"),
    Metric("requests.submitted", "Requests", "submitted", "count"),
    Metric("requests.finished", "Requests", "finished", "count", "high"),
    Metric("requests.rejected", "Requests", "rejected", "count", "low"),
    Metric("requests.aborted", "Requests", "aborted", "count", "low"),
    Metric("duration_s", "Run", "duration", "seconds"),
    Metric("iterations.prefill", "Run", "prefill iterations", "count"),
    Metric("iterations.decode", "Run", "decode iterations", "count"),
    Metric("iterations.mixed", "Run", "mixed iterations", "count"),
    Metric("slots.mean_busy", "Run", "mean busy slots", "number"),
    Metric("preemptions", "KV cache", "preemptions", "count", "low"),
    Metric("recomputed_tokens", "KV cache", "recomputed tokens", "count", "low"),
    Metric("kv.capacity_tokens", "KV cache", "capacity, tokens", "count"),
    Metric("kv.peak_tokens", "KV cache", "peak, tokens", "count"),
    Metric("kv.mean_utilisation", "KV cache", "mean utilisation", "share"),
    Metric("final.mode", "At the end", "mode", "text"),
    Metric("final.k", "At the end", "k", "count"),
    Metric("final.n", "At the end", "N", "count"),
)

BY_PATH = {metric.path: metric for metric in METRICS}


def in_seconds(values: Sequence[float | None]) -> bool:
    """Whether latencies shown together read better in s than in ms (any of 10 s or more)."""
    return any(value is not None and value >= 10 for value in values)


def show(value: Any, kind: Kind, seconds: bool = True) -> str:
    """A value as text without its unit; `seconds` False shows times in ms. "-" for None."""
    if value is None:
        return "-"
    if kind == "text":
        return str(value)
    if kind == "count":
        return f"{value:,}"
    if kind == "share":
        return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}"
    return figures(value if kind != "seconds" or seconds else value * 1000)


def figures(value: float) -> str:
    """Three figures or more, no exponent: 0.0123, 1.23, 12.3, 123, 1,234."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    decimals = 2 if size >= 1 or size == 0 else min(9, 2 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def duration(seconds: float) -> str:
    """A time with its unit: ms below 1 s, s above."""
    return f"{figures(seconds)} s" if seconds >= 1 else f"{figures(seconds * 1000)} ms"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 request, 2,000 requests."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def best_runs(metric: Metric, runs: Sequence[RunSummary]) -> set[int]:
    """Which runs are best in `metric`, as far as can be seen on screen; none if all are alike."""
    values = [metric.read(run) for run in runs]
    known = [value for value in values if value is not None]
    if metric.better is None or len(known) < 2:
        return set()
    top = max(known) if metric.better == "high" else min(known)
    seconds = metric.kind == "seconds" and in_seconds(known)
    text = show(top, metric.kind, seconds)
    best = {
        i
        for i, value in enumerate(values)
        if value is not None and show(value, metric.kind, seconds) == text
    }
    return set() if len(best) == len(runs) else best
