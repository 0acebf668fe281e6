"""The benchmark scripts still run: tiny versions of each, so that they do not rot."""

from __future__ import annotations

import importlib
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
