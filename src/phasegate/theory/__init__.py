"""The theory of phase-gated batching as pure functions (THEORY.md).

- `threshold`: when to refill (k of EB(k)); `cycle`: what one cycle of EB(k) looks like
- `memory`: how many requests fit (N)
- `crossover`: mixed or exclusive
- `estimators`, `kaplan_meier`: the traffic, learnt while serving; `lengths`, `traffic`: its form
- `queueing`: small facts
"""

from phasegate.theory.crossover import exclusive_gain, exclusive_rate, mixed_rate
from phasegate.theory.cycle import Cycle, cycle
from phasegate.theory.estimators import HazardFit, OccurrenceExposure, PaperHazard, RecentLengths
from phasegate.theory.kaplan_meier import KaplanMeier
from phasegate.theory.lengths import LengthLaw, raw_moments
from phasegate.theory.memory import SlotLoad, memory_safe_n, paper_memory_safe_n
from phasegate.theory.queueing import (
    concurrency,
    continuous_gain,
    expected_longest,
    prefill_stall,
    replicas,
    residence,
    static_idle_share,
    static_idle_shares,
    token_rate_bound,
)
from phasegate.theory.threshold import (
    best_k,
    exact_geometric_k,
    exact_geometric_overhead,
    hazard_correction,
    insensitive_k,
    overhead_per_request,
    paper_k,
    paper_theta,
    renewal_k,
    throughput,
)
from phasegate.theory.traffic import Traffic

__all__ = [
    "Cycle",
    "HazardFit",
    "KaplanMeier",
    "LengthLaw",
    "OccurrenceExposure",
    "PaperHazard",
    "RecentLengths",
    "SlotLoad",
    "Traffic",
    "best_k",
    "concurrency",
    "continuous_gain",
    "cycle",
    "exact_geometric_k",
    "exact_geometric_overhead",
    "exclusive_gain",
    "exclusive_rate",
    "expected_longest",
    "hazard_correction",
    "insensitive_k",
    "memory_safe_n",
    "mixed_rate",
    "overhead_per_request",
    "paper_k",
    "paper_memory_safe_n",
    "paper_theta",
    "prefill_stall",
    "raw_moments",
    "renewal_k",
    "replicas",
    "residence",
    "static_idle_share",
    "static_idle_shares",
    "throughput",
    "token_rate_bound",
]
