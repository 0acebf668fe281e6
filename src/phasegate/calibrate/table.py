"""A fit in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasegate.calibrate.fit import CONSTANTS, Fit, Sample

_UNITS = {
    "alpha_p": ("ms", 1e3, "per iteration without decodes"),
    "alpha_d": ("ms", 1e3, "per iteration with decodes"),
    "beta_p": ("us", 1e6, "per prompt token"),
    "beta_q": ("ns", 1e9, "per token^2 of prefill attention"),
    "b_d": ("us", 1e6, "per decoding request"),
    "k_d": ("ns", 1e9, "per context token of decoding requests"),
    "kappa": ("", 1.0, "factor on that when the iteration also prefills"),
}


def print_fit(fit: Fit, console: Console) -> None:
    """Print constants with 95 % confidence intervals, and how good the fit is."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for title in ("constant", "value", "95 % interval", "unit"):
        table.add_column(title, justify="left" if title in ("constant", "unit") else "right")
    table.add_column("", style="dim")
    for name in CONSTANTS:
        unit, scale, meaning = _UNITS[name]
        value = getattr(fit.cost, name) * scale
        low, high = (bound * scale for bound in fit.intervals[name])
        table.add_row(name, f"{value:.4g}", f"{low:.4g} .. {high:.4g}", unit, meaning)
    console.print(table)
    for line in _quality(fit):
        console.print(Text(line))


def _quality(fit: Fit) -> Iterator[str]:
    yield (
        f"R^2 {fit.r2:.4f} over {fit.samples} iterations; typical error {fit.typical * 100:.1f} %"
    )
    yield f"worst residual {fit.worst * 100:+.1f} %: {_words(fit.worst_sample)}"
    if fit.stalls:
        yield (
            f"{fit.stalls} iterations were outliers (the machine stalled, up to "
            f"{fit.longest_stall:.1f} times as long as their like) and count little"
        )
    if fit.cost.kappa >= 1.05:
        yield (
            f"prefill disturbs decode attention here (kappa {fit.cost.kappa:.2f}): "
            "exclusive batching may gain"
        )
    else:
        yield f"no interference to speak of (kappa {fit.cost.kappa:.2f})"


def _words(sample: Sample) -> str:
    parts = []
    if sample.decodes:
        parts.append(
            f"{sample.decodes} decodes at context {sample.context_tokens // sample.decodes}"
        )
    if sample.prefill_tokens:
        parts.append(f"{sample.prefill_tokens} prompt tokens")
    return f"{' + '.join(parts)}, {sample.seconds * 1e3:.2f} ms"
