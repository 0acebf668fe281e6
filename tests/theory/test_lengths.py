"""Length laws: moments in closed form against draws, and the law as a value."""

from __future__ import annotations

import numpy as np
import pytest
from decode_world import geometric, lognormal, uniform
from scipy import stats

from phasegate.errors import InputError
from phasegate.theory import LengthLaw, raw_moments


@pytest.mark.parametrize(
    ("law", "mean", "shape", "exact"),
    [
        ("uniform", 100.0, 0.5, stats.uniform(50, 100)),
        ("geometric", 12.0, 0.0, stats.geom(1 / 12)),
        ("gamma", 30.0, 0.5, stats.gamma(0.5, scale=60)),
        ("lognormal", 50.0, 1.0, stats.lognorm(np.sqrt(np.log(2)), scale=50 / np.sqrt(2))),
    ],
)
def test_raw_moments_against_scipy(law: str, mean: float, shape: float, exact) -> None:
    assert raw_moments(law, mean, shape) == pytest.approx([exact.moment(r) for r in (1, 2, 3, 4)])


def test_raw_moments_of_lengths_that_are_all_the_same() -> None:
    assert raw_moments("fixed", 7.0) == (7, 49, 343, 2401)
    assert raw_moments("uniform", 7.0, 0.0) == (7, 49, 343, 2401)
    assert raw_moments("geometric", 1.0) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    "bad", [("weibull", 5, 1), ("uniform", 5, 2), ("gamma", 5, 0), ("geometric", 0.5, 0)]
)
def test_raw_moments_refuse_what_is_no_law(bad) -> None:
    with pytest.raises(InputError):
        raw_moments(*bad)


class TestLengthLaw:
    """A distribution as weighted lengths."""

    def test_merges_equal_lengths(self) -> None:
        law = LengthLaw.of([3, 1, 3, 5])
        assert law.values.tolist() == [1, 3, 5]
        assert law.weights.tolist() == [0.25, 0.5, 0.25]
        assert (law.mean, law.moment(2)) == (3.0, 11.0)

    def test_survival_is_strictly_longer(self) -> None:
        law = LengthLaw.of([1, 2, 2, 4])
        at = np.array([0.0, 1, 1.5, 2, 4])
        assert law.survival(at).tolist() == [1.0, 0.75, 0.75, 0.25, 0.0]

    def test_from_survival_and_back(self) -> None:
        law = LengthLaw.of(geometric(20)(np.random.default_rng(1), 5000))
        again = LengthLaw.from_survival(law.survival(np.arange(500.0)))
        assert again.mean == pytest.approx(law.mean)
        assert again.values == pytest.approx(law.values)

    @pytest.mark.parametrize("draw", [geometric(50), uniform(50), lognormal(50, 1.0)])
    def test_cycles_count_the_phases_a_request_lives_through(self, draw) -> None:
        outputs = draw(np.random.default_rng(2), 4000)
        taus = np.array([1.0, 7.0, 20.0, 500.0])
        expected = [np.mean([-(-o // t) for o in outputs.tolist()]) for t in (1, 7, 20, 500)]
        assert LengthLaw.of(outputs).cycles(taus) == pytest.approx(expected)

    def test_compress_keeps_mean_and_shape(self) -> None:
        law = LengthLaw.of(lognormal(200, 1.0)(np.random.default_rng(3), 20_000))
        small = law.compress(64)
        assert small.values.size <= 64
        assert small.mean == pytest.approx(law.mean)
        ages = np.array([50.0, 100, 200, 400])
        assert small.survival(ages) == pytest.approx(law.survival(ages), abs=0.02)

    @pytest.mark.parametrize("survival", [[0.5, 0.7], [1.5, 0.2], []])
    def test_refuses_what_is_no_survival_function(self, survival) -> None:
        with pytest.raises(InputError):
            LengthLaw.from_survival(survival)

    def test_refuses_no_lengths(self) -> None:
        with pytest.raises(InputError, match="at least one length"):
            LengthLaw.of([])
        with pytest.raises(InputError, match="weights"):
            LengthLaw.of([1, 2], [0, 0])
