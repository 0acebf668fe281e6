"""`phasegate profile list|show|validate`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasegate.cost.presets import PRESETS
from phasegate.cost.profile import Profile, load_profile
from phasegate.report.metrics import count, duration

app = typer.Typer(no_args_is_help=True, help="List, show and check profiles of devices.")

Name = Annotated[str, typer.Argument(help="Name of a preset, or path of a JSON file.")]


@app.command("list")
def list_presets() -> None:
    """List the presets."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("profile", no_wrap=True)
    table.add_column("model and device", overflow="fold")
    table.add_column("KV tokens", justify="right", no_wrap=True)
    table.add_column("costs")
    for name in PRESETS:
        profile = load_profile(name)
        table.add_row(
            name,
            f"{profile.model} on {profile.device}",
            f"{profile.kv_capacity_tokens:,}",
            profile.provenance.how,
        )
    Console(highlight=False).print(table)


@app.command()
def show(
    name: Name,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON file.")] = False,
) -> None:
    """Show one profile: constants, what they mean, and where they come from."""
    profile = load_profile(name)
    if json:
        typer.echo(profile.to_json(), nl=False)
        return
    console = Console(highlight=False)
    console.print(Text(profile.name, style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for title, text in _facts(profile).items():
        table.add_row(Text(title), Text(text))
    for constant, field in type(profile.cost).model_fields.items():
        if constant != "kind":
            value = f"{getattr(profile.cost, constant):.4g}"
            table.add_row(Text(constant), Text(f"{value:<12}{field.description}"))
    for title, text in _iterations(profile).items():
        table.add_row(Text(title), Text(text))
    console.print(table)


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(help="Profiles to check.", metavar="FILE...")],
) -> None:
    """Check profiles; the first wrong one ends it with exit code 2."""
    for name in files:
        profile = load_profile(name)
        typer.echo(f"{name}: ok ({profile.model} on {profile.device})")


def _facts(profile: Profile) -> dict[str, str]:
    origin, fit = profile.provenance, profile.fit
    facts = {
        "model": profile.model,
        "device": profile.device,
        "KV cache": f"{profile.kv_capacity_tokens:,} tokens",
        "costs": f"{origin.how}, {origin.day}",
        "source": origin.source,
    }
    if fit and fit.r2 is not None:
        facts["R2"] = f"{fit.r2:.5f}"
    if fit and fit.worst_residual is not None:
        facts["worst residual"] = f"{fit.worst_residual * 100:.1f} %"
    for constant, (low, high) in ((fit and fit.confidence) or {}).items():
        facts[f"{constant}, 95 %"] = f"{low:.4g} to {high:.4g}"
    return facts


def _iterations(profile: Profile) -> dict[str, str]:
    """What typical iterations cost."""
    cost = profile.cost_model()
    chunk, requests, context = 2048, 64, 1024
    attention = chunk * chunk / 2
    alone = cost.seconds(chunk, attention, 0, 0)
    decode = cost.seconds(0, 0, requests, requests * context)
    mixed = cost.seconds(chunk, attention, requests, requests * context)
    return {
        "prefill": f"{duration(alone)} for {chunk:,} prompt tokens alone",
        "decode": f"{duration(decode)} for {count(requests, 'request')} at context {context:,}",
        "mixed": f"{duration(mixed)} for both in one iteration",
    }
