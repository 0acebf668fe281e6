"""`phasegate bench` on vLLM (here: a stand-in for it) and on a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remote.fake_server import FakeServer, serving

from phasegate.cli import bench, main
from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.base import Policy
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload.source import Source

TRAFFIC = ["--workload", "prompt=12,output=6", "--concurrency", "4", "--requests", "12"]
VLLM = ["--backend", "vllm", "--model", "some/model", "--profile", "h200/qwen3-8b"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


class Simulated:
    """A backend that simulates; notes the policies it ran (None: its own scheduler)."""

    limits = Limits(kv_capacity=4096, slots=8, token_budget=256)
    name, longest = "some/model", 512

    def __init__(self) -> None:
        self.ran: list[str | None] = []

    def calibrate(self, time_limit: float, progress: Callable[[float], None]) -> Any:
        raise AssertionError("a profile was given")

    def run(self, source: Source, policy: Policy | None, **more: Any) -> RunRecord:
        self.ran.append(None if policy is None else policy.spec)
        cost = load_profile("h200/qwen3-8b").cost_model()
        record = simulate(cost, source, policy or build_policy("mixed", cost, self.limits),
                          self.limits)  # fmt: skip
        record.policy = "stock" if policy is None else policy.spec
        return record


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    engine = Simulated()
    monkeypatch.setattr(bench, "load", lambda *args: engine)
    return engine


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


def test_vllm_runs_stock_first_and_compares_with_it(
    capsys: pytest.CaptureFixture[str], engine: Simulated, tmp_path: Path
) -> None:
    files = ["--json", str(tmp_path / "runs.json"), "--html", str(tmp_path / "runs.html")]
    code, text, _ = run(capsys, "bench", *VLLM, *TRAFFIC, *files)
    assert code == 0
    assert "stock" in text
    runs = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert [one["policy"] for one in runs] == ["stock", "hybrid", "auto"]
    assert engine.ran == [None, None, "hybrid", "auto"]  # the first is the warm-up
    assert "measurement report" in (tmp_path / "runs.html").read_text()


def test_rounds_take_turns(capsys: pytest.CaptureFixture[str], engine: Simulated) -> None:
    policies = ["--policy", "stock", "--policy", "mixed"]
    code, _, _ = run(capsys, "bench", *VLLM, *TRAFFIC, *policies, "--rounds", "3")
    assert code == 0
    assert engine.ran[1:] == [None, "mixed", "mixed", None, None, "mixed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*VLLM, "--device", "cpu"], "--device has no use with --backend vllm"),
        ([*VLLM, "--kv", "4096"], "--kv has no use with --backend vllm"),
        ([*VLLM, "--engine-args", "{"], "not JSON"),
        ([*VLLM, "--engine-args", '{"max_num_seqs": 4}'], "use --n for that"),
        ([*VLLM, "--policy", "stock", "--policy", "stock"], "given twice"),
        (["--engine-args", "{}"], "belongs to --backend vllm"),
        (["--policy", "stock"], "add --backend vllm"),
        (["--url", "http://localhost:1", "--policy", "mixed"], "--policy has no use with --url"),
        (["--url", "a=http://h:1", "--url", "a=http://h:2"], "write NAME=URL"),
        (["--backend", "vllm"], "needs --model"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, "bench", *TRAFFIC, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize("command", ["bench", "calibrate"])
def test_without_vllm_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    code, _, err = run(capsys, command, "--backend", "vllm", "--model", "some/model")
    assert code == 2
    assert "pip install vllm" in err
    assert err.count("\n") == 1


def test_a_server_is_measured(
    capsys: pytest.CaptureFixture[str], fake: FakeServer, tmp_path: Path
) -> None:
    files = ["--json", str(tmp_path / "runs.json"), "--html", str(tmp_path / "runs.html")]
    code, text, _ = run(capsys, "bench", "--url", fake.url, *TRAFFIC, *files)
    assert code == 0
    assert f"{fake.url}: tiny" in text
    (one,) = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert one["policy"] == fake.url
    assert one["requests"] == {"submitted": 12, "finished": 12, "rejected": 0, "aborted": 0}
    assert one["ttft_s"]["mean"] > 0
    assert one["slots"]["mean_busy"] is None
    assert "section hidden" in (tmp_path / "runs.html").read_text()


def test_two_servers_get_the_same_requests(
    capsys: pytest.CaptureFixture[str], fake: FakeServer
) -> None:
    fake.refuse = 12
    urls = ["--url", f"stock={fake.url}", "--url", f"ours={fake.url}/v1"]
    code, text, _ = run(capsys, "bench", *urls, *TRAFFIC, "--rounds", "2")
    assert code == 0
    assert "stock: the first request that did not finish: HTTP 429: too many requests" in text
    prompts = [length for length in fake.prompts if length != 3]  # without the greetings
    assert prompts == [12] * 12 * 4


def test_a_request_too_long_for_the_server(
    capsys: pytest.CaptureFixture[str], fake: FakeServer
) -> None:
    fake.longest = 16
    code, _, err = run(capsys, "bench", "--url", fake.url, *TRAFFIC)
    assert code == 2
    assert "tiny takes 16 in all" in err
