"""As much of an HTTP/1.1 client as streaming needs, on asyncio and nothing else.

One connection per request: a new one costs a fraction of a millisecond, and a client that keeps
hundreds of them open measures its own pool.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from phasegate.errors import InputError

PATIENCE = 300.0
"""Seconds without a byte after which a server is given up."""


class ServerError(Exception):
    """The server said no, or something that is not HTTP.

    Attributes:
        status: HTTP status; 0 if there was none.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Address:
    """Where a server listens, and how it knows us."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """
        Args:
            url: such as http://localhost:8000; "/v1" at its end does not matter.
            key: sent as bearer token, None: nothing.

        Raises InputError for what is not such an address.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise InputError(f"--url {url}: not an address; write http://HOST:PORT")
        self.url = url
        self.host, self._tls = parts.hostname, parts.scheme == "https"
        self.port = port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = [f"Host: {parts.netloc.rpartition('@')[2]}", "Connection: close"]
        if key:
            self._headers.append(f"Authorization: Bearer {key}")

    async def get(self, path: str) -> Any:
        """The JSON document at `path`. Raises ServerError, OSError, TimeoutError."""
        async with aclosing(self._pieces("GET", path, None)) as pieces:
            return _parsed(b"".join([piece async for piece in pieces]))

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """POST `body`; yields the JSON of each server-sent event, as they come.

        Raises ServerError, OSError, TimeoutError.
        """
        rest = b""
        async with aclosing(self._pieces("POST", path, body)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield _parsed(data)
        if rest.startswith(b"{"):  # an error in place of a stream
            yield _parsed(rest)

    async def _pieces(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> AsyncGenerator[bytes, None]:
        """The body of a response, in pieces."""
        context = ssl.create_default_context() if self._tls else None
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(self.host, self.port, ssl=context), PATIENCE
        )
        try:
            headers = list(self._headers)
            content = b"" if body is None else json.dumps(body).encode()
            if body is not None:
                headers += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
            head = "\r\n".join([f"{method} {self._prefix}{path} HTTP/1.1", *headers, "", ""])
            writer.write(head.encode() + content)
            await writer.drain()
            status, chunked, length = await _head(reader)
            pieces = _body(reader, chunked, length)
            if status != 200:
                text = b"".join([piece async for piece in pieces])
                raise ServerError(status, _reason(status, text))
            async for piece in pieces:
                yield piece
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ServerError(0, "the connection broke off") from error
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool, int | None]:
    """(status, whether the body is chunked, its length if it is known)."""
    first = (await _line(reader)).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise ServerError(0, "what answers there is not an HTTP server")
    chunked, length = False, None
    while line := (await _line(reader)).strip():
        name, _, value = line.lower().partition(b":")
        if name == b"transfer-encoding":
            chunked = b"chunked" in value
        elif name == b"content-length":
            length = int(value)
    return int(first[1]), chunked, length


async def _body(
    reader: asyncio.StreamReader, chunked: bool, length: int | None
) -> AsyncGenerator[bytes, None]:
    if not chunked:
        left = length
        while left != 0 and (piece := await asyncio.wait_for(reader.read(65536), PATIENCE)):
            left = None if left is None else left - len(piece)
            yield piece
        return
    while size := int((await _line(reader)).split(b";")[0], 16):
        yield await asyncio.wait_for(reader.readexactly(size), PATIENCE)
        await reader.readexactly(2)


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await asyncio.wait_for(reader.readline(), PATIENCE)
    if not line:
        raise ServerError(0, "the connection broke off")
    return line


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ServerError(0, f"not JSON: {text[:60].decode(errors='replace')}") from None


def _reason(status: int, text: bytes) -> str:
    """What an error response says, in one line."""
    try:
        answer = json.loads(text)
        error = answer.get("error", answer)
        words = str(error.get("message") if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        words = text.decode(errors="replace")
    return f"HTTP {status}: {' '.join(words.split())[:300]}".rstrip(": ")
