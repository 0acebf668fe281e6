"""`phasegate bench --url`: running servers, measured from a client's side."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from phasegate.cli.backends import check_fits
from phasegate.cli.comparison import command_line, present, run_all
from phasegate.cli.traffic import Traffic
from phasegate.engine.record import RunRecord
from phasegate.errors import InputError
from phasegate.remote.run import Server
from phasegate.report.html import Context
from phasegate.workload.describe import describe
from phasegate.workload.source import source_of


def compare(
    context: typer.Context,
    urls: list[str],
    model: str | None,
    traffic: Traffic,
    rounds: int,
    console: Console,
    json: Path | None,
    html: Path | None,
) -> None:
    """Send the same requests to every server, in turns, and show the comparison.

    Args:
        context: of the command.
        urls: URL, or NAME=URL; the name stands where else the policy does.
        model: what to ask for; None: the first that a server has.
        traffic, rounds, console, json, html: the options of the command.

    Raises InputError if a server does not answer, or cannot take the requests.
    """
    table = traffic.table()
    addresses = _named(urls)
    servers = {name: Server(url, model) for name, url in addresses.items()}
    for server in servers.values():
        if server.longest is not None:
            check_fits(table, server.model, server.longest)
    shape = describe(table)
    about = [
        *(f"{_label(name, server)}: {server.model}" for name, server in servers.items()),
        *str(shape).splitlines(),
        *table.notes,
    ]
    for line in about:
        console.print(Text(line, style="dim"))

    def run_one(name: str, advance: Callable[[int], None]) -> RunRecord:
        source = source_of(table)
        return servers[name].run(source, name=name, seed=traffic.seed or 0, progress=advance)

    runs, series = run_all(list(servers), run_one, len(table), html is not None, rounds)
    offered = shape.rate if math.isfinite(shape.rate) else None
    page = Context(None, None, about, command_line(context), offered, measured=True)
    present(runs, series, page, console, json, html)
    for name, server in servers.items():
        if server.problem:
            text = f"{name}: the first request that did not finish: {server.problem}"
            console.print(Text(text, style="yellow"))


def _named(urls: list[str]) -> dict[str, str]:
    """The servers by name. Raises InputError if two have the same."""
    addresses: dict[str, str] = {}
    for text in urls:
        name, equals, url = text.partition("=")
        if not equals or "/" in name:
            name, url = text, text
        if name in addresses:
            raise InputError(f"--url {name} is given twice; write NAME=URL to tell them apart")
        addresses[name] = url
    return addresses


def _label(name: str, server: Server) -> str:
    return name if name == server.url else f"{name} ({server.url})"
