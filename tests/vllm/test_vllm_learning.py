"""What a server learns: reported to the policy, published, kept for the next start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import Loop, install, make_scheduler, serve, traffic

import phasegate.vllm.gate
import phasegate.vllm.view
from phasegate.cost.profile import load_profile
from phasegate.errors import InputError
from phasegate.policy.base import StepReport
from phasegate.vllm.metrics import samples

REQUESTS = traffic(seed=31, n=120)


def start(tiny: Path, patch: pytest.MonkeyPatch, **settings: str) -> Any:
    """A scheduler with these settings."""
    patch.setenv("PHASEGATE_VLLM", json.dumps(settings))
    return make_scheduler(tiny)


@pytest.mark.parametrize("policy", ["auto", "exclusive:k=4"])
def test_costs_are_kept_for_the_next_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    file = str(tmp_path / "profile.json")
    scheduler = start(tiny, monkeypatch, policy=policy, profile=file, profile_out=file)
    serve(scheduler, REQUESTS, ahead=False)
    scheduler.shutdown()
    profile = load_profile(file)
    assert profile.provenance.how == "measured"
    assert profile.kv_capacity_tokens == 199 * 16
    assert 0 < profile.cost_model().alpha_decode < 1
    assert start(tiny, monkeypatch, policy=policy, profile=file)._phasegate is not None


def test_too_little_is_not_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = start(tiny, monkeypatch, profile_out=str(tmp_path / "profile.json"))
    serve(scheduler, REQUESTS[:2], ahead=False)
    scheduler.shutdown()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_stops_the_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="does not exist"):
        start(tiny, monkeypatch, profile_out=str(tmp_path / "none" / "profile.json"))


def test_a_place_that_goes_away_does_not_disturb(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    scheduler = start(tiny, monkeypatch, profile_out=str(folder / "profile.json"))
    folder.rmdir()
    serve(scheduler, REQUESTS, ahead=False)
    scheduler.shutdown()
    assert scheduler._phasegate.failed is None


def test_estimates_are_published(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = start(tiny, monkeypatch, policy="auto")
    serve(scheduler, REQUESTS, ahead=False)
    values = {(name, *labels.values()): value for name, labels, value in
              samples(scheduler._phasegate)}  # fmt: skip
    prompts = sum(len(prompt) for prompt, _ in REQUESTS) / len(REQUESTS)
    assert values["phasegate_mean_prompt_tokens",] == pytest.approx(prompts)
    assert 1 < values["phasegate_mean_output_tokens",] < 60
    assert values["phasegate_kappa",] >= 1
    assert values["phasegate_cost_seconds", "alpha_d"] > 0


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", ["mixed", "exclusive:k=4", "auto"])
def test_every_iteration_is_reported_once(tiny: Path, policy: str, ahead: bool) -> None:
    scheduler = make_scheduler(tiny, asynchronous=ahead)
    gate = install(scheduler, policy)
    reports: list[StepReport] = []
    observe = gate.policy.observe
    gate.policy.observe = lambda step: (reports.append(step), observe(step))
    loop: Loop = serve(scheduler, REQUESTS, ahead)
    scheduler.shutdown()
    assert sum(report.iterations for report in reports) == len(loop.worker.steps)
    assert sum(report.prefill_tokens for report in reports) == sum(len(p) for p, _ in REQUESTS)
    assert sum(len(report.arrived) for report in reports) == len(REQUESTS)
    assert sum(len(report.finished) for report in reports) == len(REQUESTS)
    assert sum(report.decodes * report.iterations for report in reports) == sum(
        output - 1 for _, output in REQUESTS
    )
    assert any(report.iterations > 1 for report in reports)
    for report in reports:
        assert len(report.durations) == report.iterations
        assert report.end - report.start == pytest.approx(sum(report.durations))


@pytest.mark.parametrize("policy", ["mixed", "exclusive:k=4", "hybrid", "auto"])
def test_asking_less_often_changes_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    def schedule(longest: int) -> list[dict[str, int]]:
        """What each iteration holds, on a clock that counts iterations."""
        scheduler = make_scheduler(tiny)
        gate = install(scheduler, policy)
        stock, seen = scheduler.schedule, []
        monkeypatch.setattr(phasegate.vllm.gate, "LONGEST", longest)
        monkeypatch.setattr(phasegate.vllm.gate, "perf_counter", lambda: 0.01 * len(seen))
        monkeypatch.setattr(phasegate.vllm.view, "time", lambda: 0.01 * len(seen))

        def spy() -> Any:
            output = stock()
            seen.append(dict(output.num_scheduled_tokens))
            return output

        scheduler.schedule = spy
        serve(scheduler, REQUESTS, ahead=False)
        assert gate.failed is None
        return seen

    assert schedule(1) == schedule(64)
