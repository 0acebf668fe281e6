"""Run records for the tests of reports: one written by hand, and summaries changed at will."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from phasegate.engine.record import RunRecord
from phasegate.policy.base import Decision
from phasegate.report.summary import RunSummary, summarise

NAN = float("nan")


def hand_record(policy: str = "exclusive:k=1") -> RunRecord:
    """Two requests served, one aborted while waiting, one rejected; 10 s of one iteration each.

    0 s  prefill of requests 0 and 1 (100 + 200 tokens), 2 s
    2 s  decode of both, 1 s: request 0 has its 2 tokens and ends
    3 s  decode of request 1, 2 s; then 3 s: it ends with 4 tokens at 8 s; idle until 10 s
    """
    requests = {
        "id": [3, 0, 2, 1],
        "arrival": [0.0, 0.0, 1.0, 0.5],
        "admitted": [NAN, 0.0, NAN, 0.5],
        "first_token": [NAN, 2.0, NAN, 2.0],
        "end": [0.0, 3.0, 4.0, 8.0],
        "prompt": [9999, 100, 50, 200],
        "output": [0, 2, 0, 4],
        "priority": [0, 0, 0, 0],
        "preemptions": [0, 0, 0, 1],
        "recomputed": [0, 0, 0, 201],
        "status": [2, 0, 1, 0],
    }
    iterations = {
        "start": [0.0, 2.0, 3.0, 5.0],
        "duration": [2.0, 1.0, 2.0, 3.0],
        "kind": [0, 1, 1, 1],
        "prefill_tokens": [300, 0, 0, 0],
        "decodes": [0, 2, 1, 1],
        "slots": [2, 2, 1, 1],
        "kv_used": [300, 302, 202, 203],
        "waiting": [0, 1, 1, 0],
    }
    stays = {
        "request": [0, 1],
        "tick": [0, 0],
        "ticks": [1, 3],
        "first_gap": [1.0, 1.0],
        "own_gap": [-1.0, -1.0],
    }
    return RunRecord(
        policy=policy,
        profile="h200/qwen3-8b",
        workload="by hand",
        kv_capacity=1000,
        slots=8,
        submitted=4,
        duration=10.0,
        requests={name: np.array(column, dtype=float) for name, column in requests.items()},
        iterations={name: np.array(column, dtype=float) for name, column in iterations.items()},
        stays={name: np.array(column, dtype=float) for name, column in stays.items()},
        ticks=np.array([0.0, 3.0, 5.0, 8.0]),
        tick_decodes=np.array([0, 2, 1, 1]),
        tick_joined=np.array([0, 2, 0, 0]),
        decisions=[(2.0, Decision("exclusive", 2, 8)), (5.0, Decision("exclusive", 1, 1 << 60))],
    )


def summary_of(policy: str, **changes: Any) -> RunSummary:
    """The summary of `hand_record`, cleaned of its failures, with `changes`.

    Keys are paths with "__" for the dot: summary_of("mixed", throughput__requests_s=9.0).
    """
    summary = copy.deepcopy(summarise(hand_record(policy)))
    summary["requests"] = {"submitted": 100, "finished": 100, "rejected": 0, "aborted": 0}
    summary["preemptions"] = summary["recomputed_tokens"] = 0
    for path, value in changes.items():
        target: Any = summary
        *groups, key = path.split("__")
        for group in groups:
            target = target[group]
        assert key in target, path
        target[key] = value
    return summary
