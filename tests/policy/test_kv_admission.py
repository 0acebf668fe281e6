"""How many waiting requests fit into KV, now and as far as can be seen."""

from __future__ import annotations

import numpy as np
import pytest
from policy_worlds import state, step

from phasegate.policy.admission import Z_MIN, Admission
from phasegate.policy.base import Finished, Started
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


def admission() -> tuple[TrafficMonitor, Admission]:
    monitor = TrafficMonitor()
    return monitor, Admission(monitor, page=1)


def test_everything_fits_into_an_empty_cache() -> None:
    _, forecast = admission()
    now = state(waiting=[500] * 20)
    assert forecast.fit(now, 20) == 20
    assert forecast.tokens_of(3) == 1500
    assert forecast.fit(now, 5) == 5, "no more than asked for"
    assert forecast.fit(state(), 5) == 0


def test_alone_in_the_cache_a_request_always_fits() -> None:
    _, forecast = admission()
    assert forecast.fit(state(waiting=[900, 10], kv_capacity=1000), 2) == 1


def test_room_is_kept_for_outputs_to_come() -> None:
    """Twenty prompts of 400 would fit into 10,000 tokens, but not with their outputs."""
    _, forecast = admission()
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
        now = state(waiting=[200] * 30, decoding=20, context=context, kv_capacity=32_000)
        fits.append(forecast.fit(now, 30))
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


def test_preemptions_make_it_careful_and_calm_makes_it_bold_again() -> None:
    _, forecast = admission()
    for request in range(10):
        forecast.observe(step(decodes=5, preempted=[request]))
    assert forecast.z == Z_MIN + 1.0, "at most 1 per 100 completions"
    for number in range(100):
        forecast.observe(step(decodes=5, finished=[Finished(number, 10, 10)]))
    forecast.observe(step(decodes=5, preempted=[0]))
    assert forecast.z == Z_MIN + 1.5
    for number in range(10_000):
        forecast.observe(step(decodes=5, finished=[Finished(number, 10, 10)]))
    assert forecast.z == pytest.approx(Z_MIN)


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
