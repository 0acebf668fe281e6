"""Iteration costs learned while serving."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from phasegate.cost.model import CostModel, InterferenceCost, LinearCost
from phasegate.cost.online import DECODE, MIXED, NAMES, PREFILL, OnlineCost, Prior
from phasegate.policy.base import StepReport

TRUE = InterferenceCost(
    alpha_p=4.69e-3, alpha_d=8.07e-3, beta_p=46.8e-6, b_d=56e-6, k_d=97.3e-9, kappa=3.5
)
WRONG = InterferenceCost(alpha_p=2e-2, alpha_d=2e-3, beta_p=15e-6, b_d=2.5e-4, k_d=3e-8, kappa=1.0)


def report(
    seconds: float, prefill: int, decodes: int, context: int, iterations: int = 1
) -> StepReport:
    """A step of equal iterations; prompts are short, so Q does not matter."""
    durations = (seconds,) * iterations
    return StepReport(
        0.0, seconds * iterations, durations, iterations, prefill, 0.0, decodes, context,
        decodes + 1, (), 0, (), (), (), False, 0,
    )  # fmt: skip


def serve(
    learner: OnlineCost,
    engine: CostModel,
    kinds: str,
    rows: int,
    *,
    noise: float = 0.0,
    sizes: tuple[int, int] = (1, 512),
    seed: int = 0,
) -> None:
    """Let `learner` watch iterations of the given kinds ("p", "d", "m") of random size."""
    rng = random.Random(seed)
    for _ in range(rows):
        kind = rng.choice(kinds)
        decodes = round(math.exp(rng.uniform(*map(math.log, sizes)))) if kind != "p" else 0
        prefill = round(math.exp(rng.uniform(4.0, 9.5))) if kind != "d" else 0
        context = decodes * rng.randrange(200, 2000)
        seconds = engine.seconds(prefill, 0.0, decodes, context)
        seconds *= math.exp(rng.gauss(0.0, noise))
        learner.observe(report(seconds, prefill, decodes, context))


def test_starts_at_the_prior() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    for composition in ((2000, 0.0, 0, 0), (0, 0.0, 64, 64_000), (2000, 0.0, 64, 64_000)):
        assert learner.seconds(*composition) == pytest.approx(TRUE.seconds(*composition))
    assert learner.seconds(0, 0.0, 0, 0) == 0.0


def test_any_cost_model_serves_as_a_prior() -> None:
    paper = LinearCost(alpha_p=1e-3, beta_p=2e-5, alpha_d=5e-3, beta_d=4e-5, a=2e-5, b=3e-5)
    learner = OnlineCost(Prior.of(paper))
    assert learner.alpha_prefill == pytest.approx(1e-3)
    assert learner.seconds(4096, 0.0, 0, 0) == pytest.approx(paper.seconds(4096, 0.0, 0, 0))
    assert learner.seconds(0, 0.0, 50, 9_000) == pytest.approx(paper.seconds(0, 0.0, 50, 9_000))


@pytest.mark.parametrize("prior", [Prior.of(WRONG), Prior.unknown()], ids=["wrong", "unknown"])
def test_finds_every_constant_of_a_noisy_engine(prior: Prior) -> None:
    learner = OnlineCost(prior)
    serve(learner, TRUE, "pdm", 3000, noise=0.03)
    found = learner.constants
    truth = dict(zip(NAMES, Prior.of(TRUE).constants, strict=True))
    for name in ("alpha_p", "beta_p", "alpha_d", "b_d", "k_d", "alpha_m", "beta_m", "k_m"):
        assert found[name] == pytest.approx(truth[name], rel=0.12), name
    assert found["flip"] < 0.1 * found["alpha_p"]
    assert learner.sigma[DECODE] == pytest.approx(0.03, rel=0.5)


def test_a_prior_of_zeros_does_not_stay() -> None:
    # What a noisy calibration may say: all that work costs was put down to the fixed part.
    nothing = InterferenceCost(alpha_p=1e-2, alpha_d=1e-2, beta_p=0.0, b_d=0.0, k_d=0.0)
    learner = OnlineCost(Prior.of(nothing))
    serve(learner, TRUE, "pdm", 3000, noise=0.03)
    assert all(np.isfinite(value) for value in learner.constants.values())
    for amounts in ((1024, 1e6, 0, 0), (0, 0, 64, 32_000), (512, 2e5, 64, 32_000)):
        assert learner.seconds(*amounts) == pytest.approx(TRUE.seconds(*amounts), rel=0.2)


def test_a_few_iterations_are_enough_for_the_first_choice() -> None:
    learner = OnlineCost(Prior.of(WRONG))
    serve(learner, TRUE, "pdm", 90, noise=0.03)
    for composition in ((4000, 0.0, 0, 0), (0, 0.0, 200, 200_000), (4000, 0.0, 200, 200_000)):
        assert learner.seconds(*composition) == pytest.approx(TRUE.seconds(*composition), rel=0.1)


def test_constants_are_never_negative() -> None:
    learner = OnlineCost(Prior.unknown())
    free = InterferenceCost(alpha_p=0.0, alpha_d=1e-3, beta_p=1e-6, b_d=0.0, k_d=0.0)
    serve(learner, free, "pdm", 500, noise=0.3)
    assert all(value >= 0.0 for value in learner.constants.values())


def test_small_batches_are_remembered_while_only_large_ones_run() -> None:
    learner = OnlineCost(Prior.of(WRONG))
    serve(learner, TRUE, "d", 100, noise=0.03, sizes=(1, 512))
    serve(learner, TRUE, "d", 40_000, noise=0.03, sizes=(480, 512))
    assert learner["alpha_d"] == pytest.approx(TRUE.alpha_d, rel=0.1)


def test_outliers_do_not_matter() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    serve(learner, TRUE, "pdm", 500, noise=0.02)
    for _ in range(20):
        serve(learner, TRUE, "pdm", 50, noise=0.02)
        learner.observe(report(5.0, 0, 100, 100_000))
    assert learner["alpha_d"] == pytest.approx(TRUE.alpha_d, rel=0.1)
    assert learner["k_d"] == pytest.approx(TRUE.k_d, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_clock_that_went_wrong_is_ignored(seconds: float) -> None:
    learner = OnlineCost(Prior.of(TRUE))
    for _ in range(100):
        learner.observe(report(seconds, 512, 0, 0))
    assert learner.constants == OnlineCost(Prior.of(TRUE)).constants


def test_an_engine_that_changes_is_noticed_at_once() -> None:
    """Interference from none to five-fold, as when another model moves in beside this one."""
    calm = InterferenceCost(5e-3, 8e-3, 40e-6, 50e-6, 1e-7, kappa=1.0)
    rough = InterferenceCost(5e-3, 8e-3, 40e-6, 50e-6, 1e-7, kappa=5.0)
    learner = OnlineCost(Prior.of(calm))
    serve(learner, calm, "pdm", 3000, noise=0.03)
    assert learner.drifts == 0
    serve(learner, rough, "pdm", 150, noise=0.03, sizes=(64, 512))
    assert learner.drifts >= 1
    assert learner["k_m"] / learner["k_d"] == pytest.approx(5.0, rel=0.15)


def test_the_price_of_going_from_prefill_to_decode_is_found() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    rng = random.Random(1)
    for _ in range(200):
        tokens, decodes = rng.randrange(500, 4000), rng.randrange(50, 200)
        learner.observe(report(TRUE.seconds(tokens, 0.0, 0, 0), tokens, 0, 0))
        decode = TRUE.seconds(0, 0.0, decodes, 500 * decodes)
        learner.observe(report(decode + 6e-3, 0, decodes, 500 * decodes))
        for _ in range(3):
            learner.observe(report(decode, 0, decodes, 500 * decodes))
    assert learner["flip"] == pytest.approx(6e-3, rel=0.05)


def test_what_is_not_seen_stays_uncertain() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    of_mixed = [0.0] * len(NAMES)
    of_mixed[NAMES.index("k_m")] = 100_000.0
    of_decode = [0.0] * len(NAMES)
    of_decode[NAMES.index("k_d")] = 100_000.0
    serve(learner, TRUE, "d", 500, noise=0.02)
    assert learner.error_of(of_decode) < 0.05 * learner["k_d"] * 100_000
    assert learner.error_of(of_mixed) > 0.2 * learner["k_m"] * 100_000
    serve(learner, TRUE, "m", 500, noise=0.02)
    assert learner.error_of(of_mixed) < 0.1 * learner["k_m"] * 100_000


def test_jumped_iterations_teach_the_same_as_single_ones() -> None:
    """Decode-only iterations come in one step or one by one (I6)."""
    at_once, single = OnlineCost(Prior.of(WRONG)), OnlineCost(Prior.of(WRONG))
    rng = random.Random(3)
    for _ in range(300):
        decodes, context, count = rng.randrange(1, 99), rng.randrange(99, 9999), rng.randrange(1, 9)
        durations = [
            TRUE.seconds(0, 0.0, decodes, context + i * decodes) * rng.uniform(0.9, 1.1)
            for i in range(count)
        ]
        whole = report(0.0, 0, decodes, context, count)
        whole.durations = durations
        at_once.observe(whole)
        for i, seconds in enumerate(durations):
            single.observe(report(seconds, 0, decodes, context + i * decodes))
    assert at_once.constants == single.constants
    assert at_once.rows == single.rows
    assert at_once.rows[PREFILL] == at_once.rows[MIXED] == 0


def test_says_for_how_long_constants_stand() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    rng = random.Random(4)
    for _ in range(500):
        steady, version = learner.steady_for, learner.version
        for i in range(steady):
            assert learner.version == version, f"changed after {i} of {steady} iterations"
            learner.observe(report(rng.uniform(0.01, 0.02), 0, 8, 4000))


def test_a_prior_is_confirmed_once_iterations_agree_with_it() -> None:
    learner = OnlineCost(Prior.of(TRUE))
    assert not learner.confirmed
    serve(learner, TRUE, "p", 2, noise=0.05)
    assert not learner.confirmed, "no decode was seen"
    serve(learner, TRUE, "d", 4, noise=0.05)
    assert learner.confirmed
    serve(learner, WRONG, "m", 4)
    assert not learner.confirmed, "mixed iterations take something else"


@pytest.mark.parametrize("prior", [Prior.of(WRONG), Prior.unknown()])
def test_a_guess_is_never_confirmed(prior: Prior) -> None:
    learner = OnlineCost(prior)
    for _ in range(20):
        serve(learner, TRUE, "pdm", 1)
        assert not learner.confirmed
