"""`phasegate profile` and `phasegate policies`."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasegate.cli import main
from phasegate.cost.presets import PRESETS
from phasegate.cost.profile import load_profile
from phasegate.policy.spec import POLICIES


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def test_list_names_every_preset_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "profile", "list")
    assert code == 0
    assert all(name in out for name in PRESETS)
    assert max(map(len, out.splitlines())) <= 80


def test_show_gives_constants_their_meaning_and_their_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "profile", "show", "rtx-pro-6000/qwen3-8b")
    for text in ("kappa", "3.5", "fitted to published results", "2606.00516", "488,000 tokens"):
        assert text in out
    assert "seconds per prompt token" in out


def test_shown_json_is_a_profile_that_validates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, out, _ = run(capsys, "profile", "show", "h200/llama-3.1-8b", "--json")
    path = tmp_path / "mine.json"
    path.write_text(out)
    assert load_profile(path) == load_profile("h200/llama-3.1-8b")
    code, out, _ = run(capsys, "profile", "validate", str(path))
    assert code == 0
    assert out.endswith("mine.json: ok (meta-llama/Llama-3.1-8B-Instruct on NVIDIA H200)\n")


def test_a_broken_profile_does_not_validate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    text = load_profile("h200/qwen3-8b").to_json().replace('"kappa": 1.15', '"kappa": 0.2')
    path.write_text(text)
    code, _, err = run(capsys, "profile", "validate", str(path))
    assert code == 2
    assert "field cost.kappa is 0.2" in err
    assert err.count("\n") == 1


def test_policies_lists_every_policy_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "policies")
    assert code == 0
    for name, kind in POLICIES.items():
        assert name in out
        assert all(option in out for option in kind.options)
