"""The ASGI application of a gateway."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from galileo import request_id
from galileo.errors import GalileoError, InputError, Overloaded
from galileo.gateway import html_documents
from galileo.gateway.aggregates import MISSING_HEADER, RANK_ERROR_HEADER, AggregateRoutes
from galileo.gateway.callers import Callers
from galileo.gateway.ccq_collections import CcqCollections, is_ccq
from galileo.gateway.ccqs import CcqRoutes
from galileo.gateway.channels import ChannelRoutes
from galileo.gateway.cluster import ClusterRoutes
from galileo.gateway.document_routes import DocumentRoutes
from galileo.gateway.documents import EVENT_STREAM, HTML
from galileo.gateway.edr import EdrRoutes
from galileo.gateway.events import refused_stream
from galileo.gateway.formats import Encoders
from galileo.gateway.items import ItemRoutes
from galileo.gateway.json_answers import (
    compressed,
    is_worth_compressing,
    takes_gzip,
)
from galileo.gateway.metrics import GatewayMetrics
from galileo.gateway.options import GatewayOptions
from galileo.gateway.page import MapPage
from galileo.gateway.problems import RequestRefused, problem, problem_of
from galileo.gateway.request_bodies import RequestBodies, check_change
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.routes import LIST_CCQS, ROUTES, Handler, RouteInfo, right_of
from galileo.gateway.sparql import SparqlRoutes
from galileo.gateway.subscriptions import SubscriptionRoutes
from galileo.gateway.tiles import NoSuchTile, TileRoutes
from galileo.gateway.updates import TOKEN_HEADER
from galileo.http_serving.hosts import LOOPBACK_NAMES, host_name, is_loopback
from galileo.http_serving.proxies import TrustedProxies

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of each answer that has none of its own: it is for its caller alone."""
HSTS_S = 365 * 86_400
"""For so long browsers that came by TLS come by TLS alone."""
REQUEST_HEADER = "Galileo-Request"
"""The id of a request, by which its lines in the logs of all nodes can be found."""


class Gateway:
    """Answers the requests of a gateway; belongs to one event loop.

    Args:
        options: of the gateway.

    Attributes:
        app: the ASGI application.
        metrics: of its requests.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self.callers = Callers(options)
        self._encoders = Encoders()
        self._bodies = RequestBodies()
        self._sparql = SparqlRoutes(self.callers, self._encoders)
        self._continuous = CcqRoutes(self.callers, self._encoders)
        self._channels = ChannelRoutes(self.callers, self._encoders)
        self._ccq_collections = CcqCollections(self.callers, self._encoders)
        kinds = (
            *(DocumentRoutes, AggregateRoutes, TileRoutes, EdrRoutes, ClusterRoutes),
            *(ItemRoutes, SubscriptionRoutes),
        )
        self._groups: list[RouteGroup] = [
            *(kind(self.callers, self._encoders) for kind in kinds),
            *(self._sparql, self._continuous, self._channels),
        ]
        self._routes = [
            Route(
                _matched(route.path),
                self._answering(route, self._handler(route.name)),
                methods=list(route.methods),
            )
            for route in ROUTES
        ]
        self._routes += MapPage(self._encoders).routes
        for one in self._routes:  # Starlette's patterns end before a line feed, and have no others.
            pattern = one.path_regex.pattern.removesuffix("$")
            one.path_regex = re.compile(rf"{pattern}\Z", re.DOTALL)
        self.metrics = GatewayMetrics()
        self.metrics.readers = lambda: self.callers.readers
        self.app = self._application()

    def _application(self) -> Any:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self._options.origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=[
                *("Authorization", "Content-Crs", "Content-Type", "Idempotency-Key"),
                *("If-Match", "Last-Event-ID", REQUEST_HEADER),
            ],
            expose_headers=[
                *(REQUEST_HEADER, TOKEN_HEADER, MISSING_HEADER, RANK_ERROR_HEADER),
                *("Content-Crs", "ETag", "Location", "Retry-After"),
            ],
        )
        inner = Starlette(
            routes=self._routes,
            middleware=[cors] if self._options.origins else [],
            exception_handlers={HTTPException: _refused, Exception: _failed},
        )
        inner.router.redirect_slashes = False  # `_refused` redirects by the proxy's URL.
        return _Outer(inner, self._options, self.metrics)

    async def close(self) -> None:
        self._encoders.close()
        await self.callers.close()

    def stop(self) -> None:
        """Cancels queries that run long, and ends streams of events."""
        self._sparql.stop()
        self._continuous.hubs.stop()
        self._channels.waits.stop()

    def _handler(self, name: str) -> Handler:
        """The method of a group that has the name of a route."""
        handlers = (getattr(group, name, None) for group in self._groups)
        handler: Handler = next(filter(None, handlers))
        return handler

    def _answering(self, route: RouteInfo, handler: Handler) -> Handler:
        of_ccq: Handler = getattr(self._ccq_collections, route.name, handler)

        async def representation(request: Request) -> Response:
            request.scope["galileo_route"] = route.name
            is_read = request.method in ("GET", "HEAD")
            given = request.query_params.get("f"), request.headers.get("accept", "")
            if is_read and html_documents.is_wanted(route, *given):
                answer = await document_answer(html_documents.as_document(request, route))
                answer = await self._encoders.run(
                    lambda: html_documents.page_answer(answer, request, route)
                )
            else:
                answer = await document_answer(request)
            if HTML in route.media_types:
                answer.headers.setdefault("Vary", "Accept")
            return await self._compressed(request, answer)

        async def document_answer(request: Request) -> Response:
            is_read = request.method in ("GET", "HEAD")
            is_of_ccq = is_read and is_ccq(request)
            right = LIST_CCQS if is_of_ccq else right_of(route, request.method)
            try:
                # Nothing of a body is read before its caller is known to have the right.
                caller = await self.callers.admit(request, right)
                async with self._bodies.admitted(request, caller) as admitted:
                    if not is_read:
                        check_change(
                            admitted,
                            systems=route.body_systems,
                            headers=route.parameters_of(request.method),
                        )
                    return await (of_ccq if is_of_ccq else handler)(admitted)
            except NoSuchTile as error:
                return problem(HTTPStatus.NOT_FOUND, str(error))
            except GalileoError as error:
                is_stream = is_read and EVENT_STREAM in route.media_types
                return refused_stream(error) if is_stream else problem_of(error)
            except RequestRefused as refused:
                return problem(refused.status, refused.text, headers=refused.headers)

        return representation

    async def _compressed(self, request: Request, answer: Response) -> Response:
        """An answer as its client takes it: documents of some size compressed, if it can."""
        if not is_worth_compressing(answer):
            return answer
        answer.headers.add_vary_header("Accept-Encoding")
        if not takes_gzip(request):
            return answer
        try:
            return await self._encoders.run(lambda: compressed(answer))
        except Overloaded:
            return answer


def _matched(path: str) -> str:
    """The path of a route as Starlette matches it; some ids can have slashes."""
    for name in ("locationId", "subscriptionId"):
        path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
    return path


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    path = request.url.path
    if status == HTTPStatus.NOT_FOUND and path.endswith("/") and request.scope["path"] != "/":
        shorter = str(request.url.replace(path=path.rstrip("/")))
        return Response(status_code=HTTPStatus.PERMANENT_REDIRECT, headers={"Location": shorter})
    if status == HTTPStatus.NOT_FOUND:
        paths = ", ".join(route.path for route in ROUTES)
        return problem(status, f"there is no {path}; expected one of {paths}")
    return problem(status, str(error.detail), headers=headers)


async def _failed(request: Request, error: Exception) -> Response:
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of Galileo; its log has the reason")


class _Outer:
    """What surrounds each request: proxies, host check, request id, headers, metrics."""

    def __init__(self, app: Any, options: GatewayOptions, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics
        names = {options.host, *options.hosts, *LOOPBACK_NAMES}
        is_checked = bool(options.hosts) or is_loopback(options.host)
        self._names = {name.lower() for name in names} if is_checked else None
        self._root_path = options.root_path
        self._proxies = TrustedProxies(options.proxies)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started, status = time.monotonic(), 0

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                extra = {**SECURITY_HEADERS, REQUEST_HEADER: request_id.current()}
                if scope["scheme"] == "https":  # Of the gateway, or of a named proxy.
                    extra["Strict-Transport-Security"] = f"max-age={HSTS_S}"
                raw = {name.lower().encode(): value.encode() for name, value in extra.items()}
                own = dict(message.get("headers", ()))
                rest = [pair for pair in raw.items() if pair[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *rest]}
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]

        headers = dict(scope["headers"])
        request_id.begin(request_id.sound(headers.get(b"galileo-request", b"").decode("latin-1")))
        try:
            await self._addressed(scope)(scope, receive, send_with_headers)
        finally:
            route = scope.get("galileo_route", "none")
            self._metrics.record(route, status, time.monotonic() - started)

    def _addressed(self, scope: Any) -> Any:
        """The application that answers a request, whose scope gets the URL that its sender used."""
        headers: dict[str, str] = {}
        for raw, value in scope["headers"]:
            name, text = raw.decode("latin-1"), value.decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
        host, _ = scope.get("client") or ("", 0)
        try:
            sent = self._proxies.read(host, headers)
        except InputError as error:
            return problem_of(error)
        named = [headers.get("host", ""), *([sent.host] if sent.host else [])]
        if self._names is not None and not {host_name(one) for one in named} <= self._names:
            return _misdirected
        prefix = sent.prefix or self._root_path
        scope["root_path"], scope["path"] = prefix, prefix + scope["path"]
        scope["scheme"] = sent.scheme or scope["scheme"]
        if sent.client:
            scope["client"] = (sent.client, 0)
            if (connection := scope.get("galileo_connection")) is not None:
                connection.host = sent.client  # Whose share of the connections it is.
        if sent.host:
            rest = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope["headers"] = [(b"host", sent.host.encode("latin-1")), *rest]
        return self._app


async def _misdirected(scope: Any, receive: Any, send: Any) -> None:
    text = "expected a Host of this gateway, got another; its operator can add names"
    response = problem(HTTPStatus.MISDIRECTED_REQUEST, text)
    await response(scope, receive, send)
