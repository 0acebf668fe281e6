"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from phasegate.errors import InputError


def check_writable(path: Path) -> None:
    """Raise InputError if `path` clearly cannot be written; call it before long work."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: no permission in {folder}; choose another place")


def write_atomic(path: Path, text: str | Iterable[str]) -> None:
    """Write `text` (UTF-8; pieces are written one after the other) to `path` in one go.

    A reader sees the old file or the new one; a failure leaves the old one, and nothing else.
    Raises InputError if the place cannot be written.
    """
    check_writable(path)
    pieces = [text] if isinstance(text, str) else text
    path = path.resolve()  # a link stays a link
    if path.exists() and not path.is_file():  # a device or a pipe stays what it is
        try:
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(pieces)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(pieces)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        raise
