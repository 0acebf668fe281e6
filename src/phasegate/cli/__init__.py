"""The `phasegate` command. One file per command; each is thin."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, cast

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

_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])  # typer does not export it


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that lacks a character gets a "?"
    try:
        # obj: reports name the command that made them
        code = app(words, prog_name="phasegate", obj=words, standalone_mode=False)
    except InputError as error:
        print(f"phasegate: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except _UsageError as error:
        print(_usage(error, words), file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _usage(error: Exception, words: Sequence[str]) -> str:
    """One line about words that typer did not understand; the help where there were none."""
    message = str(error.format_message())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":
        return message
    line = " ".join(message.split()).rstrip(".")
    option, value = _given(getattr(error, "param", None), words)
    if option and line.startswith(f"Invalid value for '{option}': "):
        line = line.partition(": ")[2].removeprefix("Input ")
        line = f"{option} {value or repr(value)}: {line}"
    return f"phasegate: {line}; see {context.command_path} --help"


def _given(parameter: object, words: Sequence[str]) -> tuple[str, str]:
    """The option as it was written, and its value: typer's errors do not repeat it."""
    for name in getattr(parameter, "opts", ()):
        for word, following in pairwise((*words, "")):
            if word == name:
                return name, following
            if word.startswith(f"{name}="):
                return name, word.removeprefix(f"{name}=")
    return "", ""
