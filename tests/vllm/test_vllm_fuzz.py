"""A short fuzz; `benchmarks/vllm_fuzz.py` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_fuzz import fuzz

import phasegate.vllm.gate


@pytest.mark.parametrize("seed", range(12))
def test_no_deadlock_no_leak_bounded_wait(
    tiny: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phasegate.vllm.gate, "perf_counter", phasegate.vllm.gate.perf_counter)
    assert fuzz(tiny, seed, steps=300)["requests"] > 5
