"""`phasegate policies`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasegate.policy.spec import POLICIES, SHARED, Option


def command() -> None:
    """List the policies and their options.

    A policy is written as NAME or NAME:OPTION=VALUE,OPTION=VALUE, for example exclusive:k=16.
    """
    console = Console(highlight=False)
    for name, kind in POLICIES.items():
        own = {key: option for key, option in kind.options.items() if option != SHARED.get(key)}
        _print(console, name, kind.summary, own)
    _print(console, "every policy", "also takes, unless said otherwise above", SHARED)
    console.print(
        Text("Write NAME or NAME:OPTION=VALUE,OPTION=VALUE, for example exclusive:k=16,n=128.")
    )


def _print(console: Console, name: str, summary: str, options: Mapping[str, Option]) -> None:
    console.print(Text.assemble((name, "bold"), f"  {summary}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=14, no_wrap=True)
    table.add_column()
    for key, option in options.items():
        table.add_row(
            Text(f"  {key}"), Text.assemble(option.help, (f" (default: {option.default})", "dim"))
        )
    if options:
        console.print(table)
    console.print()
