"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from phasegate.errors import InputError


def check_writable(path: Path) -> None:
    """Raise InputError if `path` cannot be written; call it before long work."""
    try:
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; name a file in it")
        if not path.parent.is_dir():
            raise InputError(
                f"cannot write {path}: folder {path.parent} does not exist; create it first"
            )
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "no permission")
        else:
            path.exists()  # raises if the name is too long
            handle, temporary = _temporary(path.resolve().parent)
            os.close(handle)
            os.unlink(temporary)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_atomic(path: Path, text: str | Iterable[str]) -> None:
    """Write `text` (UTF-8; pieces are written one after the other) to `path` in one go.

    A reader sees the old file or the new one; a failure leaves the old one, and nothing else.
    Raises InputError if the place cannot be written.
    """
    check_writable(path)
    pieces = [text] if isinstance(text, str) else text
    try:
        path = path.resolve()  # a link stays a link
        if _is_special(path):
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(pieces)
        else:
            _replace(path, pieces)
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Raise InputError if a result would overwrite what it is made from, or another result.

    Args:
        outputs: the files to be written, by the option that names them.
        inputs: the files that are read.
    """
    read = [path for path in inputs if path is not None]
    seen: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        for source in read:
            if _same(path, source):
                raise InputError(f"{option} would overwrite {source}, an input; name another file")
        for other, earlier in seen.items():
            if _same(path, earlier):
                raise InputError(f"{other} and {option} both write {path}; give two names")
        seen[option] = path


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):  # one of them does not exist
        # A device, say /dev/null, holds nothing that could be lost.
        return one.samefile(other) and not _is_special(one)
    return one.resolve() == other.resolve()


def _is_special(path: Path) -> bool:
    """A device or a pipe: it stays what it is."""
    return path.exists() and not path.is_file()


def _replace(path: Path, pieces: Iterable[str]) -> None:
    handle, temporary = _temporary(path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(pieces)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _temporary(folder: Path) -> tuple[int, str]:
    return tempfile.mkstemp(dir=folder, prefix=".phasegate-", suffix=".tmp")


def _mode(path: Path) -> int:
    """Permissions of the new file: those of the old one, else what is usual (mkstemp's files
    are private)."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _cannot_write(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot write {path}: {reason}; choose another place")
