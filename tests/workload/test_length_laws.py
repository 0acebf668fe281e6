"""Length laws: whole numbers >= 1 whose mean is the one asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasegate.errors import WorkloadError
from phasegate.workload.lengths import (
    MAX_LENGTH,
    Empirical,
    Fixed,
    Gamma,
    Geometric,
    Lognormal,
    Uniform,
    canonical_law,
    format_number,
    parametric_law,
)

N = 200_000


def draws(law, seed=1, n=N):
    return law.sample(np.random.default_rng(seed), n)


@pytest.mark.parametrize("mean", [1.2, 2, 3.5, 17, 256, 1024.25])
@pytest.mark.parametrize(
    "text",
    [
        "uniform:0.5",
        "uniform:1",
        "geometric",
        "lognormal:0.3",
        "lognormal:1.5",
        "gamma:0.5",
        "gamma:4",
    ],
)
def test_the_sample_mean_converges_to_the_mean_without_rounding_bias(text, mean):
    law = parametric_law(text, mean)
    values = draws(law)
    assert values.dtype == np.int64
    assert values.min() >= 1
    assert law.mean == mean
    # five standard errors: an honest law fails once in two million tries, half a token never passes
    assert abs(values.mean() - mean) < 5 * max(values.std(), 0.5) / np.sqrt(N)


def test_fixed_is_fixed():
    assert set(draws(Fixed(512), n=100)) == {512}


def test_uniform_half_of_512_spans_256_to_768():
    values = draws(Uniform(512, 0.5))
    assert (values.min(), values.max()) == (256, 768)
    assert values.std() == pytest.approx(512 / np.sqrt(12), rel=0.01)


def test_geometric_has_the_exact_probabilities_of_a_constant_hazard():
    p = 1 / 3
    share = np.bincount(draws(Geometric(3)), minlength=6)[1:6] / N
    exact = p * (1 - p) ** np.arange(5)
    assert np.abs(share - exact).max() < 0.005


@pytest.mark.parametrize("cv", [0.3, 1.0])
def test_lognormal_has_the_coefficient_of_variation_it_is_named_by(cv):
    values = draws(Lognormal(300, cv))
    assert values.std() / values.mean() == pytest.approx(cv, rel=0.03)


def test_gamma_of_shape_4_has_half_the_spread_of_an_exponential():
    values = draws(Gamma(500, 4))
    assert values.std() / values.mean() == pytest.approx(0.5, rel=0.02)


def test_empirical_draws_only_what_was_observed():
    law = Empirical([3, 9, 9, 30])
    values = draws(law)
    assert law.mean == 12.75
    assert set(values) == {3, 9, 30}
    assert (values == 9).mean() == pytest.approx(0.5, abs=0.01)


def test_a_mean_of_one_token_leaves_no_room_for_chance():
    for text in ("uniform:0.5", "geometric", "gamma:2"):
        assert set(draws(parametric_law(text, 1), n=50)) == {1}


def test_no_length_exceeds_the_limit_however_heavy_the_tail():
    assert draws(Lognormal(MAX_LENGTH, 10), n=1000).max() == MAX_LENGTH


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" Uniform:.50 ", "uniform:0.5"),
        ("fixed", "fixed"),
        ("GEOMETRIC", "geometric"),
        ("gamma: 4.0", "gamma:4"),
        ("empirical:Some/File.csv", "empirical:Some/File.csv"),
    ],
)
def test_a_law_has_one_canonical_text(text, canonical):
    assert canonical_law(text) == canonical


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("normal", "no length law; known: fixed, uniform"),
        ("", "no length law"),
        ("uniform", "needs a number"),
        ("uniform:", "needs a number"),
        ("uniform:half", "needs a number"),
        ("uniform:1.5", "at most 1"),
        ("uniform:0", "above 0"),
        ("lognormal:nan", "has to be above 0"),
        ("lognormal:-1", "has to be above 0"),
        ("gamma:inf", "at most 1000000"),
        ("gamma:1e-320", "above 0.001"),
        ("geometric:2", "takes no parameter"),
        ("fixed:", "takes no parameter"),
        ("empirical:", "names no file"),
    ],
)
def test_a_law_that_makes_no_sense_is_explained_in_one_line(text, complaint):
    with pytest.raises(WorkloadError, match=complaint) as error:
        canonical_law(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mean", [0, 0.99, -5, float("nan"), float("inf"), 1e9])
def test_a_mean_has_to_be_a_length(mean):
    with pytest.raises(WorkloadError, match="outside 1 to 100000000"):
        parametric_law("geometric", mean)


def test_a_fixed_length_is_a_whole_number():
    with pytest.raises(WorkloadError, match=r"12\.5 tokens is not a whole number"):
        parametric_law("fixed", 12.5)


def test_a_lognormal_needs_room_above_one_token():
    with pytest.raises(WorkloadError, match="mean above 1"):
        parametric_law("lognormal:1", 1)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([], "at least one"),
        ([[1, 2]], "at least one"),
        ([4, 0], "number 2 is 0"),
        ([4.5], "number 1 is 4.5"),
        ([float("nan")], "needs numbers"),
        (["a"], "needs numbers"),
        ([MAX_LENGTH + 1], "whole number from 1"),
    ],
)
def test_empirical_samples_have_to_be_lengths(samples, complaint):
    with pytest.raises(WorkloadError, match=complaint):
        Empirical(samples)


@given(st.floats(allow_nan=False))
def test_a_formatted_number_reads_back_as_the_same_number(value):
    assert float(format_number(value)) == value
