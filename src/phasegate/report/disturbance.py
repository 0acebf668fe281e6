"""Was a measured run disturbed? Other work on the machine can make any policy look bad."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phasegate.cost.model import CostModel
from phasegate.engine.record import DECODE, RunRecord

_SUSPICIOUS = 1.5
"""A run that is so many times as slow as the steadiest one, measured by its own iterations."""


def slowness(record: RunRecord, cost: CostModel) -> float:
    """Time that the iterations of a run took, over the time that the cost model expects for the
    same iterations (whole KV pages count as context). 1 if there were none."""
    table = record.iterations
    expected = sum(
        cost.seconds(tokens, 0.0, decodes, context if decodes else 0.0)
        for tokens, decodes, context in zip(
            table["prefill_tokens"].tolist(),
            table["decodes"].tolist(),
            table["kv_used"].tolist(),
            strict=True,
        )
    )
    return float(table["duration"].sum()) / expected if expected > 0.0 else 1.0


def longest_stall(record: RunRecord) -> float:
    """The longest decode-only iteration, seconds (0 if there was none)."""
    durations = record.iterations["duration"][record.iterations["kind"] == DECODE]
    return float(np.max(durations, initial=0.0))


def disturbed(runs: Mapping[str, tuple[float, float]]) -> str:
    """A sentence about the runs (name -> slowness, longest stall) that were disturbed, or ""."""
    steadiest = min(slow for slow, _ in runs.values())
    bad = {name: run for name, run in runs.items() if run[0] > _SUSPICIOUS * steadiest}
    if not bad:
        return ""
    told = "; ".join(
        f"{name}: {slow / steadiest:.1f} times the time for the same iterations, one decode took "
        f"{stall:.2g} s"
        for name, (slow, stall) in bad.items()
    )
    return (
        f"Do not trust this comparison: other work slowed the machine down ({told}). Run it again."
    )
