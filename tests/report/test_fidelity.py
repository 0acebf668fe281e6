"""Predicted against measured."""

from __future__ import annotations

import copy
import io

import pytest
from rich.console import Console
from synthetic_run import hand_record

from phasegate.report.fidelity import cells, print_fidelity
from phasegate.report.summary import summarise


def test_says_how_far_a_prediction_is_off_and_whether_that_is_allowed() -> None:
    measured = summarise(hand_record())
    predicted = copy.deepcopy(measured)
    assert predicted["throughput"]["requests_s"] is not None
    predicted["throughput"]["requests_s"] *= 1.1
    assert predicted["ttft_s"]["p99"] is not None
    predicted["ttft_s"]["p99"] *= 0.85
    found = {cell.title: cell for cell in cells([predicted], [measured])}
    assert found["req/s"].error == pytest.approx(0.1)
    assert not found["req/s"].faithful
    assert found["TTFT P99"].error == pytest.approx(-0.15)
    assert found["TTFT P99"].faithful
    assert found["ITL P50"].error == 0.0
    text = io.StringIO()
    print_fidelity([predicted], [measured], Console(file=text, width=100))
    assert "+10.0 % !" in text.getvalue()
    assert "-15.0 %" in text.getvalue()
