"""The `phasegate` command. One file per command; each is thin."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from phasegate import __version__
from phasegate.cli import bench, calibrate, policies, profile, simulate
from phasegate.errors import InputError

app = typer.Typer(
    name="phasegate",
    help="Decides, iteration by iteration, how a large language model is served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.command)
app.command("bench")(bench.command)
app.command("calibrate")(calibrate.command)
app.add_typer(profile.app, name="profile")
app.command("policies")(policies.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phasegate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options before the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always raises SystemExit.

    Exit codes: 0 done, 2 wrong input (one line on stderr says what and how to mend it),
    1 anything unexpected.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="phasegate", obj=words)  # obj: reports name the command that made them
    except InputError as error:
        print(f"phasegate: {error}", file=sys.stderr)
        raise SystemExit(2) from None
