"""The HTML report: one self-contained file, no network, light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from typing import Any

from phasegate import __version__
from phasegate.cost.profile import Profile
from phasegate.report.metrics import (
    BY_PATH,
    METRICS,
    best_runs,
    duration,
    figures,
    in_seconds,
    show,
)
from phasegate.report.series import SHARES
from phasegate.report.summary import RunSummary
from phasegate.report.verdict import best_run, compared_with, verdict
from phasegate.scheduler.limits import Limits


@dataclass(frozen=True, slots=True)
class Context:
    """What the report says about the runs besides their numbers.

    Attributes:
        profile, limits: the device and the engine; None: a server of which a client knows nothing.
        traffic: what the requests look like, one line each.
        command: the command line that made the report.
        offered: arrival rate, requests/s (None: closed loop).
        measured: whether it happened, or was simulated.
    """

    profile: Profile | None
    limits: Limits | None
    traffic: Sequence[str]
    command: str
    offered: float | None = None
    measured: bool = False


def render(
    runs: Sequence[RunSummary], series: Sequence[dict[str, Any]], context: Context
) -> Iterator[str]:
    """The page in pieces, to be written one after the other.

    Args:
        runs: at least one.
        series: `phasegate.report.series.run_series` of the same runs.
        context: profile, limits and command line.
    """
    data = {
        "shares": SHARES,
        "longest": max(one["timeline"]["end"] for one in series),
        "featured": runs.index(best_run(runs)),
        "runs": [{"policy": run["policy"], **one} for run, one in zip(runs, series, strict=True)],
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    page = {
        "version": __version__,
        "title": escape(f"phasegate: {runs[0]['workload']}"),
        "workload": escape(runs[0]["workload"]),
        "facts": _facts(context),
        "verdict": escape(verdict(runs, context.offered)),
        "cards": _cards(runs),
        "chips": _chips(runs),
        "bars": _bars(runs),
        "shares": _time_shares(runs, series),
        "options": "".join(
            f'<option value="{i}">{escape(run["policy"])}</option>' for i, run in enumerate(runs)
        ),
        "table": _table(runs),
        "provenance": _provenance(context.profile) if context.profile else "",
        "kind": "measurement" if context.measured else "simulation",
        "inside": "" if context.profile else " hidden",
        "times": "measured" if context.measured else "simulated",
        "again": "runs it again" if context.measured else "gives the same numbers",
        "command": escape(context.command),
        "data": text.replace("</", "<\\/"),
        "css": _file("page.css"),
        "charts": _file("charts.js"),
        "page": _file("page.js"),
        "plotly": _plotly(),
    }
    yield Template(_file("page.html")).substitute(page)


def _file(name: str) -> str:
    return resources.files("phasegate.report").joinpath("page", name).read_text(encoding="utf-8")


def _plotly() -> str:
    path = resources.files("plotly").joinpath("package_data", "plotly.min.js")
    return path.read_text(encoding="utf-8")


def _colour(i: int) -> str:
    return f'style="--c: var(--p{i % 12})"'


def _name(policy: str) -> str:
    """A policy spec that may break after ":" and ","."""
    return escape(policy).replace(",", ",<wbr>").replace(":", ":<wbr>")


def _dot(i: int, policy: str) -> str:
    return f'<span class="dot" {_colour(i)}></span>{_name(policy)}'


def _facts(context: Context) -> str:
    """Two lines below the title: the machine, if it is known, and the traffic."""
    profile, limits = context.profile, context.limits
    if profile is None or limits is None:
        return escape(" · ".join(context.traffic))
    machine = (
        f"{profile.model} on {profile.device}",
        f"costs {profile.provenance.how}",
        f"{limits.running:,} slots",
        f"{limits.token_budget:,} tokens per iteration",
        f"{limits.kv_capacity:,} tokens of KV cache",
    )
    return "<br>".join(escape(" · ".join(facts)) for facts in (machine, context.traffic))


_CARDS = (
    ("Throughput", "throughput.requests_s", " requests/s"),
    ("Mean TTFT", "ttft_s.mean", ""),
    ("ITL P99", "itl_s.p99", ""),
    ("Mean E2E", "e2e_s.mean", ""),
)


def _cards(runs: Sequence[RunSummary]) -> str:
    """The choice in four numbers: how it stands to the baseline, and who is better in each."""
    choice = best_run(runs)
    other = compared_with(choice, runs) if len(runs) > 1 else None
    cards = []
    for title, path, unit in _CARDS:
        metric = BY_PATH[path]
        value = metric.read(choice)
        if value is None:
            continue

        def words(x: float, latency: bool = metric.kind == "seconds", unit: str = unit) -> str:
            return duration(x) if latency else f"{figures(x)}{unit}"

        number, suffix = words(value).split(" ", 1)
        lines = ""
        if other and (base := metric.read(other)):
            change = 100 * (value / base - 1)
            good = (change > 0) == (metric.better == "high")
            tone = "" if abs(change) < 1 else "good" if good else "bad"
            lines = f"<span class='{tone}'>{change:+.0f} %</span> to {_name(other['policy'])}"
            known = [run for run in runs if metric.read(run) is not None]
            lead = (max if metric.better == "high" else min)(known, key=metric.read)
            if lead is not choice and lead is not other:
                lines += f"<br>best: {_name(lead['policy'])}, {words(metric.read(lead))}"
        cards.append(
            f'<div class="card"><div class="what">{title}</div><div class="value">{number} '
            f'<small>{suffix}</small></div><div class="who">{lines}</div></div>'
        )
    chosen = f'<p class="choice">{_dot(runs.index(choice), choice["policy"])}</p>'
    return f'{chosen}<div class="cards">{"".join(cards)}</div>'


def _chips(runs: Sequence[RunSummary]) -> str:
    return "".join(
        f'<button type="button" aria-pressed="true" data-run="{i}">'
        f"{_dot(i, run['policy'])}</button>"
        for i, run in enumerate(runs)
    )


_BARS = (
    ("Throughput", "requests/s", "throughput.requests_s", "throughput.total_tokens_s"),
    ("TTFT", "mean, and P99 in pale", "ttft_s.mean", "ttft_s.p99"),
    ("ITL", "P50, and P99 in pale", "itl_s.p50", "itl_s.p99"),
)


def _bars(runs: Sequence[RunSummary]) -> str:
    """One panel of horizontal bars per headline number, one bar per policy."""
    panels = []
    for title, subtitle, path, second in _BARS:
        main, extra = BY_PATH[path], BY_PATH[second]
        latency = main.kind == "seconds"
        scale = max(((extra if latency else main).read(run) or 0.0 for run in runs), default=0.0)
        rows = []
        for i, run in enumerate(runs):
            value, more = main.read(run), extra.read(run)
            if value is None or more is None:
                label, tracks = "-", ""
            elif latency:
                label = f"{duration(value)} <small>P99 {duration(more)}</small>"
                tracks = _track(more, scale, "pale") + _track(value, scale)
            else:
                label = f"{figures(value)} <small>{figures(more)} tokens/s</small>"
                tracks = _track(value, scale)
            rows.append(
                f'<div class="bar" {_colour(i)}><div class="label"><span>{_name(run["policy"])}'
                f'</span><b>{label}</b></div><div class="track">{tracks}</div></div>'
            )
        panels.append(f"<div><h3>{title} <span>{subtitle}</span></h3>{''.join(rows)}</div>")
    return "".join(panels)


def _track(value: float, scale: float, kind: str = "") -> str:
    width = 100 * value / scale if scale else 0
    return f'<i class="{kind}" style="width:{width:.2f}%"></i>'


def _time_shares(runs: Sequence[RunSummary], series: Sequence[dict[str, Any]]) -> str:
    """Per policy, the shares of the run in prefill, decode, mixed iterations and idle."""
    rows = []
    for i, (run, one) in enumerate(zip(runs, series, strict=True)):
        strips = ""
        for phase in ("prefill", "decode", "mixed"):
            values = one["timeline"][phase]
            share = sum(values) / len(values)
            text = f"{share * 100:.0f} %" if share >= 0.06 else ""
            strips += f'<i class="{phase}" style="width:{share * 100:.2f}%">{text}</i>'
        rows.append(
            f'<div class="share"><span>{_dot(i, run["policy"])}</span>'
            f'<div class="strip">{strips}</div></div>'
        )
    return "".join(rows)


def _table(runs: Sequence[RunSummary]) -> str:
    head = "".join(f"<th>{_dot(i, run['policy'])}</th>" for i, run in enumerate(runs))
    rows, group = [], ""
    for metric in METRICS:
        if metric.group != group:
            group = metric.group
            rows.append(f'<tr class="group"><th>{group}</th>{"<td></td>" * len(runs)}</tr>')
        values = [metric.read(run) for run in runs]
        seconds = metric.kind != "seconds" or in_seconds(values)
        unit = (", s" if seconds else ", ms") if metric.kind == "seconds" else ""
        best = best_runs(metric, runs)
        cells = "".join(
            f"<td class='{'best' if i in best else ''}'>"
            f"{escape(show(value, metric.kind, seconds))}</td>"
            for i, value in enumerate(values)
        )
        rows.append(f"<tr><th>{metric.name}{unit}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _provenance(profile: Profile) -> str:
    origin = profile.provenance
    constants = profile.cost.model_dump(exclude={"kind"})
    entries = {
        "profile": profile.name,
        "source": f"{origin.source} ({origin.day})",
        "model": f"{profile.cost.kind} cost model",
        "constants": ", ".join(f"{name} = {value:.4g}" for name, value in constants.items()),
        "KV cache": f"{profile.kv_capacity_tokens:,} tokens",
    }
    if profile.fit and profile.fit.r2 is not None:
        entries["fit"] = f"R2 = {profile.fit.r2:.4f}"
    if profile.fit and profile.fit.worst_residual is not None:
        entries["worst residual"] = f"{profile.fit.worst_residual * 100:.1f} %"
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in entries.items())
    return f'<span class="badge">{escape(origin.how)}</span><dl>{rows}</dl>'
