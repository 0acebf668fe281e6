"""Output goes where it was sent: links and devices stay what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phasegate.errors import InputError
from phasegate.files import write_atomic


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_permissions_of_an_old_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o600)
    write_atomic(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_device_is_written_to_and_not_replaced() -> None:
    with pytest.raises(InputError, match="No space left"):
        write_atomic(Path("/dev/full"), "x" * 100_000)
    assert not Path("/dev/full").is_file()
