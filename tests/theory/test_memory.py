"""Memory-safe N: moments and overflow probability against simulated servers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from decode_world import Draw, geometric, lognormal, uniform

from phasegate.errors import InputError
from phasegate.theory import SlotLoad, memory_safe_n, paper_memory_safe_n, raw_moments

LAWS = {
    "uniform": (uniform, "uniform", 0.5),
    "geometric": (geometric, "geometric", 0.0),
    "lognormal": (lambda mean: lognormal(mean, 1.0), "lognormal", 1.0),
}


def kv_over_time(
    prompts: Draw, outputs: Draw, n: int, k: int, rng: np.random.Generator, servers: int, steps: int
) -> np.ndarray:
    """KV tokens in use in `servers` independent servers of n slots under EB(k) (k = 1: refilled
    at once, as mixed batching does), from steady state, at `steps` moments of decoding."""
    shape = (servers, n)
    pool = outputs(rng, 100_000)
    time = np.cumsum(pool)
    # Length-biased outputs at uniform ages: where a busy server is, whatever its past.
    output = pool[np.searchsorted(time, rng.random(shape) * time[-1])]
    age = rng.integers(1, output + 1)
    prompt = prompts(rng, servers * n).reshape(shape)
    used = []
    for _ in range(steps):
        gone = age >= output
        refill = gone & ((gone.sum(axis=1) >= k)[:, None])
        count = int(refill.sum())
        output[refill] = outputs(rng, count)
        prompt[refill] = prompts(rng, count)
        age[refill] = 0
        used.append(np.where(gone & ~refill, 0, prompt + age).sum(axis=1))
        age += 1
    return np.concatenate(used)


class TestSlotLoad:
    """Moments of what one running request holds."""

    @pytest.mark.parametrize("law", LAWS)
    def test_against_slots_that_run(self, law: str) -> None:
        draw, name, shape = LAWS[law]
        rng = np.random.default_rng(1)
        seen = kv_over_time(uniform(100), draw(80), 1, 1, rng, 30_000, 40)
        load = SlotLoad.from_laws(100, 80, "uniform", name, 0.5, shape)
        assert load.mean == pytest.approx(seen.mean(), rel=0.02)
        assert math.sqrt(load.variance) == pytest.approx(seen.std(), rel=0.05)
        if law != "lognormal":  # its third moment needs more samples than a test has
            third = ((seen - seen.mean()) ** 3).mean()
            assert load.third == pytest.approx(third, rel=0.15)

    def test_samples_and_closed_forms_agree(self) -> None:
        rng = np.random.default_rng(2)
        prompts, outputs = uniform(300)(rng, 300_000), geometric(120)(rng, 300_000)
        drawn = SlotLoad.from_samples(prompts, outputs)
        exact = SlotLoad.from_laws(300, 120, "uniform", "geometric", 0.5)
        assert drawn.mean == pytest.approx(exact.mean, rel=0.01)
        assert drawn.variance == pytest.approx(exact.variance, rel=0.03)
        assert drawn.third == pytest.approx(exact.third, rel=0.1)
        assert drawn.mean_error < 0.01 * exact.mean

    def test_mean_error_is_the_spread_of_the_estimate(self) -> None:
        rng = np.random.default_rng(3)
        loads = [
            SlotLoad.from_samples(uniform(300)(rng, 400), geometric(120)(rng, 400))
            for _ in range(300)
        ]
        spread = np.std([load.mean for load in loads])
        assert np.mean([load.mean_error for load in loads]) == pytest.approx(spread, rel=0.15)

    def test_long_prompts_with_long_outputs_need_more(self) -> None:
        """Correlation counts: it is in the samples, not in separate moments."""
        lengths = np.array([10.0, 1000.0])
        together = SlotLoad.from_samples(lengths, lengths)
        crossed = SlotLoad.from_samples(lengths, lengths[::-1])
        assert together.mean > crossed.mean

    def test_the_last_page_is_half_full(self) -> None:
        plain, paged = (SlotLoad.from_laws(512, 256, page=page) for page in (1, 16))
        assert paged.mean - plain.mean == pytest.approx(7.5)


class TestOverflow:
    """P(N requests need more than C) <= eps = 0.01."""

    @pytest.mark.parametrize("law", LAWS)
    @pytest.mark.parametrize(("prompt", "output"), [(100, 100), (200, 25), (50, 400)])
    def test_independent_slots(self, law: str, prompt: int, output: int) -> None:
        """Issue: at most 3 eps nearly everywhere (the full grid is benchmarks/memory_safe.py).
        Neither too many requests nor too few: 5 % more of them would overflow."""
        draw, name, shape = LAWS[law]
        rng = np.random.default_rng(4)
        capacity = 12_000
        load = SlotLoad.from_laws(prompt, output, "uniform", name, 0.5, shape)
        n = memory_safe_n(load, capacity)
        used = kv_over_time(uniform(prompt), draw(output), n, 1, rng, 8_000, 1)
        assert (used > capacity).mean() <= 0.0155
        more = n + max(2, n // 20)
        used = kv_over_time(uniform(prompt), draw(output), more, 1, rng, 4_000, 1)
        assert (used > capacity).mean() > 0.01

    @pytest.mark.parametrize("k", [1, 5, 20])
    def test_exclusive_phases_need_no_more(self, k: int) -> None:
        """EB(k) holds up to k slots empty, and its requests are not older for it."""
        rng = np.random.default_rng(5)
        load = SlotLoad.from_laws(100, 60, "uniform", "geometric", 0.5)
        n = memory_safe_n(load, 12_000)
        used = kv_over_time(uniform(100), geometric(60), n, k, rng, 400, 250)[400 * 100 :]
        assert (used > 12_000).mean() <= 0.013

    def test_few_samples_leave_a_margin(self) -> None:
        """N from 200 requests instead of the true law: on average over such N, it still holds."""
        rng = np.random.default_rng(6)
        capacity, overflow = 12_000, []
        for _ in range(16):
            load = SlotLoad.from_samples(uniform(100)(rng, 200), uniform(100)(rng, 200))
            n = memory_safe_n(load, capacity)
            used = kv_over_time(uniform(100), uniform(100), n, 1, rng, 2000, 1)
            overflow.append((used > capacity).mean())
        assert np.mean(overflow) <= 0.02


class TestEquation6:
    """The paper's N."""

    def test_by_hand(self) -> None:
        """C 100k, mu_L 500, p0 0.01, theta 1/2: (100000 - ln(100)/0.05) / (500 + 100*ln 2)."""
        expected = math.floor((100_000 - math.log(100) / 0.05) / (500 + 100 * math.log(2)))
        assert paper_memory_safe_n(100_000, 500, 0.01, 0.5) == expected

    def test_its_margin_can_exceed_the_cache(self) -> None:
        """Long outputs after short prompts: the margin alone is 1/(p0^2*mu_L) = 160k tokens."""
        assert paper_memory_safe_n(100_000, 128, 1 / 5000, 0.1) == 1

    def test_overflows_where_ours_does_not(self) -> None:
        rng = np.random.default_rng(7)
        n = paper_memory_safe_n(60_000, 500, 1 / 100, 0.1)
        used = kv_over_time(uniform(500), geometric(100), n, 1, rng, 5000, 1)
        assert (used > 60_000).mean() > 0.1


def test_more_capacity_or_more_risk_never_mean_fewer_requests() -> None:
    load = SlotLoad.from_laws(512, 512)
    sizes = [memory_safe_n(load, c) for c in range(1000, 200_000, 3000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    risks = [memory_safe_n(load, 200_000, eps) for eps in (1e-6, 1e-4, 0.01, 0.1, 0.5)]
    assert risks == sorted(risks)


def test_nonsense_is_refused() -> None:
    load = SlotLoad.from_moments(raw_moments("fixed", 10), raw_moments("fixed", 10))
    with pytest.raises(InputError, match="eps"):
        memory_safe_n(load, 1000, 0.9)
    with pytest.raises(InputError, match="above 0 tokens"):
        memory_safe_n(load, 0)
    with pytest.raises(InputError, match="samples"):
        SlotLoad.from_samples([], [])
    with pytest.raises(InputError, match="theta"):
        paper_memory_safe_n(1000, 10, 0.1, 1.0)
