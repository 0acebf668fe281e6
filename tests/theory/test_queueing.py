"""The worked examples of THEORY section 8, and what they rest on."""

from __future__ import annotations

import numpy as np
import pytest
from decode_world import geometric

from phasegate.errors import InputError
from phasegate.theory import (
    LengthLaw,
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


def test_static_batch_of_512_32_and_128() -> None:
    """Request B's slot idles 480/512 of the time, the whole batch 56 %."""
    lengths = [512, 32, 128]
    assert static_idle_shares(lengths)[1] == pytest.approx(480 / 512)
    assert static_idle_share(lengths) == pytest.approx(0.5625)


def test_static_batch_of_16_slots_mean_64() -> None:
    """87.5 % idle only if the batch holds a 512."""
    with_512 = [512] + [512 / 15] * 15
    assert np.mean(with_512) == 64
    assert static_idle_share(with_512) == pytest.approx(0.875)
    assert static_idle_share([64] * 16) == 0.0


def test_expected_longest_against_drawing_batches() -> None:
    law = LengthLaw.of(geometric(64)(np.random.default_rng(1), 5000))
    rng = np.random.default_rng(2)
    batches = rng.choice(law.values, (20_000, 16), p=law.weights)
    assert expected_longest(law, 16) == pytest.approx(batches.max(axis=1).mean(), rel=0.01)
    assert expected_longest(law, 1) == pytest.approx(law.mean)


def test_gain_of_continuous_batching() -> None:
    """5x needs a longest request of several times the mean: 16 geometric ones give 3.3x, one in
    a hundred that is a hundred times as long gives more."""
    geometric_law = LengthLaw.from_survival(lambda t: (1 - 1 / 64) ** t)
    assert continuous_gain(geometric_law, 16) == pytest.approx(3.4, abs=0.1)
    assert continuous_gain(LengthLaw.of([10, 1000], [0.99, 0.01]), 64) > 5


def test_itl_bound() -> None:
    """16 slots at 30 ms between tokens: at most 533 tokens/s."""
    assert token_rate_bound(16, 0.030) == pytest.approx(533, abs=1)


def test_chunked_prefill_spreads_the_stall() -> None:
    """2,048 tokens in one iteration of 200 ms, or in 4 x 512."""
    assert prefill_stall(0.2) == 0.2
    assert prefill_stall(0.2, chunks=4) == pytest.approx(0.05)


def test_littles_law_on_a_simulated_queue() -> None:
    """One server, Poisson arrivals at 0.7/s, exponential service of 1 s: requests in the system,
    averaged over time, are arrivals per second times seconds in the system."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / 0.7, 40_000))
    services = rng.exponential(1.0, 40_000)
    ends = np.empty(40_000)
    free = 0.0
    for i, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        free = max(free, arrival) + service
        ends[i] = free
    grid = np.linspace(0, arrivals[-1], 200_000)
    present = np.searchsorted(arrivals, grid) - np.searchsorted(ends, grid)
    seconds = float((ends - arrivals).mean())
    assert concurrency(40_000 / arrivals[-1], seconds) == pytest.approx(present.mean(), rel=0.01)
    assert residence(0.7, concurrency(0.7, seconds)) == pytest.approx(seconds)


def test_replicas() -> None:
    assert replicas(10.0, 4.0) == 3
    assert replicas(12.0, 4.0) == 3
    assert replicas(0.0, 4.0) == 1


@pytest.mark.parametrize(
    "broken",
    [
        lambda: static_idle_share([]),
        lambda: token_rate_bound(4, 0.0),
        lambda: prefill_stall(1.0, 0),
        lambda: residence(0.0, 3.0),
        lambda: replicas(1.0, 0.0),
        lambda: expected_longest(LengthLaw.of([1]), 0),
    ],
)
def test_nonsense_is_refused(broken) -> None:
    with pytest.raises(InputError):
        broken()
