"""One cycle of EB(k) against simulation: freed slots, phases, prefill iterations."""

from __future__ import annotations

import numpy as np
import pytest
from decode_world import geometric, lognormal, serve, uniform

from phasegate.theory import LengthLaw, best_k, cycle, overhead_per_request
from phasegate.theory.cycle import prefill_iterations


def simulated_cycle(draw, n: int, k: int, requests: int) -> tuple[float, float]:
    """Mean slots freed and mean decode iterations per phase, first third left out."""
    phases: list[tuple[int, int]] = []
    iterations = freed = 0
    for event in serve([(draw, requests)], n, np.random.default_rng(5), threshold=k):
        iterations += event.iterations
        freed += len(event.finished)
        if event.started:
            phases.append((freed, iterations))
            iterations = freed = 0
    kept = np.array(phases[len(phases) // 3 : -1])
    return kept[:, 0].mean(), kept[:, 1].mean()


@pytest.mark.parametrize("draw", [geometric(64), uniform(64), lognormal(64, 1.0)])
@pytest.mark.parametrize(("n", "k"), [(8, 1), (8, 2), (64, 8), (256, 1), (256, 30)])
def test_freed_slots_and_phase_length(draw, n: int, k: int) -> None:
    freed, tau = simulated_cycle(draw, n, k, 8000 + 30 * n)
    phases = cycle(np.array([float(k)]), n, 64.0)
    # In few slots, or with k far below what one iteration frees, only the ratio counts.
    assert phases.freed[0] / phases.decode_iterations[0] == pytest.approx(freed / tau, rel=0.03)
    if k > 1 or n < 64:
        assert phases.freed[0] == pytest.approx(freed, rel=0.05)


def test_long_phases_follow_the_law() -> None:
    """Three quarters of the slots: with a law tau is right, the mean alone cannot know."""
    draw = uniform(64)
    law = LengthLaw.of(draw(np.random.default_rng(0), 50_000))
    freed, tau = simulated_cycle(draw, 256, 192, 12_000)
    phases = cycle(np.array([192.0]), 256, 64.0, law=law)
    assert phases.freed[0] / phases.decode_iterations[0] == pytest.approx(freed / tau, rel=0.04)


class TestPrefillIterations:
    """E[ceil(S/B)]."""

    @pytest.mark.parametrize("std", [0.0, 200.0, 900.0, 5000.0])
    def test_against_drawing_totals(self, std: float) -> None:
        rng = np.random.default_rng(2)
        for mean in (500.0, 4000.0, 8192.0, 9000.0, 16_300.0, 40_000.0):
            totals = np.maximum(rng.normal(mean, std, 200_000), 1.0)
            expected = np.ceil(totals / 8192).mean()
            found = prefill_iterations(np.array([mean]), np.array([std**2]), 8192.0)[0]
            # A normal total that is often negative is no prompt total.
            if mean > 2 * std:
                assert found == pytest.approx(expected, abs=0.07)

    def test_no_budget_one_iteration(self) -> None:
        assert prefill_iterations(np.array([1e9]), np.array([0.0]), float("inf")) == [1.0]


def test_best_k_sees_the_edge_of_the_budget() -> None:
    """8 prompts of 1,024 fill a budget of 8,192: 24 take 3 prefill iterations, 25 take 4. Requests
    that finish together make EB(24) free 25 slots every third time, so EB(23) is better."""
    n, budget, prompt, mean, ratio = 256, 8192, 1024, 257.0, 5.0

    def overhead(k: int) -> float:
        fixed = served = 0.0
        iterations = freed = turn = 0
        for event in serve([(geometric(mean), 60_000)], n, np.random.default_rng(7), threshold=k):
            iterations += event.iterations
            freed += len(event.finished)
            if event.started:
                turn += 1
                if turn > 100:
                    fixed += iterations + ratio * -(-len(event.started) * prompt // budget)
                    served += freed
                iterations = freed = 0
        return fixed / served

    ks = np.array([16.0, 22.0, 23.0, 24.0, 25.0])
    simulated = [overhead(int(k)) for k in ks]
    cells = {"mean_prompt": float(prompt), "token_budget": float(budget)}
    found = overhead_per_request(ks, n, mean, ratio, 1.0, **cells)
    assert found == pytest.approx(simulated, rel=0.01)
    assert best_k(n, mean, ratio, 1.0, **cells) == 23
    assert min(simulated) == simulated[2]
