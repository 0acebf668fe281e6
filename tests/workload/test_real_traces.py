"""The traces that the project is measured on; skipped where they are not at hand."""

from pathlib import Path

import numpy as np
import pytest

from phasegate.workload import describe, read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def real(name):
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_trace(path)


def test_azure_conversation_2023():
    stats = describe(real("azure_llm_2023_conv.csv"))
    assert stats.requests == 19_366
    assert stats.prompt[:4] == pytest.approx((1154.7, 1020, 4142, 14_050), abs=0.05)
    assert stats.output[:4] == pytest.approx((211.1, 129, 601, 1000), abs=0.05)
    assert stats.duration == pytest.approx(3501.72, abs=0.01)


def test_mooncake_conversation():
    table = real("mooncake_conversation.jsonl")
    assert len(table) == 12_031
    assert table.prompt.max() == 126_195
    assert (table.arrival[0], table.arrival[-1]) == (0.0, pytest.approx(3536.999))
    assert table.notes == ()


def test_nothing_of_a_trace_is_lost_or_changed():
    path = TRACES / "azure_llm_2023_conv.csv"
    table = real(path.name)
    expected = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2), dtype=int)
    assert np.array_equal(np.column_stack([table.prompt, table.output]), expected)
