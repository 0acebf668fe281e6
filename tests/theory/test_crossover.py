"""X_MB and X_EB against iteration-by-iteration simulation; Prop. 4 by hand and by its parts."""

from __future__ import annotations

import math

import pytest
from batching_world import (
    exclusive_rate_by_simulation,
    mixed_rate_by_simulation,
    requests,
)
from decode_world import geometric, uniform

from phasegate.cost.model import InterferenceCost, LinearCost
from phasegate.errors import InputError
from phasegate.theory import (
    SlotLoad,
    Traffic,
    best_k,
    exclusive_gain,
    exclusive_rate,
    mixed_rate,
    paper_theta,
    throughput,
)

RTX = InterferenceCost(4.69e-3, 8.07e-3, 46.8e-6, 56.0e-6, 97.3e-9, kappa=3.5, beta_q=2e-10)
LINEAR = LinearCost(4.69e-3, 5.0e-5, 8.07e-3, 1.0e-4, a=6.3e-5, b=1.97e-4, c=1e-5, alpha_m=5e-3)


def traffic(prompt: int, output: int, law: str = "geometric") -> Traffic:
    """Prompts uniform +-50 %."""
    load = SlotLoad.from_laws(prompt, output, "uniform", law, 0.5, 0.5)
    return Traffic(prompt, output, load.mean, prompt_std=prompt * 0.5 / math.sqrt(3))


MIXED = [
    # prompt, output, N, B, iterations
    (512, 64, 64, 8192, 6000),  # room to spare
    (128, 256, 256, 2048, 5000),
    (512, 16, 8, 2048, 20_000),
    (1024, 128, 128, 2048, 6000),  # the budget binds at times
    (1024, 32, 256, 8192, 3000),  # it binds always: prompts queue inside the batch
    (8000, 64, 32, 8192, 12_000),  # one prompt is an iteration
    (8000, 64, 64, 2048, 12_000),  # one prompt is four
]


@pytest.mark.parametrize(("prompt", "output", "n", "budget", "iterations"), MIXED)
@pytest.mark.parametrize("cost", [RTX, LINEAR], ids=["interference", "linear"])
def test_mixed_rate(cost, prompt, output, n, budget, iterations) -> None:
    source = requests(uniform(prompt), uniform(output), seed=1)
    expected = mixed_rate_by_simulation(cost, n, source, budget, iterations)
    found = mixed_rate(cost, n, traffic(prompt, output, "uniform"), budget)
    assert found == pytest.approx(expected, rel=0.025)


def test_mixed_rate_does_not_depend_on_the_law_of_outputs() -> None:
    """Only the mean output and the mean context do."""
    source = requests(uniform(512), geometric(64), seed=2)
    expected = mixed_rate_by_simulation(RTX, 64, source, 4096, 15_000)
    assert mixed_rate(RTX, 64, traffic(512, 64), 4096) == pytest.approx(expected, rel=0.02)


def test_ignoring_the_budget_overestimates_prefill_heavy_traffic() -> None:
    """1,024/32 in 256 slots brings 8 prompts per iteration; 2,048 tokens carry two."""
    heavy = traffic(1024, 32, "uniform")
    source = requests(uniform(1024), uniform(32), seed=3)
    expected = mixed_rate_by_simulation(RTX, 256, source, 2048, 4000)
    assert mixed_rate(RTX, 256, heavy, 2048) == pytest.approx(expected, rel=0.02)
    assert mixed_rate(RTX, 256, heavy) > 1.03 * expected


@pytest.mark.parametrize(("prompt", "output"), [(512, 64), (1024, 32), (128, 256)])
@pytest.mark.parametrize("n", [8, 128])
def test_exclusive_rate(prompt: int, output: int, n: int) -> None:
    best = best_k(n, output, RTX.alpha_p, RTX.alpha_d, mean_prompt=prompt, token_budget=4096)
    for k in {1, best, min(n // 2, 2 * best)}:
        source = requests(uniform(prompt), uniform(output), seed=4)
        cycles = 1500 + 6 * n // k
        expected = exclusive_rate_by_simulation(RTX, n, k, source, 4096, cycles)
        found = exclusive_rate(RTX, n, k, traffic(prompt, output, "uniform"), 4096)
        assert found == pytest.approx(expected, rel=0.02)


def test_one_request_at_a_time() -> None:
    """N = 1: both regimes are prefill, then mu_O - 1 decode iterations."""
    alone = Traffic(1000, 101, 1050.0)
    seconds = RTX.seconds(1000, 500_000, 0, 0) + 100 * RTX.seconds(0, 0, 1, 1050)
    assert exclusive_rate(RTX, 1, 1, alone) == pytest.approx(1 / seconds, rel=1e-6)
    assert mixed_rate(RTX, 1, alone) == pytest.approx(1 / seconds, rel=1e-6)


class TestProposition4:
    """The paper's condition."""

    def test_is_the_difference_of_seconds_per_token(self) -> None:
        """1/X of eq. (4) for EB; beta_MB*tokens + alpha_MB*(1+mu_O)/N per request for MB."""
        n, k, theta, prompt, output = 256, 20, 20 / 256, 512.0, 300.0
        costs = {"alpha_p": 4.7e-3, "alpha_d": 8.1e-3, "beta_p": 4.7e-5, "beta_d": 1e-4}
        lengths = {"mean_prompt": prompt, "mean_output": output}
        exclusive = 1 / throughput(k, theta, **costs, **lengths)
        mixed = 9e-5 * (prompt + output) + 6e-3 * (1 + output) / n
        gain = exclusive_gain(
            n=n, k=k, theta=theta, beta_mixed=9e-5, alpha_mixed=6e-3, **costs, **lengths
        )
        assert gain == pytest.approx((mixed - exclusive) / (prompt + output))

    def test_published_calibration(self) -> None:
        """RTX PRO 6000 (reference/calibrations.json): the paper's EB+ goes exclusive for
        balanced traffic, whose beta_MB(r) was fitted to whole runs (alpha_MB = 0)."""
        theta = paper_theta(1 / 512, 4.691e-3, 10.376e-3)
        r = 0.5
        gain = exclusive_gain(
            n=512,
            k=theta * 512,
            theta=theta,
            mean_prompt=512,
            mean_output=512,
            alpha_p=4.691e-3,
            alpha_d=10.376e-3,
            beta_p=5.008e-5,
            beta_d=1.0388e-4,
            beta_mixed=6.293e-5 + 1.9690e-4 * r + 9.9e-6 * r * r,
        )
        assert gain > 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="token_budget"):
        mixed_rate(RTX, 8, traffic(512, 64), 0)
    with pytest.raises(InputError, match="requests in the system"):
        exclusive_rate(RTX, 0, 1, traffic(512, 64))
    with pytest.raises(InputError, match="output"):
        Traffic(512, 0.5, 600)
