"""A SPARQL 1.1 Protocol endpoint over HTTP, for one open graph.

It has neither authentication nor encryption, so by default it listens on loopback addresses only; a
proxy in front of it can add both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from galileo.errors import ConfigError, InputError
from galileo.http_serving.hosts import url_of
from galileo.optional_imports import library
from galileo.rdf import protocol
from galileo.rdf.graphs import OpenGraph
from galileo.rdf.protocol import Refused, Request
from galileo.rdf.service import MISSING_HEADER, EndpointOptions, Service

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

_LENGTH = re.compile(r"[0-9]{1,10}")
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


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
        serving = library("galileo.http_serving.server", purpose="a SPARQL endpoint")
        limits = library("galileo.http_serving.protocol", purpose="a SPARQL endpoint").HttpLimits(
            connections_max=options.connections_max,
            idle_timeout_s=options.idle_timeout_s,
            held_bytes_max=options.answers_mib_max << 20,
        )
        app = SparqlApp()
        try:
            self._server = serving.HttpServer(
                app, host=options.host, port=options.port, limits=limits
            )
        except OSError as error:
            raise ConfigError(
                f"expected an address to listen on, got {options.host}:{options.port}: "
                f"{error.strerror or error}",
                expected="free_address",
            ) from error
        self.url = f"{url_of(options.host, self._server.port)}/sparql"
        self._service = app.service = Service(graph, options, url=self.url)
        self._thread = serving.ServerThread(self._server, "galileo-sparql")

    def close(self) -> None:
        """Stops listening and cancels running queries."""
        self._thread.stop(self._service.stop)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SparqlApp:
    """The ASGI application of an endpoint; its service is set before the first request."""

    service: Service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        requests = library("starlette.requests", purpose="a SPARQL endpoint")
        response = await self._respond(requests.Request(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, request: HttpRequest) -> Response:
        if request.method == "OPTIONS":
            return self._options()
        try:
            sent = Request(
                request.method, _target(request), request.headers, await body_of(request)
            )
            host = request.client.host if request.client else ""
            answer = await self.service.answer(sent, host=host)
        except Refused as refused:
            text = f"{refused.text}\n".encode()
            return self._response(refused.status, text, {**_TEXT, **refused.headers})
        except InputError as error:  # the format cannot express the answer
            return self._response(HTTPStatus.BAD_REQUEST, f"{error.message}\n".encode(), _TEXT)
        charset = "; charset=utf-8" if answer.media_type.startswith("text/") else ""
        headers = {"Content-Type": answer.media_type + charset, "Vary": "Accept"}
        if answer.missing:
            headers[MISSING_HEADER] = ", ".join(map(str, answer.missing))
        return self._response(HTTPStatus.OK, answer.body, headers)

    def _options(self) -> Response:
        allow = {"Allow": "GET, HEAD, POST, OPTIONS"}
        if self.service.options.cors:
            allow["Access-Control-Allow-Methods"] = "GET, HEAD, POST"
            allow["Access-Control-Allow-Headers"] = "Accept, Content-Type"
        return self._response(HTTPStatus.NO_CONTENT, b"", allow)

    def _response(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> Response:
        cors = self.service.options.cors
        allowed = {"Access-Control-Allow-Origin": cors} if cors else {}
        responses = library("starlette.responses", purpose="a SPARQL endpoint")
        response: Response = responses.Response(
            body, status_code=status, headers={**headers, **allowed}
        )
        return response


def _target(request: HttpRequest) -> str:
    """The target of the request line; its path is not decoded."""
    query = request.scope["query_string"].decode("ascii", "replace")
    path: str = request.scope["raw_path"].decode("ascii", "replace")
    return f"{path}?{query}" if query else path


async def body_of(request: HttpRequest) -> bytes:
    """Reads the body. Raises Refused, and has the connection closed, if it is too large."""
    headers = request.headers
    is_post = request.method in ("POST", "PUT", "PATCH")
    if "transfer-encoding" in headers or ("content-length" not in headers and is_post):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length", Connection="close")
    length = headers.get("content-length", "0")
    size = int(length) if _LENGTH.fullmatch(length) else None
    if size is None or size > protocol.BODY_BYTES_MAX:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected a body of at most {protocol.BODY_BYTES_MAX:,} bytes, got {length[:40]}",
            Connection="close",
        )
    return await request.body()
