"""What the documents name exists: files, scripts, commands and their options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from phasegate.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SCRIPT = re.compile(r"benchmarks/\w+\.py")
_COMMAND = re.compile(r"phasegate ((?:profile )?[a-z]+)((?:[^`\n]|\\\n)*)")
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def options_of(command: typer.core.TyperGroup, words: list[str]) -> set[str] | None:
    """The options of a command such as ["profile", "show"]; None if there is no such command."""
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return None
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_scripts_exist(page: Path) -> None:
    for script in _SCRIPT.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / script).exists(), script


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_take_the_options_that_are_shown(page: Path) -> None:
    root = typer.main.get_command(app)
    for words, rest in _COMMAND.findall(page.read_text(encoding="utf-8")):
        known = options_of(root, words.split())
        for option in _OPTION.findall(rest):
            assert known is not None, f"phasegate {words}"
            assert option in known, f"phasegate {words} {option}"


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
    }
    assert set((ROOT / "docs").glob("*.md")) <= linked


def test_every_benchmark_is_listed() -> None:
    listed = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    for script in (ROOT / "benchmarks").glob("*.py"):
        assert f"`{script.name}`" in listed, script.name
