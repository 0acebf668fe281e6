"""The table in the README is what its command prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from phasegate.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRACES = ROOT.parent / "shared" / "traces"


def command() -> list[str]:
    """The words of the README's command that replays a trace, without its output files."""
    block = next(text for text in re.findall(r"```\n(.*?)```", README, re.S) if "--trace" in text)
    block = block[block.index("phasegate simulate") :].replace("\\\n", " ")
    words = shlex.split(block)[1:]
    for option in ("--html", "--json"):
        at = words.index(option)
        del words[at : at + 2]
    at = words.index("--trace") + 1
    words[at] = str(TRACES / Path(words[at]).name)
    return words


def rows() -> dict[str, list[float]]:
    """Policy -> numbers of its row, in seconds."""
    table = README[README.index("<!-- table") :].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[3:]:
        policy, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [cell.replace(",", "").split() for cell in cells]
        found[policy.strip("`")] = [
            float(number) / (1000 if unit == ["ms"] else 1) for number, *unit in numbers
        ]
    return found


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs ../shared/traces")
def test_the_table_is_what_the_command_says(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(SystemExit) as ended:
        main([*command(), "--json", str(path)])
    assert ended.value.code == 0
    runs = {run["policy"]: run for run in json.loads(path.read_text())["runs"]}
    shown = rows()
    assert shown.keys() == runs.keys()
    for policy, run in runs.items():
        rate, itl = run["throughput"], run["itl_s"]
        measured = [rate["requests_s"], rate["total_tokens_s"], run["ttft_s"]["mean"]]
        measured += [itl["p50"], itl["p99"], run["e2e_s"]["mean"]]
        assert shown[policy] == pytest.approx(measured, rel=0.01), policy
