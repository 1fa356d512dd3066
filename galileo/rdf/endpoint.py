"""A SPARQL 1.1 Protocol endpoint over HTTP, for one open graph.

It has neither authentication nor encryption, so by default it listens on loopback addresses only; a
proxy in front of it can add both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from galileo.errors import ConfigError, InputError
from galileo.http_server import BoundedHandler, BoundedServer
from galileo.rdf import protocol
from galileo.rdf.graphs import OpenGraph
from galileo.rdf.protocol import Refused, Request
from galileo.rdf.service import MISSING_HEADER, EndpointOptions, Service

DROPPED_BYTES_MAX = 16 << 20
"""Bytes that are read and discarded of a body that is too large."""
PIECE_BYTES = 1 << 16
_LENGTH = re.compile(r"[0-9]{1,10}")


class Endpoint:
    """Serves a graph over HTTP from its construction until `close`.

    Args:
        graph: not closed with the endpoint.
        options: address and limits.

    Raises:
        ConfigError: it cannot listen on the address.
    """

    def __init__(self, graph: OpenGraph, options: EndpointOptions | None = None) -> None:
        options = options or EndpointOptions()
        try:
            self._server = _Server(Service(graph, options))
        except OSError as error:
            raise ConfigError(
                f"expected an address to listen on, got {options.host}:{options.port}: "
                f"{error.strerror or error}",
                expected="free_address",
            ) from error
        self._server.begin("galileo-sparql")

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        return self._server.service.url

    def close(self) -> None:
        """Stops listening and cancels running queries."""
        self._server.end()
        self._server.service.stop()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(BoundedServer):
    def __init__(self, service: Service) -> None:
        self.service = service
        options = service.options
        try:
            super().__init__(
                options.host,
                options.port,
                handler=_Handler,
                connections_max=options.connections_max,
                idle_timeout_s=options.idle_timeout_s,
                held_bytes_max=options.answers_mib_max << 20,
            )
        except OSError:
            service.disconnects.close()
            raise
        host = f"[{options.host}]" if ":" in options.host else options.host
        service.url = f"http://{host}:{self.server_port}/sparql"


class _Handler(BoundedHandler, BaseHTTPRequestHandler):
    server_version = "galileo"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_PUT(self) -> None:
        self._respond()

    def do_DELETE(self) -> None:
        self._respond()

    def do_PATCH(self) -> None:
        self._respond()

    def do_OPTIONS(self) -> None:
        allow = {"Allow": "GET, HEAD, POST, OPTIONS"}
        if self.server.service.options.cors:
            allow["Access-Control-Allow-Methods"] = "GET, HEAD, POST"
            allow["Access-Control-Allow-Headers"] = "Accept, Content-Type"
        self._send(HTTPStatus.NO_CONTENT, b"", allow)

    def _respond(self) -> None:
        try:
            request = self._request()
            self.record_request()
            answer = self.server.service.answer(
                request, self.connection, host=str(self.client_address[0])
            )
        except Refused as refused:
            headers = {"Content-Type": "text/plain; charset=utf-8", **refused.headers}
            self._send(refused.status, f"{refused.text}\n".encode(), headers)
            return
        except InputError as error:  # the format cannot express the answer
            self._send(
                HTTPStatus.BAD_REQUEST,
                f"{error.message}\n".encode(),
                {"Content-Type": "text/plain; charset=utf-8"},
            )
            return
        charset = "; charset=utf-8" if answer.media_type.startswith("text/") else ""
        headers = {"Content-Type": answer.media_type + charset, "Vary": "Accept"}
        if answer.missing:
            headers[MISSING_HEADER] = ", ".join(map(str, answer.missing))
        self._send(HTTPStatus.OK, answer.body, headers)

    def _request(self) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, self.path, headers, self._body(headers))

    def _body(self, headers: Mapping[str, str]) -> bytes:
        """Reads the body; closes the connection if it refuses the body, which is left unread."""
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or ("content-length" not in headers and self._posts()):
            self.close_connection = True
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        size = int(length) if _LENGTH.fullmatch(length) else None
        if size is None or size > protocol.BODY_BYTES_MAX:
            self.close_connection = True
            self._drop(size or 0)
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"expected a body of at most {protocol.BODY_BYTES_MAX:,} bytes, got {length[:40]}",
            )
        body = self.rfile.read(size)
        if len(body) < size:
            # The beginning of a query can be a valid query.
            raise ConnectionResetError("the client disconnected within its request")
        return body

    def _drop(self, size: int) -> None:
        """Discards data of a body: a client that cannot send it would not read the response."""
        left = min(size, DROPPED_BYTES_MAX)
        while left and (dropped := self.rfile.read(min(left, PIECE_BYTES))):
            left -= len(dropped)

    def _posts(self) -> bool:
        return self.command in ("POST", "PUT", "PATCH")

    def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        cors = self.server.service.options.cors
        all_headers = {**headers, **({"Access-Control-Allow-Origin": cors} if cors else {})}
        for name, value in all_headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_body(body)
