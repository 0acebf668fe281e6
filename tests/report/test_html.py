"""The HTML report: self-contained, honest about its source, and safe whatever names it is given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import hand_record, summary_of

from phasegate.cost.profile import load_profile
from phasegate.report.html import Context, render
from phasegate.report.series import run_series
from phasegate.report.summary import RunSummary, summarise
from phasegate.scheduler.limits import Limits

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def page(runs: list[RunSummary], **changes: Any) -> str:
    context = {
        "profile": load_profile("h200/qwen3-8b"),
        "limits": Limits(kv_capacity=1000),
        "traffic": ["100 requests, 8 concurrent"],
        "command": "phasegate simulate --policy mixed",
    }
    series = [run_series(hand_record()) for _ in runs]
    return "".join(render(runs, series, Context(**context | changes)))


def data_of(html: str) -> Any:
    """The numbers that the charts are drawn from."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


class _Loads(HTMLParser):
    """Collects whatever makes a browser load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href")]


RUNS = [summary_of("mixed"), summary_of("exclusive:k=16", throughput__requests_s=9.0)]


def test_nothing_is_loaded_from_anywhere() -> None:
    html = page(RUNS)
    loads = _Loads()
    loads.feed(html)
    assert loads.found == []
    assert "@import" not in html.split("<script", 1)[0]
    assert "url(" not in html.split("<script", 1)[0]


def test_it_tells_verdict_numbers_source_and_command() -> None:
    html = page(RUNS)
    for text in (
        "exclusive:k=16 serves most: 9.00 requests/s",
        "fitted to published results",
        "arXiv 2606.00516",
        "phasegate simulate --policy mixed",
        "100 requests, 8 concurrent",
        "recomputed tokens",
    ):
        assert text in html


def test_a_measured_profile_is_called_measured() -> None:
    profile = load_profile("h200/qwen3-8b")
    measured = profile.provenance.model_copy(update={"how": "measured"})
    html = page(RUNS, profile=profile.model_copy(update={"provenance": measured}))
    assert '<span class="badge">measured</span>' in html


def test_overload_reaches_the_verdict() -> None:
    assert "Overload" in page(RUNS, offered=100.0)


def test_charts_get_every_policy_and_open_with_the_choice() -> None:
    data = data_of(page(RUNS))
    assert [run["policy"] for run in data["runs"]] == ["mixed", "exclusive:k=16"]
    assert data["featured"] == 1
    assert data["longest"] == 10.0


def test_names_cannot_break_out_of_the_page() -> None:
    evil = '</script><img src=x onerror="alert(1)">$workload'
    run = summary_of(evil, workload=evil)
    html = page([run], command=evil, traffic=[evil])
    loads = _Loads()
    loads.feed(html)
    assert loads.found == []
    assert data_of(html)["runs"][0]["policy"] == evil


def test_beyond_plotly_it_is_small() -> None:
    runs = [summary_of(f"exclusive:k={k}") for k in range(1, 13)]
    data = re.search(r'type="application/json">(.*?)</script>', page(runs), re.S)
    assert data
    assert len(data[1]) < 2_000_000


def test_a_run_that_served_nobody_can_be_shown() -> None:
    record = hand_record()
    record.requests["status"][:] = 2
    record.requests["first_token"][:] = float("nan")
    html = page([summarise(record), summarise(record)])
    assert "No request finished" in html


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_every_chart(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    spy = "<script>window.onerror = (m) => { document.title = 'ERROR ' + m; };</script>"
    path.write_text(page(RUNS).replace("<head>", "<head>" + spy))
    command = f"{CHROMIUM} --headless --no-sandbox --disable-gpu --no-first-run --dump-dom"
    command += " --disable-background-networking --virtual-time-budget=3000"
    arguments = [*command.split(), f"--user-data-dir={tmp_path / 'user'}", path.as_uri()]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    body = done.stdout.rsplit("</script>", 1)[0]
    assert "<title>ERROR" not in body
    for chart in ("cdf-ttft", "cdf-itl", "cdf-tpot", "cdf-e2e", "timeline", "closeup", "decisions"):
        assert re.search(rf'id="{chart}"[^>]*class="[^"]*js-plotly-plot', body) or re.search(
            rf'class="[^"]*js-plotly-plot[^"]*"[^>]*id="{chart}"', body
        ), chart
