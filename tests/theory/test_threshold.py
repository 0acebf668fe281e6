"""Thresholds: the closed forms against their equations, the optimum against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from decode_world import geometric, lognormal, uniform
from scipy.optimize import brentq

from phasegate.errors import InputError
from phasegate.theory import (
    LengthLaw,
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


class TestEquation3:
    """theta/(1-theta) + ln(1-theta) = p0*alpha_p/alpha_d."""

    @pytest.mark.parametrize("target", [1e-7, 1e-4, 0.01, 0.5, 3.0, 50.0])
    def test_solves_the_equation(self, target: float) -> None:
        theta = paper_theta(target, 1.0, 1.0)
        by_bisection = brentq(
            lambda t: t / (1 - t) + math.log1p(-t) - target, 1e-6, 1 - 1e-9, xtol=1e-14
        )
        assert theta == pytest.approx(by_bisection, rel=1e-6)

    def test_is_the_maximum_of_equation_4(self) -> None:
        """theta_0 maximises the throughput at a given N, found here by trying all theta."""
        n, mean = 256, 300.0
        cost = {"alpha_p": 4.7e-3, "alpha_d": 8.1e-3, "beta_p": 5e-5, "beta_d": 1e-4}
        thetas = np.linspace(0.001, 0.9, 9000)
        rates = [throughput(t * n, t, mean_prompt=512, mean_output=mean, **cost) for t in thetas]
        best = thetas[int(np.argmax(rates))]
        assert paper_theta(1 / mean, 4.7e-3, 8.1e-3) == pytest.approx(best, abs=2e-4)

    def test_refuses_nonsense(self) -> None:
        with pytest.raises(InputError, match="p0"):
            paper_theta(0.0, 1.0, 1.0)


class TestEquation5:
    """The paper's correction for a rising hazard, and the authors' guards."""

    def test_vanishes_with_the_slope_and_grows_with_it(self) -> None:
        assert hazard_correction(0.2, 0.01, 0.0, 1.0) == 0.0
        one, two = (hazard_correction(0.2, 0.01, eta, 1.0) for eta in (1e-6, 2e-6))
        assert two == pytest.approx(2 * one)

    def test_by_hand(self) -> None:
        """theta 0.5: zeta = ln 2; bracket = ln2*(1 - ln2/2) + rho*(ln2 - 1/2)."""
        bracket = math.log(2) * (1 - math.log(2) / 2) + 3.0 * (math.log(2) - 0.5)
        expected = 1e-5 * 0.25 / (0.02**2 * 0.5) * bracket
        assert hazard_correction(0.5, 0.02, 1e-5, 3.0) == pytest.approx(expected)

    def test_guards(self) -> None:
        """p0 below 1/mean (even negative, as uniform lengths give) is replaced by 1/mean; dtheta
        stops at 5*theta_0, theta at 0.8 and 1/N."""
        plain = paper_k(100, 200.0, 1.0, 1.0)
        assert paper_k(100, 200.0, 1.0, 1.0, p0=-0.01) == plain
        assert paper_k(100, 200.0, 1.0, 1.0, eta=1.0) == round(
            100 * min(0.8, 6 * paper_theta(1 / 200, 1.0, 1.0))
        )
        assert paper_k(100, 200.0, 50.0, 1.0, eta=1.0) == 80
        assert paper_k(100, 200.0, 1.0, 1.0, eta=-1.0) == 1


class TestExactGeometric:
    """Order statistics of geometric lengths in discrete time, against simulation."""

    @pytest.mark.parametrize(("n", "mean", "k"), [(6, 3.0, 2), (40, 12.0, 9), (64, 8.0, 1)])
    def test_against_monte_carlo(self, n: int, mean: float, k: int) -> None:
        """n requests start; count iterations until k are done and how many are done then."""
        rng = np.random.default_rng(1)
        lengths = np.sort(rng.geometric(1 / mean, (60_000, n)), axis=1)
        lasted = lengths[:, k - 1]
        freed = (lengths <= lasted[:, None]).sum(axis=1)
        assert freed.mean() > k  # several finish in one iteration
        expected = (0.7 + 0.3 * lasted.mean()) / freed.mean()
        assert exact_geometric_overhead(n, mean, 0.7, 0.3)[k - 1] == pytest.approx(
            expected, rel=5e-3
        )

    def test_one_slot(self) -> None:
        """One slot: a phase is one request."""
        assert exact_geometric_overhead(1, 5.0, 2.0, 3.0) == pytest.approx([2.0 + 15.0])


CELLS = [
    (n, mean, ratio)
    for n in (32, 128, 512)
    for mean in (64, 128)
    for ratio in (0.05, 0.14, 0.26, 0.58)
]
"""N, mu_O, alpha_p/alpha_d; the ratios are those of the presets and of the calibrations."""


def test_rules_against_the_exact_optimum() -> None:
    """Issue: the integer k of eq. 3 loses at most 0.3 % of the fixed cost, the insensitive form
    no more; `best_k`, which sees several requests finish at once, next to nothing."""
    worst = {"eq. 3": 0.0, "insensitive": 0.0, "best_k": 0.0}
    for n, mean, ratio in CELLS:
        cost = exact_geometric_overhead(n, mean, ratio, 1.0)
        chosen = {
            "eq. 3": paper_k(n, mean, ratio, 1.0),
            "insensitive": insensitive_k(n, mean, ratio, 1.0),
            "best_k": best_k(n, mean + 1, ratio, 1.0),
        }
        for rule, k in chosen.items():
            worst[rule] = max(worst[rule], cost[k - 1] / cost.min() - 1)
        assert exact_geometric_k(n, mean, ratio, 1.0) == np.argmin(cost) + 1
    assert worst["eq. 3"] <= 0.003
    assert worst["insensitive"] <= 0.003
    assert worst["best_k"] <= 0.0005


def fluid_overhead(outputs: np.ndarray, tau: float, ratio: float) -> float:
    """Fixed cost per request and slot of decode phases of tau iterations, from lengths alone:
    a request holds its slot through ceil(length/tau) phases."""
    return float((ratio + tau) * np.ceil(outputs / tau).mean())


@pytest.mark.parametrize(
    "draw",
    [geometric(256), uniform(256), uniform(256, 1.0), lognormal(256, 1.0), lognormal(256, 2.0)],
)
def test_renewal_and_insensitive_against_trying_every_phase(draw) -> None:
    rng = np.random.default_rng(3)
    outputs = np.maximum(1, draw(rng, 20_000))
    law = LengthLaw.of(outputs)
    for ratio in (0.26, 0.58, 2.0):
        best = min(fluid_overhead(outputs, tau, ratio) for tau in range(1, 80))
        for k, allowed in (
            (renewal_k(4096, law, ratio, 1.0), 1e-4),
            (insensitive_k(4096, outputs.mean(), ratio, 1.0), 2e-3),
        ):
            # The phase in which k of 4096 slots become free, by the same lengths.
            tau = min(range(1, 200), key=lambda t, k=k: abs(4096 / np.ceil(outputs / t).mean() - k))
            assert fluid_overhead(outputs, tau, ratio) <= best * (1 + allowed)


def test_renewal_takes_functions_arrays_and_laws() -> None:
    q = 1 - 1 / 100
    values = q ** np.arange(3000)
    by_array = renewal_k(256, values, 0.5, 1.0)
    assert by_array == renewal_k(256, lambda t: q**t, 0.5, 1.0)
    assert by_array == renewal_k(256, LengthLaw.from_survival(values), 0.5, 1.0)
    assert by_array == pytest.approx(exact_geometric_k(256, 100.0, 0.5, 1.0), abs=2)


def test_long_phases_need_the_law() -> None:
    """A prefill that costs like mu_O decode iterations: with fixed lengths all slots are best
    refilled together, with geometric ones never; the insensitive form cannot tell."""
    fixed = LengthLaw.of([33.0])
    assert best_k(64, 33.0, 40.0, 1.0, law=fixed) > 55
    assert best_k(64, 33.0, 40.0, 1.0) < 55


class TestTokenBudget:
    """A prefill of k prompts takes ceil(k*mu_L/B) iterations."""

    def test_k_stays_within_what_whole_iterations_carry(self) -> None:
        """8 prompts of 1,024 fill a budget of 8,192; the 9th costs another alpha_p. With lengths
        that end one by one, k is a multiple of 8."""
        for ratio in (40.0, 80.0, 200.0):
            k = best_k(64, 5000.0, ratio, 1.0, mean_prompt=1024.0, token_budget=8192.0)
            assert k % 8 == 0

    def test_spread_lengths_leave_no_such_edge(self) -> None:
        """When prompt totals vary by a third of the budget, the ceil averages out."""
        ks = np.arange(8.0, 41.0)
        spread = {"mean_prompt": 1024.0, "prompt_std": 1500.0, "token_budget": 8192.0}
        cost = overhead_per_request(ks, 256, 257.0, 5.0, 1.0, **spread)
        assert (np.diff(cost, 2) > -1e-3).all()  # convex, up to nothing

    def test_without_a_budget_nothing_changes(self) -> None:
        assert best_k(256, 257.0, 5.0, 1.0, mean_prompt=1024.0) == best_k(256, 257.0, 5.0, 1.0)


@pytest.mark.parametrize("rule", [insensitive_k, best_k])
def test_corners(rule) -> None:
    assert rule(1, 100.0, 1.0, 1.0) == 1
    assert 1 <= rule(8, 1.0, 1.0, 1.0) <= 8
    assert rule(8, 1e6, 1e-3, 1.0) == 1
    with pytest.raises(InputError, match="alpha_d"):
        rule(8, 100.0, 1.0, 0.0)
