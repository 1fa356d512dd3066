"""A real HTTP server for webhooks, in a thread."""

from __future__ import annotations

import hashlib
import http.server
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

TIMEOUT_S = 60.0


class WebhookReceiver:
    """Keeps what it accepts.

    Attributes:
        url: to push to.
        status: of the next answers; with 2xx a request is accepted.
        delay_s: before the next answers.
        is_mute: whether it closes connections without an answer, also for what it accepts.
        refused: a document with this text in it is refused with 422.
        accepted: headers and documents, in order.
        bodies: the same with the documents as they came.
        requests: how many came.
    """

    def __init__(self) -> None:
        self.status = 204
        self.delay_s = 0.0
        self.is_mute = False
        self.refused = "\0"
        self.requests = 0
        self.bodies: list[tuple[dict[str, str], str]] = []
        self.accepted: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.lock = threading.Lock()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                time.sleep(receiver.delay_s)
                with receiver.lock:
                    receiver.requests += 1
                    status = 422 if receiver.refused in body else receiver.status
                    receiver.take(dict(self.headers), body, is_accepted=status < 300)
                if receiver.is_mute:
                    self.close_connection = True
                    return
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

    def take(self, headers: dict[str, str], body: str, *, is_accepted: bool) -> None:
        """Keeps a request; one after the other."""
        if is_accepted:
            self.bodies.append((headers, body))
            self.accepted.append((headers, json.loads(body)))

    def keys(self) -> list[str]:
        """Of the accepted requests."""
        return [headers["webhook-id"] for headers, _ in self.accepted]

    def pairs(self, *columns: str) -> list[tuple[Any, ...]]:
        """The subscription and some columns of the observation of each accepted notification."""
        return [
            pair for _, document in list(self.accepted) for pair in pairs_of(document, *columns)
        ]


class StrictReceiver(WebhookReceiver):
    """Checks what comes at least once and in order, and keeps no documents.

    Attributes:
        attempts, repeated: requests, and those among them whose key was accepted before.
        errors: a key that came with two documents, and what came out of order.
        on_new: called with each document that is accepted for the first time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attempts = self.repeated = 0
        self.errors: list[str] = []
        self.on_new: Callable[[dict[str, Any]], None] = lambda document: None
        self._digests: dict[str, bytes] = {}
        self._known: set[str] = set()
        self._last: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def take(self, headers: dict[str, str], body: str, *, is_accepted: bool) -> None:
        key, digest = headers["webhook-id"], hashlib.sha256(body.encode()).digest()
        self.attempts += 1
        self.repeated += key in self._known
        if self._digests.setdefault(key, digest) != digest:
            self.errors.append(f"{key} had another document before")
        if not is_accepted or key in self._known:
            return
        self._known.add(key)
        document = json.loads(body)
        place = document["execution"], document["offset"]
        if place <= self._last[document["partition"]]:
            self.errors.append(f"{key} is out of order")
        self._last[document["partition"]] = place
        self.on_new(document)


def pairs_of(document: dict[str, Any], *columns: str) -> Iterator[tuple[Any, ...]]:
    """The subscription and some columns of the observation of each notification."""
    for match in document["matches"]:
        for row, name in itertools.product(match["rows"], match["subscriptions"]):
            properties = document["features"][row]["properties"]
            yield name, *(properties[column] for column in columns)


def once(values: Sequence[Any]) -> bool:
    """Whether each value is there once."""
    return len(set(values)) == len(values)
