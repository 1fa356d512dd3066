"""A real HTTP server for webhooks, in a thread."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

TIMEOUT_S = 60.0


class WebhookReceiver:
    """Keeps what it accepts.

    Attributes:
        url: to push to.
        status: of the next answers; with 2xx a request is accepted.
        refused: a document with this text in it is refused with 422.
        accepted: headers and documents, in order.
        bodies: the same with the documents as they came.
        requests: how many came.
    """

    def __init__(self) -> None:
        self.status = 204
        self.refused = "\0"
        self.requests = 0
        self.bodies: list[tuple[dict[str, str], str]] = []
        self.accepted: list[tuple[dict[str, str], dict[str, Any]]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.requests += 1
                status = 422 if receiver.refused in body else receiver.status
                if status < 300:
                    receiver.bodies.append((dict(self.headers), body))
                    receiver.accepted.append((dict(self.headers), json.loads(body)))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def keys(self) -> list[str]:
        """Of the accepted requests."""
        return [headers["webhook-id"] for headers, _ in self.accepted]

    def pairs(self, *columns: str) -> list[tuple[Any, ...]]:
        """The subscription and some columns of the observation of each accepted notification."""
        return [
            (subscription, *(document["features"][row]["properties"][name] for name in columns))
            for _, document in list(self.accepted)
            for match in document["matches"]
            for row in match["rows"]
            for subscription in match["subscriptions"]
        ]


def wait_until(condition: Callable[[], bool], *, timeout_s: float = TIMEOUT_S) -> None:
    """Waits until a condition holds; fails if it does not within a time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.02)


def once(values: Sequence[Any]) -> bool:
    """Whether each value is there once."""
    return len(set(values)) == len(values)
