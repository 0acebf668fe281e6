"""From a spec to its requests: sampling with one random stream per quantity.

The streams of phase i are children of (seed, i), one each for prompts, outputs, gaps and so on.
So the lengths depend on neither the rate nor the concurrency, and a short run is the beginning
of a longer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import ClosedLoop, OpenLoop
from phasegate.workload.phase import Phase
from phasegate.workload.spec import WorkloadSpec
from phasegate.workload.table import RequestTable

BLOCK = 4096
"""Numbers drawn in one go. Always whole blocks, so that what is drawn does not depend on how
much of it is used."""


def draw(spec: WorkloadSpec, seed: int = 0) -> RequestTable:
    """The requests of a resolved spec; the same seed gives the same requests.

    Raises:
        WorkloadError: a negative seed, a spec that is not resolved, or an empirical law whose
            file cannot be read.
    """
    if seed < 0:
        raise WorkloadError(f"seed={seed}: has to be 0 or more")
    seeds = np.random.SeedSequence(seed).spawn(len(spec.phases))
    parts = [_draw_phase(phase, s) for phase, s in zip(spec.phases, seeds, strict=True)]
    prompt, output, declared, priority, gaps = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    levels = [phase.concurrency for phase in spec.phases if phase.concurrency is not None]
    loop = None
    if levels:
        firsts = np.cumsum([0] + [len(part[0]) for part in parts[:-1]]).tolist()
        loop = ClosedLoop(tuple(zip(firsts, levels, strict=True)))
    return RequestTable(
        label=f"{spec.label}, {len(prompt)} requests",
        prompt=prompt,
        output=output,
        max_tokens=declared,
        priority=priority,
        arrival=None if loop else np.cumsum(gaps),
        loop=loop,
    )


def _draw_phase(phase: Phase, seed: np.random.SeedSequence) -> tuple[NDArray[Any], ...]:
    """Prompts, outputs, declared limits, priorities, and gaps in seconds (closed loop: none)."""
    n = phase.requests
    if n is None or (phase.rate is None and phase.concurrency is None):
        raise WorkloadError("workload: call resolve() first; it settles rate and requests")
    streams = [np.random.default_rng(child) for child in seed.spawn(6)]
    for_prompt, for_output, for_gaps, for_which_long, for_long, for_priority = streams

    prompt_law, output_law = phase.law("prompt"), phase.law("output")
    prompt = _in_blocks(n, lambda size: prompt_law.sample(for_prompt, size))
    if phase.long is not None:
        share, low, high = phase.long
        is_long = _in_blocks(n, for_which_long.random) < share
        long = _in_blocks(n, lambda size: for_long.integers(low, high + 1, size))
        prompt = np.where(is_long, long, prompt)
    output = _in_blocks(n, lambda size: output_law.sample(for_output, size))
    declared = output
    if phase.max_tokens is not None:
        declared = np.full(n, phase.max_tokens, dtype=np.int64)
        output = np.minimum(output, declared)
    priority = np.zeros(n, dtype=np.int64)
    if phase.priority:
        bounds = np.cumsum([share for share, _ in phase.priority])
        numbers = np.array([number for _, number in phase.priority] + [0])
        chance = _in_blocks(n, for_priority.random)
        priority = numbers[np.searchsorted(bounds, chance, side="right")]
    gaps = np.empty(0)
    if phase.rate is not None:
        process = OpenLoop(phase.rate, 1.0 if phase.burst is None else phase.burst)
        gaps = _in_blocks(n, lambda size: process.gaps(for_gaps, size))
    return prompt, output, declared, priority, gaps


def _in_blocks(n: int, sample: Callable[[int], NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([sample(BLOCK) for _ in range(0, n, BLOCK)])[:n]
