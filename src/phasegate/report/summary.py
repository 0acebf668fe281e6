"""The numbers of a run: a `RunRecord` in, one entry of JSON schema 1 out.

All times in seconds. A statistic of nothing is None (null in JSON), never NaN.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from phasegate.engine.record import RunRecord

SCHEMA = 1

FINISHED = 0
"""Value of the records' "status" for a request that got all its tokens."""

Floats = NDArray[np.float64]


class Stats(TypedDict):
    """Statistics of a latency, seconds."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


class Requests(TypedDict):
    """What became of the requests."""

    submitted: int
    finished: int
    rejected: int
    aborted: int


class Throughput(TypedDict):
    """Work of the finished requests per second of the run."""

    requests_s: float | None
    prompt_tokens_s: float | None
    output_tokens_s: float | None
    total_tokens_s: float | None


class Iterations(TypedDict):
    """Number of iterations by kind."""

    prefill: int | None
    decode: int | None
    mixed: int | None


class KV(TypedDict):
    """Use of the KV cache; the mean is over the duration of the run."""

    capacity_tokens: int | None
    peak_tokens: int | None
    mean_utilisation: float | None


class Slots(TypedDict):
    """Occupied slots, mean over the duration of the run."""

    mean_busy: float | None


class Final(TypedDict):
    """Where the policy stood at the end."""

    k: int | None
    n: int | None
    mode: str | None


class RunSummary(TypedDict):
    """One entry of `runs` in JSON schema 1. None: not known to who measured."""

    policy: str
    profile: str
    workload: str
    requests: Requests
    duration_s: float
    throughput: Throughput
    ttft_s: Stats
    itl_s: Stats
    tpot_s: Stats
    e2e_s: Stats
    iterations: Iterations
    preemptions: int | None
    recomputed_tokens: int | None
    kv: KV
    slots: Slots
    final: Final


def summarise(record: RunRecord) -> RunSummary:
    """The numbers of one run.

    TTFT and ITL are over every token that was produced, TPOT and E2E over finished requests
    (TPOT over those with at least two output tokens). Throughput counts finished requests only.
    """
    requests, iterations = record.requests, record.iterations
    finished = requests["status"] == FINISHED
    latencies = request_latencies(record)
    kinds = np.bincount(iterations["kind"].astype(np.int64), minlength=3)
    kv_used = iterations["kv_used"]
    prompt = float(requests["prompt"][finished].sum())
    output = float(requests["output"][finished].sum())
    duration = float(record.duration)
    last = record.decisions[-1][1] if record.decisions else None
    summary: RunSummary = {
        "policy": record.policy,
        "profile": record.profile,
        "workload": record.workload,
        "requests": {
            "submitted": int(record.submitted),
            "finished": int(record.counts["finished"]),
            "rejected": int(record.counts["rejected"]),
            "aborted": int(record.counts["aborted"]),
        },
        "duration_s": duration,
        "throughput": {
            "requests_s": _per(float(finished.sum()), duration),
            "prompt_tokens_s": _per(prompt, duration),
            "output_tokens_s": _per(output, duration),
            "total_tokens_s": _per(prompt + output, duration),
        },
        "ttft_s": stats(latencies["ttft"]),
        "itl_s": stats(*record.itl()),
        "tpot_s": stats(latencies["tpot"]),
        "e2e_s": stats(latencies["e2e"]),
        "iterations": {
            "prefill": int(kinds[0]),
            "decode": int(kinds[1]),
            "mixed": int(kinds[2]),
        },
        "preemptions": int(requests["preemptions"].sum()),
        "recomputed_tokens": int(requests["recomputed"].sum()),
        "kv": {
            "capacity_tokens": int(record.kv_capacity),
            "peak_tokens": int(kv_used.max()) if kv_used.size else 0,
            "mean_utilisation": _per(
                float(kv_used @ iterations["duration"]), duration * record.kv_capacity
            ),
        },
        "slots": {"mean_busy": _per(float(iterations["slots"] @ iterations["duration"]), duration)},
        "final": {
            "k": last.k if last else None,
            "n": min(last.n, record.slots) if last else None,
            "mode": last.mode if last else None,
        },
    }
    if not record.sees_inside:
        summary["iterations"] = {"prefill": None, "decode": None, "mixed": None}
        summary["preemptions"] = summary["recomputed_tokens"] = None
        summary["kv"] = {"capacity_tokens": None, "peak_tokens": None, "mean_utilisation": None}
        summary["slots"] = {"mean_busy": None}
    return summary


def request_latencies(record: RunRecord) -> dict[str, Floats]:
    """Seconds per request: "ttft" (all that got a token), "tpot" and "e2e" (finished ones).

    TTFT = first token - arrival; TPOT = (end - first token) / (output - 1); E2E = end - arrival.
    """
    requests = record.requests
    arrival, first, end = requests["arrival"], requests["first_token"], requests["end"]
    output = requests["output"]
    finished = requests["status"] == FINISHED
    several = finished & (output > 1)
    started = ~np.isnan(first)
    return {
        "ttft": first[started] - arrival[started],
        "tpot": (end[several] - first[several]) / (output[several] - 1),
        "e2e": end[finished] - arrival[finished],
    }


def stats(values: Floats, weights: NDArray[Any] | None = None) -> Stats:
    """Mean, exact percentiles and maximum; `weights` are how often each value occurred."""
    if weights is not None:
        values, weights = values[weights > 0], weights[weights > 0]
    if values.size == 0:
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    mean = float(np.average(values, weights=weights))
    p50, p90, p99 = quantiles(values, weights, (0.5, 0.9, 0.99))
    return {"mean": mean, "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def quantiles(
    values: Floats, weights: NDArray[Any] | None, shares: Sequence[float] | Floats
) -> list[float]:
    """Quantiles at `shares` (0..1) of a non-empty sample, linear between order statistics.

    With integer `weights` this is np.quantile(np.repeat(values, weights), shares) without the
    repetition: a run of a million requests has hundreds of millions of inter-token gaps.
    """
    if weights is None:
        return [float(q) for q in np.quantile(values, shares)]
    order = np.argsort(values)
    ordered, upto = values[order], np.cumsum(weights[order], dtype=np.int64)
    position = np.asarray(shares, dtype=np.float64) * float(upto[-1] - 1)
    below = np.floor(position)
    low = ordered[np.searchsorted(upto, below, side="right")]
    high = ordered[np.searchsorted(upto, np.ceil(position), side="right")]
    return [float(q) for q in low + (high - low) * (position - below)]


def to_json(summaries: Sequence[RunSummary]) -> str:
    """JSON schema 1 of some runs; ends with a newline."""
    document = {"schema": SCHEMA, "runs": list(summaries)}
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _per(amount: float, whole: float) -> float | None:
    return amount / whole if whole > 0 else None
