"""Calibration finds the constants of a runner that has known ones."""

from __future__ import annotations

import numpy as np
import pytest

from phasegate.calibrate import Design, Sample, fit_interference, measure
from phasegate.cost.model import InterferenceCost
from phasegate.engine.clock import VirtualClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.step import Batch, StepResult
from phasegate.errors import InputError
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request

RTX = InterferenceCost(
    alpha_p=4.69e-3, alpha_d=8.07e-3, beta_p=46.8e-6, b_d=56e-6, k_d=97.3e-9, kappa=3.5,
    beta_q=2e-9,
)  # fmt: skip
LIMITS = Limits(kv_capacity=200_000, slots=128, token_budget=4096, page=16)


class NoisyRunner(CostModelRunner):
    """A cost model whose times scatter, with a hiccup now and then, as real ones do."""

    def __init__(self, cost: InterferenceCost, noise: float) -> None:
        super().__init__(cost)
        self._rng = np.random.default_rng(1)
        self._noise = noise

    def run(self, batch: Batch) -> StepResult:
        result = super().run(batch)
        factor = np.exp(self._noise * self._rng.standard_normal())
        if self._noise and self._rng.random() < 0.02:
            factor *= 4.0
        return StepResult(tuple(d * factor for d in result.durations), result.finished)


def calibrate(cost: InterferenceCost, noise: float = 0.0, rounds: int = 2) -> list[Sample]:
    return measure(
        NoisyRunner(cost, noise),
        VirtualClock(),
        LIMITS,
        lambda i, prompt, max_tokens: Request(i, prompt, max_tokens),
        Design().within(LIMITS, longest=8192),
        time_limit=1e9,
        rounds=rounds,
    )


def test_finds_every_constant_of_a_noiseless_runner() -> None:
    fit = fit_interference(calibrate(RTX))
    for name in ("alpha_p", "alpha_d", "beta_p", "beta_q", "b_d", "k_d", "kappa"):
        assert getattr(fit.cost, name) == pytest.approx(getattr(RTX, name), rel=1e-6), name
    assert fit.r2 > 0.9999


@pytest.mark.parametrize("kappa", [1.0, 1.5, 3.5])
def test_tells_interference_from_its_absence_in_noise(kappa: float) -> None:
    cost = InterferenceCost(RTX.alpha_p, RTX.alpha_d, RTX.beta_p, RTX.b_d, RTX.k_d, kappa)
    fit = fit_interference(calibrate(cost, noise=0.03))
    assert fit.cost.kappa == pytest.approx(kappa, abs=0.12)
    low, high = fit.intervals["kappa"]
    assert low <= fit.cost.kappa <= high
    assert fit.cost.alpha_d == pytest.approx(cost.alpha_d, rel=0.03)
    assert fit.cost.k_d == pytest.approx(cost.k_d, rel=0.03)
    assert fit.typical < 0.03


def test_a_stall_of_the_machine_is_told_and_is_no_residual() -> None:
    calm, shaken = calibrate(RTX, noise=0.001), calibrate(RTX, noise=0.001, rounds=4)
    slow = [i for i, s in enumerate(shaken) if s.decodes == 8][:3]
    for i in slow:
        shaken[i] = shaken[i]._replace(seconds=shaken[i].seconds * 9.0)
    fit, quiet = fit_interference(shaken), fit_interference(calm)
    assert fit.stalls >= len(slow)
    assert fit.longest_stall == pytest.approx(9.0, rel=0.05)
    assert abs(fit.worst) < 0.05
    assert fit.cost.b_d == pytest.approx(quiet.cost.b_d, rel=0.05)


def test_prompt_chunks_of_all_sizes_are_measured_with_and_without_decodes() -> None:
    samples = calibrate(RTX, rounds=1)
    for decode in (False, True):
        chunks = {s.prefill_tokens for s in samples if (s.decodes > 0) == decode}
        assert chunks >= {16, 64, 256, 1024, 2048}


def test_stops_at_the_time_limit_with_enough_to_fit() -> None:
    clock = VirtualClock()
    samples = measure(
        CostModelRunner(RTX),
        clock,
        LIMITS,
        lambda i, prompt, max_tokens: Request(i, prompt, max_tokens),
        Design().within(LIMITS, longest=8192),
        time_limit=2.0,
    )
    assert clock.now() < 6.0
    assert fit_interference(samples).cost.kappa == pytest.approx(RTX.kappa, rel=0.05)


def test_leaves_nothing_behind_between_compositions() -> None:
    runner = CostModelRunner(RTX)
    samples = measure(
        runner,
        VirtualClock(),
        LIMITS,
        lambda i, prompt, max_tokens: Request(i, prompt, max_tokens),
        Design(contexts=(64, 512), decodes=(2,), chunks=(16,), starts=(0,)),
        time_limit=1e9,
        rounds=2,
    )
    kinds = {(s.decodes > 0, s.prefill_tokens > 0) for s in samples}
    assert kinds == {(False, True), (True, False), (True, True)}
    assert all(s.decodes in (0, 2) for s in samples)


def test_says_what_is_missing() -> None:
    decode = [Sample(0, 0.0, n, n * 64, 0.01) for n in (1, 2, 4)]
    with pytest.raises(InputError, match="no prefill-only iteration"):
        fit_interference(decode)
    with pytest.raises(InputError, match="kv_capacity 256 tokens"):
        Design().within(Limits(kv_capacity=256, slots=4), longest=2048)
