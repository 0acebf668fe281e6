"""`phasegate simulate`, as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phasegate.cli import main
from phasegate.cli import simulate as simulate_command

QUICK = ["simulate", "--workload", "prompt=64,output=8", "--concurrency", "8", "--requests", "40"]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.0000000,{100 + second},{5 + second % 7}\n"
    for second in range(60)
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    return str(path)


def test_compares_policies_and_gives_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *QUICK, "--policy", "mixed", "--policy", "exclusive:k=2")
    assert code == 0
    assert err == ""  # no progress bar where nobody watches
    assert "40 requests, 8 concurrent" in out
    for text in ("exclusive:k=2", "2/256", "requests/s", "req/s"):
        assert text in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_no_line_is_wider_than_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    policies = ["--policy", "threshold:rule=paper,n=128,token_budget=4096", "--policy", "mixed"]
    _, out, _ = run(capsys, *QUICK, *policies)
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "…" not in out


def test_defaults_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = run(capsys, "simulate", "--requests", "20", "--policy", "mixed")
    assert "by default: --profile rtx-pro-6000/qwen3-8b --workload prompt=512" in out
    assert "--concurrency 256" in out
    assert "costs fitted to published results" in out


def test_what_is_given_is_not_called_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *QUICK, "--profile", "h200/qwen3-8b", "--policy", "mixed")
    assert "by default" not in out


def test_json_on_stdout_is_pure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, *QUICK, "--policy", "mixed", "--policy", "threshold", "--json", "-"
    )
    assert code == 0
    document = json.loads(out)
    assert [one["policy"] for one in document["runs"]] == ["mixed", "threshold"]
    assert document["runs"][0]["requests"]["finished"] == 40
    assert "req/s" in err


def test_same_seed_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--requests", "60", "--concurrency", "16", "--policy", "mixed"]
    first, second, other = (
        run(capsys, *arguments, "--json", "-", "--seed", seed)[1] for seed in ("7", "7", "8")
    )
    assert first == second
    assert first != other


def test_files_are_written_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    json_file, html_file = tmp_path / "run.json", tmp_path / "run.html"
    outputs = ["--json", str(json_file), "--html", str(html_file)]
    code, out, _ = run(capsys, *QUICK, "--policy", "mixed", *outputs)
    assert code == 0
    assert json.loads(json_file.read_text())["schema"] == 1
    html = html_file.read_text()
    assert "--concurrency 8 --requests 40 --policy mixed" in html  # the command line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json"]
    assert "run.json" in out.replace("\n", "")


def test_a_trace_is_replayed_faster(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    seconds = []
    for scale in ("1", "4"):
        arguments = ["--trace", trace, "--rate-scale", scale, "--policy", "mixed", "--json", "-"]
        one = json.loads(run(capsys, "simulate", *arguments)[1])["runs"][0]
        assert one["requests"]["finished"] == 60
        seconds.append(one["duration_s"])
    assert seconds[0] == pytest.approx(59, rel=0.05)
    assert seconds[1] == pytest.approx(59 / 4, rel=0.05)


@pytest.mark.parametrize("how", [["--concurrency", "4"], ["--rate", "100"]])
def test_a_trace_can_get_other_arrivals(
    capsys: pytest.CaptureFixture[str], trace: str, how: list[str]
) -> None:
    arguments = ["--trace", trace, "--requests", "30", "--policy", "mixed", "--json", "-"]
    one = json.loads(run(capsys, "simulate", *arguments, *how)[1])["runs"][0]
    assert one["requests"]["finished"] == 30
    assert one["duration_s"] < 29


def test_overload_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "prompt=4096,output=64", "--rate", "500", "--requests", "60"]
    _, out, _ = run(capsys, "simulate", *arguments, "--policy", "mixed")
    assert "Overload:" in out


def test_engine_limits_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--n", "2", "--kv", "1000", "--page", "1", "--queue-limit", "3"]
    traffic = ["--workload", "prompt=64,output=16", "--rate", "500", "--requests", "40"]
    arguments = ["simulate", *traffic, "--policy", "mixed", *limits, "--json", "-"]
    one = json.loads(run(capsys, *arguments)[1])["runs"][0]
    assert one["kv"]["capacity_tokens"] == 1000
    assert one["final"]["n"] == 2
    assert one["requests"]["rejected"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "prompt=1,output=1", "--trace", "x"], "--workload and --trace contradict"),
        (["--rate", "1", "--concurrency", "1"], "--concurrency and --rate contradict each other"),
        (["--rate-scale", "2"], "--rate-scale speeds up a trace; give --trace"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--workload", "prompt=1,output=1"], "give a rate"),
        (["--workload", "prompt=1,output=1", "--rate", "-1"], "rate"),
        (["--workload", "prompt=1,output=1", "--rate", "nan"], "rate"),
        (["--policy", "mixt"], "policy 'mixt' is unknown; did you mean mixed?"),
        (["--policy", "mixed", "--policy", "mixed"], "--policy mixed is given twice"),
        (["--profile", "h200/qwen3"], "did you mean h200/qwen3-8b?"),
        (["--json", "nowhere/a.json"], "folder nowhere does not exist; create it first"),
        (["--html", "-"], "--html - is not possible"),
        (["--html", "."], "it is a folder"),
        (["--html", "same", "--json", "same"], "--json and --html both write same"),
        (["--kv", "5", "--page", "16"], "less than one page"),
        (["--queue-limit", "3"], "--queue-limit 3 has no use in a closed loop"),
        (["--trace", "x", "--seed", "1"], "--seed 1 has no use: a trace is replayed as it is"),
        (["--policy", "exclusive:k=300"], "k=300 is more than the engine's 256 slots"),
        (["--policy", "mixed:token_budget=9000"], "more than the engine's 8192 tokens"),
        (["--json", "/proc/a.json"], "cannot write /proc/a.json"),
        (["--json", "a" * 300], "File name too long"),
        (["--bogus"], "No such option: --bogus; see phasegate simulate --help"),
        (["--seed", "x"], "--seed x: should be a valid integer"),
        (["--n=0"], "--n 0: should be greater than or equal to 1"),
        (["--profile", ""], "profile '': has no name"),
        (["--policy", "mixed:"], "no option behind the colon"),
        (["--kv", "100"], "no request fits into the KV cache: the smallest needs"),
        (["--rate", "1e-9"], "rate=1e-09: has to be from 1e-06"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, "simulate", *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("phasegate: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["simulate", "--n", "0"], ["simulate", "--foo"], ["gate"]])
def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(capsys, *arguments)[0] == 2


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("source", ["trace", "profile", "lengths"])
def test_a_result_never_overwrites_an_input(
    capsys: pytest.CaptureFixture[str],
    trace: str,
    tmp_path: Path,
    source: str,
    option: str,
    link: bool,
) -> None:
    file = Path(trace) if source == "trace" else tmp_path / "input"
    if source == "trace":
        arguments = ["--trace", trace]
    elif source == "profile":
        file.write_text(run(capsys, "profile", "show", "h200/qwen3-8b", "--json")[1])
        arguments = ["--profile", str(file)]
    else:
        file.write_text("1\n2\n")
        workload = f"prompt=8,output_dist=empirical:{file}"
        arguments = ["--workload", workload, "--concurrency", "2"]
    before = file.read_bytes()
    target = file
    if link:
        target = tmp_path / "link"
        target.symlink_to(file)
    code, _, err = run(capsys, "simulate", *arguments, option, str(target))
    assert (code, err) == (
        2,
        f"phasegate: {option} would overwrite {file}, an input; name another file\n",
    )
    assert file.read_bytes() == before


def test_a_console_without_the_characters_gets_others() -> None:
    arguments = [sys.executable, "-m", "phasegate", *QUICK, "--policy", "mixed"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(arguments, env=ascii_only, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mixed serves" in done.stdout


def test_a_crash_names_the_policy_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = simulate_command.simulate

    def crash(*arguments: object, **options: object) -> object:
        if arguments[2].spec == "threshold":  # type: ignore[attr-defined]
            raise ZeroDivisionError("a bug")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(simulate_command, "simulate", crash)
    outputs = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    with pytest.raises(ZeroDivisionError) as caught:
        main([*QUICK, "--policy", "mixed", "--policy", "threshold", *outputs])
    assert "while running threshold" in caught.value.__notes__[0]
    assert list(tmp_path.iterdir()) == []


def test_no_argument_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == 2
    assert "simulate" in out + err


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["phasegate", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == "phasegate 0.1.0\n"


def test_explains_a_moment_of_auto(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *QUICK, "--policy", "auto", "--policy", "mixed", "--explain", "0.05")
    assert code == 0
    assert "auto at 0.05 s:" in out
    assert "running with" in out


def test_only_auto_accounts_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *QUICK, "--policy", "mixed", "--explain", "0.05")
    assert code == 2
    assert "add --policy auto" in err
