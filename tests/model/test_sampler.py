"""Sampling: the right distribution, repeatable, and independent of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from phasegate.errors import InputError
from phasegate.model.generation import Generation
from phasegate.model.params import SamplingParams
from phasegate.model.sampler import Sampler, uniforms

CPU = torch.device("cpu")
LOGITS = torch.tensor([1.0, 0.0, 3.0, 2.0, -1.0, 2.5])


def generation(generated: int = 0, **params: object) -> Generation:
    made = Generation([1], SamplingParams(**params))  # type: ignore[arg-type]
    made.output = [0] * generated
    return made


def draws(count: int, logits: torch.Tensor = LOGITS, **params: object) -> np.ndarray:
    rows = [generation(i, seed=7, **params) for i in range(count)]
    return Sampler(rows, CPU).pick(logits.expand(count, -1).clone()).numpy()


def test_uniform_numbers_are_uniform_and_repeatable() -> None:
    seeds, counts = np.zeros(6_000, np.uint64), np.arange(6_000, dtype=np.uint64)
    u = uniforms(seeds, counts)
    assert stats.kstest(u, "uniform").pvalue > 0.01
    assert (u == uniforms(seeds, counts)).all()
    other = uniforms(seeds + np.uint64(1), counts)
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature: float) -> None:
    expected = torch.softmax(LOGITS.double() / temperature, dim=-1).numpy() * 6_000
    counts = np.bincount(draws(6_000, temperature=temperature), minlength=6)
    assert stats.chisquare(counts, expected).pvalue > 0.01


def test_top_k_keeps_the_k_most_likely() -> None:
    p = torch.softmax(LOGITS[[2, 5, 3]].double(), dim=-1).numpy() * 6_000
    counts = np.bincount(draws(6_000, top_k=3), minlength=6)
    assert stats.chisquare(counts[[2, 5, 3]], p).pvalue > 0.01
    assert counts[[0, 1, 4]].sum() == 0


def test_top_p_keeps_the_smallest_set_that_holds_p() -> None:
    # probabilities in order: 0.45 (token 2), 0.27 (5), 0.17 (3), ...
    counts = np.bincount(draws(5_000, top_p=0.5), minlength=6)
    assert (counts[[2, 5]] > 0).all()
    assert counts[[0, 1, 3, 4]].sum() == 0
    assert (draws(100, top_p=0.4) == 2).all()


def test_top_p_over_a_large_vocabulary_is_the_same_with_few_and_with_all_candidates() -> None:
    generator = torch.Generator().manual_seed(0)
    peaked = 4.0 * torch.randn(5_000, generator=generator)
    picked = draws(2_000, peaked, top_p=0.9)
    order = torch.softmax(peaked, -1).sort(descending=True)
    allowed = order.indices[: int((order.values.cumsum(0) < 0.9).sum()) + 1].numpy()
    assert np.isin(picked, allowed).all()
    flat = 0.01 * torch.randn(5_000, generator=generator)  # 256 candidates do not hold 0.9
    assert len(np.unique(draws(2_000, flat, top_p=0.9))) > 1_000


def test_greedy_and_sampled_rows_share_a_batch_without_touching_each_other() -> None:
    rows = [
        generation(temperature=0.0),
        generation(3, seed=1),
        generation(3, seed=1, top_k=2),
        generation(3, seed=2, top_p=0.7),
        generation(top_k=1),
    ]
    together = Sampler(rows, CPU).pick(LOGITS.expand(5, -1).clone()).tolist()
    alone = [Sampler([row], CPU).pick(LOGITS[None].clone()).item() for row in rows]
    assert together == alone
    assert together[0] == together[4] == 2


def test_every_generation_without_a_seed_gets_its_own() -> None:
    assert generation().seed != generation().seed
    assert generation(seed=5).seed == 5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ["a", ""]}, "stop holds an empty text"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": [5]}, "stop is 5; it must be a text"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"top_k": "x"}, "top_k is 'x'"),
        ({"temperature": "warm"}, "temperature is 'warm'; it must be a number"),
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**params)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"temperature": 1e-300}, {"top_p": 1e-300}])
def test_next_to_nothing_picks_the_most_likely(params: dict[str, float]) -> None:
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(0))
    picked = Sampler([generation(seed=3, **params)], torch.device("cpu")).pick(logits)
    assert picked.tolist() == [int(logits.argmax())]
