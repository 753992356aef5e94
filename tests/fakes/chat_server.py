"""A server that speaks the chat completions API over real HTTP, well or badly as a test asks."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[dict[str, Any]], str]
"""Gives the message's text for a request's body."""


class ChatServer(http.server.ThreadingHTTPServer):
    """Answers `POST /v1/chat/completions`; set the attributes before a request."""

    daemon_threads = True
    answer: Answer
    """Text of the message."""
    body: bytes | None = None
    """Sent instead of a completion."""
    status: int = 200
    hangs_up: bool = False
    """Announces a body and closes the connection in the middle of it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _ChatHandler)
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.released = threading.Event()
        self.released.set()

    @property
    def base_url(self) -> str:
        """Where it listens, up to `/v1`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def hold(self) -> None:
        """Leave requests without an answer until `released` is set."""
        self.released.clear()


class _ChatHandler(http.server.BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        self.server.released.wait(timeout=60)
        body = self.server.body
        if body is None and self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": self.server.answer(request)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps({"object": "chat.completion", "model": request["model"], "choices": [choice]}).encode()
        with contextlib.suppress(OSError):  # a caller that gave up has closed its end
            self.send_response(404 if body is None else self.server.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body or b"") + self.server.hangs_up))
            self.end_headers()
            self.wfile.write(body or b"")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def chat_server(answer: Answer) -> Iterator[ChatServer]:
    """Run a server until the block ends."""
    server = ChatServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def unused_port() -> int:
    """Give a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
