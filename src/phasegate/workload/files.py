"""Text files as they come: gzipped or not, with a byte order mark or not, LF or CRLF."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from phasegate.errors import WorkloadError

_GZIP_MAGIC = b"\x1f\x8b"
_BINARY_MAGIC = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; convert it to CSV first",
    b"BZh": "a bzip2 file; unpack it or use gzip",
    b"\xfd7zXZ": "an xz file; unpack it or use gzip",
    b"\x28\xb5\x2f\xfd": "a zstd file; unpack it or use gzip",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """The text of a UTF-8 file, gzipped if its first bytes say so, without a byte order mark.

    Whatever goes wrong with the file while the context is open becomes a WorkloadError that
    names it: missing, unreadable, cut short, damaged, or not text.
    """
    try:
        with open(path, "rb") as raw:
            start = raw.peek(8)  # not seek: the path may be a pipe
            if not start:
                raise WorkloadError(f"{path}: the file is empty")
            for magic, what in _BINARY_MAGIC.items():
                if start.startswith(magic):
                    raise WorkloadError(f"{path}: this is {what}")
            binary = gzip.GzipFile(fileobj=raw) if start.startswith(_GZIP_MAGIC) else raw
            with io.TextIOWrapper(io.BufferedReader(binary), encoding="utf-8-sig") as text:
                yield text
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: this is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise WorkloadError(f"{path}: the gzip data is damaged or cut short") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read ({error.strerror or error})") from None
