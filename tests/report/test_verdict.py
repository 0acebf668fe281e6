"""The verdict: one line a person can decide from."""

from __future__ import annotations

from typing import Any

from synthetic_run import summary_of

from phasegate.report.summary import RunSummary
from phasegate.report.verdict import verdict


def run(policy: str, rate: float, ttft: float = 0.5, itl: float = 0.1, **more: Any) -> RunSummary:
    changes: dict[str, Any] = {"throughput__requests_s": rate, "throughput__total_tokens_s": 700.0}
    changes |= {"ttft_s__mean": ttft, "itl_s__p99": itl, "e2e_s__mean": 9.0}
    return summary_of(policy, **changes | more)


def test_the_highest_throughput_wins_and_is_compared_with_mixed() -> None:
    text = verdict([run("mixed", 8.0), run("hybrid", 10.0, ttft=0.4), run("threshold", 9.0)])
    assert text.startswith(
        "hybrid serves most: 10.0 requests/s (700 tokens/s), 25 % more than mixed;"
    )
    assert "mean TTFT 400 ms (500 ms)" in text


def test_without_mixed_the_next_best_is_the_comparison() -> None:
    text = verdict([run("a", 8.0), run("b", 10.0), run("c", 9.9 * 0.99)])
    assert "b serves most" in text
    assert "2.0 % more than c" in text


def test_equal_throughput_is_decided_by_e2e() -> None:
    text = verdict([run("mixed", 5.0), run("auto", 5.01, e2e_s__mean=7.0)])
    assert text.startswith("All serve 5.01 requests/s (700 tokens/s) within 1 %; auto ends")
    assert "mean E2E 7.00 s (mixed 9.00 s)" in text


def test_some_equal_ones_are_named() -> None:
    text = verdict([run("a", 5.0), run("b", 5.0, e2e_s__mean=7.0), run("mixed", 3.0)])
    assert text.startswith("a and b serve most")
    assert "; b ends requests sooner" in text


def test_a_policy_that_is_better_in_one_respect_is_named() -> None:
    text = verdict([run("mixed", 9.5, ttft=0.2), run("b", 10.0)])
    assert "Quickest first token: mixed (mean TTFT 200 ms)." in text


def test_an_idle_server_is_no_alternative() -> None:
    text = verdict([run("mixed", 9.5), run("static:n=1", 1.0, ttft=0.01, itl=0.001)])
    assert "static" not in text.split(";", 1)[1].split("mean E2E", 1)[1].replace("(static:n=1", "")


def test_rejections_and_preemptions_are_not_hidden() -> None:
    text = verdict([run("a", 9.0, requests__rejected=7, preemptions=50), run("b", 5.0)])
    assert "7 of 100 requests were rejected." in text
    assert "It preempted 50 times" in text


def test_one_run_gets_plain_facts() -> None:
    text = verdict([run("mixed", 9.0)])
    assert text == (
        "mixed serves 9.00 requests/s (700 tokens/s): mean E2E 9.00 s, mean TTFT 500 ms, "
        "ITL P99 100 ms."
    )


def test_overload_is_said_only_when_the_queue_grows() -> None:
    runs = [run("mixed", 5.0), run("auto", 6.0)]
    assert "Overload: 8.00 requests/s arrive" in verdict(runs, offered=8.0)
    assert "Overload" not in verdict(runs, offered=6.1)
    assert "Overload" not in verdict(runs)


def test_nothing_finished() -> None:
    nothing = run("mixed", 0.0, requests__finished=0, ttft_s__mean=None, itl_s__p99=None)
    assert verdict([nothing]).startswith("No request finished")


def test_a_missed_target_is_told() -> None:
    text = verdict([run("auto:itl=0.05,ttft=2", 5.0, itl=0.1)])
    assert "It misses its target: ITL P99 100 ms, wanted 50.0 ms." in text
    assert "misses" not in verdict([run("auto:itl=0.2", 5.0, itl=0.1)])
    assert "misses" not in verdict([run("auto:itl=0:0.01/5:0.5", 5.0), run("stock", 4.0)])
