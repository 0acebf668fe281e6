"""Readers for recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from phasegate.errors import WorkloadError
from phasegate.workload.files import open_text


def read_lengths(path: str | Path, side: Literal["prompt", "output"]) -> list[int]:
    """Lengths from a file with one number per line."""
    with open_text(path) as file:
        try:
            return [int(line) for line in file if line.strip()]
        except ValueError as error:
            raise WorkloadError(f"{path}: {error}") from None
