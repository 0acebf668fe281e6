"""Calibration and comparison on a vLLM engine in this process."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import tiny_model

from phasegate.calibrate.measure import Design
from phasegate.cli import main
from phasegate.cost.profile import load_profile
from phasegate.policy.spec import build_policy
from phasegate.vllm_engine import STOCK
from phasegate.vllm_engine.calibrate import calibrate, measure
from phasegate.vllm_engine.engine import VllmEngine
from phasegate.vllm_engine.serve import run_workload
from phasegate.workload.build import make_source

ARGUMENTS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 1024,
    "block_size": 32,
    "num_gpu_blocks_override": 512,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("weights")))


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[VllmEngine]:
    engine = VllmEngine(model, slots=8, token_budget=128, dtype="float32", **ARGUMENTS)
    yield engine
    del engine
    gc.collect()


def test_measures_iterations_of_all_kinds(engine: VllmEngine) -> None:
    samples = measure(engine, time_limit=0.1)
    assert not engine.busy
    prefill = [s for s in samples if not s.decodes]
    decode = [s for s in samples if not s.prefill_tokens]
    mixed = [s for s in samples if s.decodes and s.prefill_tokens]
    design = Design().within(engine.limits, engine.longest)
    assert {s.prefill_tokens for s in prefill} == set(design.chunks)
    assert {s.prefill_tokens for s in mixed} == set(design.chunks)
    assert {s.decodes for s in decode} == set(design.decodes)
    contexts = [s.context_tokens / s.decodes for s in decode]
    assert min(design.contexts) <= min(contexts) < min(design.contexts) + 16
    assert max(design.contexts) <= max(contexts) < max(design.contexts) + 16
    assert all(0.0 < s.seconds < 60.0 for s in samples)


def test_the_profile_can_be_saved_and_loaded(engine: VllmEngine, tmp_path: Path) -> None:
    profile, fit = calibrate(engine, time_limit=0.1)
    profile.save(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == profile
    assert profile.kv_capacity_tokens == engine.limits.kv_capacity == 511 * 32
    assert fit.cost.alpha_decode > 0


@pytest.mark.parametrize("spec", [STOCK, "mixed", "exclusive:k=2", "auto"])
def test_a_run_accounts_for_every_request(engine: VllmEngine, spec: str) -> None:
    text = "prompt=40,output=10,prompt_dist=uniform:0.5,output_dist=uniform:0.5"
    source = make_source(text, concurrency=8, requests=30, seed=3)
    policy = None if spec == STOCK else build_policy(spec, None, engine.limits)
    record = run_workload(engine, source, policy, seed=3)

    assert record.counts == {"finished": 30, "rejected": 0, "aborted": 0}
    assert record.submitted == 30
    requests = record.requests
    assert (requests["first_token"] >= requests["arrival"]).all()
    assert (requests["end"] >= requests["first_token"]).all()
    assert len(record.itl()[0]) == requests["output"].sum() - 30
    for row in range(30):
        spent = requests["end"][row] - requests["first_token"][row]
        assert record.itl_values(row).sum() == pytest.approx(spent)
    iterations = record.iterations
    assert iterations["prefill_tokens"].sum() == requests["prompt"].sum()
    assert iterations["decodes"].sum() == requests["output"].sum() - 30
    if spec == "exclusive:k=2":
        assert not np.any(iterations["kind"] == 2)
    assert record.policy == spec
    assert (requests["admitted"] >= requests["arrival"]).all()
    assert (requests["admitted"] <= requests["first_token"]).all()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command on vLLM."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--backend", "vllm", "--n", "8", "--token-budget", "128"])
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def test_the_commands(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    profile, out = str(tmp_path / "profile.json"), tmp_path / "runs.json"
    arguments = ["--model", model, "--dtype", "float32", "--engine-args", json.dumps(ARGUMENTS)]
    code, text, _ = run(capsys, "calibrate", *arguments, "--time-limit", "1", "--out", profile)
    assert code == 0
    assert "alpha_d" in text
    policies = ["--policy", "stock", "--policy", "exclusive:k=2"]
    traffic = ["--workload", "prompt=20,output=6", "--concurrency", "8", "--requests", "20"]
    files = ["--profile", profile, "--json", str(out), "--html", str(tmp_path / "runs.html")]
    code, text, _ = run(
        capsys, "bench", *arguments, *policies, *traffic, *files, "--rounds", "2", "--compare-sim"
    )
    assert code == 0
    assert "predicted" in text
    stock, ours = json.loads(out.read_text())["runs"]
    assert stock["requests"] == ours["requests"]
    assert stock["requests"]["finished"] == 20
    assert stock["iterations"]["mixed"] > 0
    assert ours["iterations"]["mixed"] == 0
    assert stock["final"]["mode"] is None
    assert ours["final"]["k"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "/no/such/folder"], "there is no such folder"),
        (["--engine-args", '{"max_model_lenn": 5}'], "max_model_lenn"),
    ],
)
def test_what_vllm_cannot_start_is_one_line(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], message: str
) -> None:
    code, _, err = run(capsys, "bench", "--model", model, *arguments)
    assert code == 2
    line = err.strip().splitlines()[-1]
    assert line.startswith("phasegate: ")
    assert message in line
