"""How many waiting requests fit into KV, now and as far as can be seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from policy_worlds import RTX, state, step

from phasegate.cost.model import CostModel
from phasegate.cost.online import OnlineCost, Prior
from phasegate.policy.admission import PRICE_MIN, Admission
from phasegate.policy.base import Finished, Snapshot, Started
from phasegate.policy.traffic import TrafficMonitor


def serve(
    monitor: TrafficMonitor, admission: Admission, outputs: list[int], prompt: int = 100
) -> None:
    """Requests come and go one after the other: the law of the outputs becomes known."""
    for number, output in enumerate(outputs):
        start = step(
            prefill=prompt,
            arrived=[prompt],
            started=[Started(10_000 + number, prompt, 1, prompt)],
        )
        end = step(
            decodes=1, iterations=output - 1, finished=[Finished(10_000 + number, prompt, output)]
        )
        for report in (start, end):
            monitor.observe(report)
            admission.observe(report)


def admission(cost: CostModel = RTX) -> tuple[TrafficMonitor, Admission]:
    monitor = TrafficMonitor()
    return monitor, Admission(monitor, OnlineCost(Prior.of(cost)), page=1)


def test_everything_fits_into_an_empty_cache() -> None:
    _, forecast = admission()
    now = state(waiting=[500] * 20)
    assert forecast.fit(now, 20) == 20
    assert forecast.tokens_of(3) == 1500
    assert forecast.fit(now, 5) == 5, "no more than asked for"
    assert forecast.fit(state(), 5) == 0


def test_alone_in_the_cache_a_request_always_fits() -> None:
    _, forecast = admission()
    assert forecast.fit(state(waiting=[990, 20], kv_capacity=1000), 2) == 1


def test_room_is_kept_for_outputs_to_come() -> None:
    """Twenty prompts of 400 would fit into 10,000 tokens, but not with their outputs."""
    monitor, forecast = admission()
    serve(monitor, forecast, [500] * 40)
    now = state(waiting=[400] * 20, kv_capacity=10_000)
    assert 3 < forecast.fit(now, 20) < 15


def test_short_outputs_leave_more_room_than_long_ones() -> None:
    fits = []
    for output in (10, 1000):
        monitor, forecast = admission()
        serve(monitor, forecast, [output] * 40)
        fits.append(forecast.fit(state(waiting=[400] * 40, kv_capacity=16_000), 40))
    assert fits[0] > 2 * fits[1]


def test_requests_about_to_end_leave_their_room_soon() -> None:
    """Half of the outputs have 20 tokens, half 1,000. At age 10 half of them end soon, at age 30
    none does."""
    fits = []
    for age in (10, 30):
        monitor, forecast = admission()
        serve(monitor, forecast, [20, 1000] * 30)
        running = [Started(i, 200, age, 200 + age) for i in range(20)]
        report = step(prefill=4000, started=running)
        monitor.observe(report)
        forecast.observe(report)
        context = 20 * (200 + age)
        now = state(waiting=[200] * 50, decoding=20, context=context, kv_capacity=32_000)
        fits.append(forecast.fit(now, 50))
    assert fits[0] > fits[1] + 5


def test_the_forecast_is_what_chance_says() -> None:
    """Peak of the expected KV need against a Monte Carlo of geometric outputs, mean 200."""
    rng = np.random.default_rng(0)
    monitor, forecast = admission()
    serve(monitor, forecast, np.maximum(2, rng.geometric(1 / 200, 1000)).tolist())
    running = [Started(i, 300, 1, 300) for i in range(100)]
    report = step(prefill=30_000, started=running)
    monitor.observe(report)
    forecast.observe(report)
    forecast.fit(state(waiting=[300], decoding=100, context=30_000), 1)
    lives = rng.geometric(1 / 200, (2000, 100))
    needs = [((lives > t) * (300 + t)).sum(axis=1).mean() for t in range(0, 400, 10)]
    assert forecast.peak == pytest.approx(max(needs), rel=0.06)


def test_what_is_admitted_counts_at_once() -> None:
    _, forecast = admission()
    now = state(waiting=[500] * 40, decoding=1, context=100, kv_capacity=20_000)
    first = forecast.fit(now, 40)
    forecast.observe(step(prefill=500 * first, admitted=first))
    left = state(
        waiting=[500] * (40 - first),
        decoding=1,
        prefilling=first,
        context=100,
        kv_capacity=20_000,
        kv_free=20_000 - 100 - 500 * first,
    )
    assert forecast.fit(left, 40 - first) <= 1


def crowd(count: int, cost: CostModel = RTX) -> tuple[Admission, Snapshot]:
    """`count` requests of 100 + 500 tokens at all ages, in a cache that just holds them, and as
    many that wait."""
    monitor, forecast = admission(cost)
    rng = np.random.default_rng(0)
    serve(monitor, forecast, np.maximum(2, rng.geometric(1 / 500, 1000)).tolist())
    ages = np.maximum(1, rng.geometric(1 / 500, count)).tolist()
    running = [Started(i, 100, age, 100 + age) for i, age in enumerate(ages)]
    report = step(prefill=100 * count, started=running)
    monitor.observe(report)
    forecast.observe(report)
    context = sum(100 + age for age in ages)
    return forecast, state(
        waiting=[100] * count, decoding=count, context=context, kv_capacity=int(1.3 * context)
    )


def test_with_few_requests_a_slot_is_worth_a_risk() -> None:
    """A preemption costs a recomputation, whoever runs; an idle slot costs a share of 1/n."""
    risks = []
    for count in (12, 60, 400):
        forecast, now = crowd(count)
        assert forecast.fit(now, count) > 0
        risks.append(forecast.risk)
    assert risks == sorted(risks, reverse=True)
    assert risks[0] > 0.1
    assert risks[-1] < 0.01


def test_where_recomputation_is_dear_less_is_risked() -> None:
    risks = []
    for slowness in (1.0, 30.0, 1000.0):
        forecast, now = crowd(12, replace(RTX, beta_p=slowness * RTX.beta_p))
        forecast.fit(now, 12)
        risks.append(forecast.risk)
    assert risks[0] > risks[1] > risks[2]


def test_no_more_than_what_is_free_now() -> None:
    """Whatever a slot is worth."""
    _, forecast = admission()
    now = state(waiting=[40] * 8, decoding=2, context=900, kv_capacity=1000)
    assert forecast.fit(now, 8) <= 2


def test_whoever_ends_makes_room_at_once() -> None:
    monitor, forecast = admission()
    serve(monitor, forecast, [200] * 40)
    report = step(prefill=2700, started=[Started(i, 900, 1, 900) for i in range(3)])
    monitor.observe(report)
    forecast.observe(report)
    full = state(waiting=[900], decoding=3, context=2700, kv_capacity=3400)
    assert forecast.fit(full, 1) == 0
    forecast.observe(step(decodes=3, finished=[Finished(0, 900, 2)]))
    after = state(waiting=[900], decoding=2, context=1802, kv_capacity=3400)
    assert forecast.fit(after, 1) == 1


def test_preemptions_make_it_careful_and_calm_makes_it_bold_again() -> None:
    _, forecast = admission()
    for request in range(10):
        forecast.observe(step(decodes=5, preempted=[request]))
    assert forecast.price == 2 * PRICE_MIN, "at most twice as dear per 100 completions"
    for number in range(100):
        forecast.observe(step(decodes=5, finished=[Finished(number, 10, 10)]))
    for request in range(10):
        forecast.observe(step(decodes=5, preempted=[request]))
    assert forecast.price == 4 * PRICE_MIN
    for number in range(10_000):
        forecast.observe(step(decodes=5, finished=[Finished(number, 10, 10)]))
    assert forecast.price == pytest.approx(PRICE_MIN)


def test_forgets_who_left() -> None:
    """Finished, aborted and preempted requests hold nothing in the forecast."""
    _, forecast = admission()
    started = [Started(i, 50, 1, 50) for i in range(30)]
    forecast.observe(step(prefill=1500, started=started))
    forecast.observe(
        step(
            decodes=30,
            finished=[Finished(0, 50, 2), Finished(1, 50, 2, complete=False), Finished(99, 50, 0)],
            preempted=list(range(2, 30)),
        )
    )
    forecast.fit(state(waiting=[100]), 1)
    assert forecast.peak == 0.0
