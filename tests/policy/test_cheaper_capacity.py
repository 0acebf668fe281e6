"""Where few requests fit into KV, `hybrid` and `threshold` fill it; elsewhere N is memory-safe."""

from __future__ import annotations

import pytest

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.theory.memory import full_cache_gain, full_cache_preemptions
from phasegate.workload.build import make_source

COST = load_profile("rtx-pro-6000/qwen3-8b").cost_model()


def run(spec: str, prompt: int, output: int, kv: int, requests: int = 600) -> RunRecord:
    """128 concurrent requests with geometric outputs."""
    limits = Limits(kv_capacity=kv)
    workload = f"prompt={prompt},output={output},output_dist=geometric,prompt_dist=uniform:0.5"
    source = make_source(workload, concurrency=128, requests=requests, seed=3)
    return simulate(COST, source, build_policy(spec, COST, limits), limits)


def preemptions(record: RunRecord) -> float:
    """Per request."""
    return float(record.requests["preemptions"].mean())


@pytest.mark.parametrize("spec", ["threshold", "hybrid"])
@pytest.mark.parametrize(("prompt", "output"), [(500, 500), (1000, 300), (200, 1000)])
def test_a_dozen_requests_fill_the_cache(spec: str, prompt: int, output: int) -> None:
    """A margin for growth would leave a third of it empty; recomputing costs less."""
    full, safe = (run(s, prompt, output, 20_000).duration for s in ("mixed", f"{spec}:n=safe"))
    assert run(spec, prompt, output, 20_000).duration < min(1.07 * full, safe)


@pytest.mark.parametrize("spec", ["threshold", "hybrid"])
def test_hundreds_of_requests_keep_a_margin(spec: str) -> None:
    ours, full = run(spec, 1000, 300, 130_000, 1500), run("mixed", 1000, 300, 130_000, 1500)
    assert preemptions(ours) < 0.1 * preemptions(full)
    assert ours.duration < full.duration


@pytest.mark.parametrize("spec", ["threshold:n=safe", "hybrid:n=safe", "hybrid:eps=0.01"])
def test_who_asks_for_a_safe_n_gets_it(spec: str) -> None:
    assert preemptions(run(spec, 500, 500, 20_000)) < 0.1


@pytest.mark.parametrize(("prompt", "output"), [(1500, 150), (500, 500), (150, 1000)])
def test_how_often_a_full_cache_preempts(prompt: int, output: int) -> None:
    seen = preemptions(run("mixed", prompt, output, 20 * (prompt + output), 1000))
    assert full_cache_preemptions(prompt, output) == pytest.approx(seen, rel=0.25, abs=0.03)


def test_what_a_full_cache_saves_is_the_fixed_cost_of_fewer_iterations() -> None:
    gain = full_cache_gain(COST, 1000, 301, 10, 15, 0.0)
    assert gain == pytest.approx(COST.alpha_decode * 300 * (1 / 10 - 1 / 15))
    once = full_cache_gain(COST, 1000, 301, 10, 15, 1.0)
    assert gain - once == pytest.approx(COST.seconds(1045.15, 1045.15**2 / 2, 0, 0))
