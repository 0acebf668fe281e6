"""The numbers of a run, checked by hand and against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_run import hand_record

from phasegate.report.summary import quantiles, stats, summarise, to_json


def test_every_key_of_schema_1_is_there_and_no_other() -> None:
    document = json.loads(to_json([summarise(hand_record())]))
    five = {"mean", "p50", "p90", "p99", "max"}
    assert document["schema"] == 1
    run = document["runs"][0]
    keys = {key: set(value) if isinstance(value, dict) else None for key, value in run.items()}
    assert keys == {
        "policy": None,
        "profile": None,
        "workload": None,
        "requests": {"submitted", "finished", "rejected", "aborted"},
        "duration_s": None,
        "throughput": {"requests_s", "prompt_tokens_s", "output_tokens_s", "total_tokens_s"},
        "ttft_s": five,
        "itl_s": five,
        "tpot_s": five,
        "e2e_s": five,
        "iterations": {"prefill", "decode", "mixed"},
        "preemptions": None,
        "recomputed_tokens": None,
        "kv": {"capacity_tokens", "peak_tokens", "mean_utilisation"},
        "slots": {"mean_busy"},
        "final": {"k", "n", "mode"},
    }


def test_counts_and_throughput_of_the_run_by_hand() -> None:
    run = summarise(hand_record())
    assert run["requests"] == {"submitted": 4, "finished": 2, "rejected": 1, "aborted": 1}
    assert run["throughput"] == {
        "requests_s": pytest.approx(0.2),
        "prompt_tokens_s": pytest.approx(30.0),
        "output_tokens_s": pytest.approx(0.6),
        "total_tokens_s": pytest.approx(30.6),
    }
    assert run["iterations"] == {"prefill": 1, "decode": 3, "mixed": 0}
    assert run["preemptions"] == 1
    assert run["recomputed_tokens"] == 201


def test_latencies_of_the_run_by_hand() -> None:
    run = summarise(hand_record())
    assert run["ttft_s"]["mean"] == pytest.approx((2.0 + 1.5) / 2)
    assert run["e2e_s"]["max"] == pytest.approx(7.5)
    assert run["tpot_s"]["mean"] == pytest.approx((1.0 + 6.0 / 3) / 2)
    # gaps: request 0 [1], request 1 [1, 2, 3]
    assert run["itl_s"]["mean"] == pytest.approx(7 / 4)
    assert run["itl_s"]["p50"] == pytest.approx(1.5)
    assert run["itl_s"]["max"] == 3.0


def test_means_over_time_count_the_idle_seconds() -> None:
    run = summarise(hand_record())
    kv_seconds = 300 * 2 + 302 * 1 + 202 * 2 + 203 * 3
    assert run["kv"] == {
        "capacity_tokens": 1000,
        "peak_tokens": 302,
        "mean_utilisation": pytest.approx(kv_seconds / (1000 * 10)),
    }
    assert run["slots"]["mean_busy"] == pytest.approx((2 * 2 + 2 * 1 + 1 * 2 + 1 * 3) / 10)


def test_final_n_is_what_the_engine_can_run() -> None:
    assert summarise(hand_record())["final"] == {"k": 1, "n": 8, "mode": "exclusive"}


def test_a_run_without_requests_has_nulls_and_no_nan() -> None:
    record = hand_record()
    for table in (record.requests, record.iterations):
        for name in table:
            table[name] = table[name][:0]
    record.itl = lambda: (np.empty(0), np.empty(0, dtype=np.int64))  # type: ignore[method-assign]
    record.decisions.clear()
    record.duration = 0.0
    run = summarise(record)
    assert run["ttft_s"]["mean"] is None
    assert run["throughput"]["requests_s"] is None
    assert run["final"] == {"k": None, "n": None, "mode": None}
    assert "NaN" not in to_json([run])


def test_one_output_token_has_no_tpot() -> None:
    record = hand_record()
    record.requests["output"][:] = 1
    assert summarise(record)["tpot_s"]["mean"] is None


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_weighted_quantiles_equal_those_of_the_repeated_sample(size: int) -> None:
    random = np.random.default_rng(size)
    values, weights = random.exponential(size=size), random.integers(1, 9, size)
    shares = np.linspace(0, 1, 37)
    expected = np.quantile(np.repeat(values, weights), shares)
    assert quantiles(values, weights, shares) == pytest.approx(expected, rel=1e-12)


def test_values_of_weight_zero_do_not_count() -> None:
    assert stats(np.array([1.0, 99.0]), np.array([3, 0]))["max"] == 1.0
    assert stats(np.array([1.0]), np.array([0]))["mean"] is None
