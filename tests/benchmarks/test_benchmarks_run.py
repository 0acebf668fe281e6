"""The benchmark scripts still run: tiny versions of each, so that they do not rot."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Imports a script of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


def test_paper_tables(script, capsys):
    script("paper_tables").main(["--quick", "--requests", "30", "--processes", "1"])
    text = capsys.readouterr().out
    assert "largest error of a cell" in text
    assert "Table 5" in text


def test_policies(script, capsys, monkeypatch):
    policies = script("policies")
    monkeypatch.setattr(policies, "PAIRS", ((64, 16),))
    monkeypatch.setattr(policies, "CONCURRENCIES", (4, 8))
    monkeypatch.setattr(policies, "FIXED_K", (1, 2))
    monkeypatch.setattr(policies, "SHIFTS", {"short": ((64, 16, "geometric", 4, 60),) * 2})
    policies.main(["--quick", "--scale", "40", "--processes", "1"])
    text = capsys.readouterr().out
    assert "most mode switches" in text
    assert "rtx-pro-6000, short" in text


def test_open_loop(script, capsys):
    script("open_loop").main(["--quick", "--requests", "30", "--processes", "1"])
    text = capsys.readouterr().out
    assert "30 %, `threshold`" in text
    assert "95 % load: mean TTFT of `auto` against `mixed`" in text


def test_slo(script, capsys, tmp_path):
    slo = script("slo")
    fixed = tmp_path / "fixed.json"
    slo.main(["--quick", "--requests", "60", "--processes", "1", "--fixed", str(fixed)])
    first = capsys.readouterr().out
    assert "| h200 conversation, 100 ms |" in first
    slo.main(["--quick", "--requests", "60", "--processes", "1", "--fixed", str(fixed)])
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert rows == [x for x in capsys.readouterr().out.splitlines() if x.startswith("|")]


def test_traces(script, capsys):
    traces = script("traces")
    if not traces.FOLDER.is_dir():
        pytest.skip(f"the traces are not in {traces.FOLDER}")
    traces.main(["--quick", "--requests", "40", "--processes", "1"])
    assert "0.25, `hybrid` | 40 + 0 + 0" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_imports(script, name):
    """The scripts that take longer: at least what they import is still there."""
    try:
        script(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "phasegate":
            raise
        pytest.skip(f"{name} needs {error.name}")


def test_publish_replaces_its_own_section_only(script, tmp_path, monkeypatch, capsys):
    harness = script("harness")
    page = tmp_path / "results.md"
    page.write_text("# Results\n\n<!-- a -->\nold\n<!-- end of a -->\n\nprose\n")
    monkeypatch.setattr(harness, "RESULTS", page)
    for text in ("first", "second"):
        harness.publish("a", ["--write"], text, write=True)
        harness.publish("b", [], text, write=True)
    written = page.read_text()
    assert "old" not in written
    assert "first" not in written
    assert written.count("second") == 2
    assert "prose\n\n## b\n" in written
    assert "`python benchmarks/a.py`" in written


def test_gpu_at_toy_size(script, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    gpu = script("gpu")
    toy = dataclasses.replace(gpu.TOY, calibrate=0.05, run=0.05)
    monkeypatch.setattr(gpu, "TOY", toy)
    assert gpu.main(["--toy", "--out", str(tmp_path / "gpu.json")]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results.keys() >= {"alpha_d", "kappa at 64", "kappa at 512", "MB", "EB", "hybrid"}
    assert "| hybrid |" in capsys.readouterr().out


def test_gpu_measures_nothing_with_a_wrong_kernel(script, capsys, monkeypatch):
    pytest.importorskip("torch")
    gpu = script("gpu")
    monkeypatch.setattr(gpu, "kernel_error", lambda size: 0.5)
    assert gpu.main(["--toy"]) == 1
    text = capsys.readouterr().out
    assert "kernel check failed" in text
    assert "alpha_d" not in text
