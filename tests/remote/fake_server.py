"""A server that speaks as much of OpenAI's protocol as a measurement needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer(ThreadingHTTPServer):
    """Streams as many tokens as it is asked for, unless a prompt's length says otherwise.

    Attributes:
        prompts: lengths of the prompts it got, in order of arrival.
        refuse, broken: prompts of this length are refused with 429, or their stream breaks off.
        silent: it sends no usage.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prompts: list[int] = []
        self.refuse = self.broken = -1
        self.silent = False
        self.longest = 600
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        models = [{"id": "tiny", "max_model_len": self.server.longest}]
        self._send(200 if self.path == "/v1/models" else 404, {"data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, prompt, tokens = self.server, len(body["prompt"]), body["max_tokens"]
        server.prompts.append(prompt)
        assert body["model"] == "tiny"
        assert body["stream"]
        if prompt == server.refuse:
            self._send(429, {"error": {"message": "too many requests"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(tokens):
            if prompt == server.broken and i == 1:
                self.close_connection = True
                return
            reason = "length" if i == tokens - 1 else None
            self._event({"choices": [{"text": f"t{i}", "finish_reason": reason}]})
        if not server.silent:
            self._event({"choices": [], "usage": {"completion_tokens": tokens}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        text = f"data: {json.dumps(event)}\n\n".encode()
        self._chunk(text[:9])  # events need not come in one piece
        self._chunk(text[9:])

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server that is up."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
