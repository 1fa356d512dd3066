"""The ASGI application of a gateway."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from galileo import request_id
from galileo.client import pages
from galileo.client.async_client import AsyncClient
from galileo.errors import GalileoError, InputError
from galileo.gateway import documents, parameters
from galileo.gateway.aggregates import MISSING_HEADER, AggregateRoutes
from galileo.gateway.callers import Callers
from galileo.gateway.ccqs import TOKEN_HEADER, CcqRoutes
from galileo.gateway.cluster import ClusterRoutes
from galileo.gateway.formats import MEDIA_TYPES, Encoders, TableEncoder, preferred
from galileo.gateway.metrics import GatewayMetrics
from galileo.gateway.openapi import openapi
from galileo.gateway.options import GatewayOptions
from galileo.gateway.page import MapPage
from galileo.gateway.parameters import ItemsRequest, items_request
from galileo.gateway.problems import problem, problem_of
from galileo.gateway.routes import ROUTES
from galileo.gateway.sparql import SparqlQueries
from galileo.gateway.streamed import Streamed
from galileo.gateway.tiles import NoSuchTile, TileRoutes
from galileo.http_serving.hosts import LOOPBACK_NAMES, host_name, is_loopback
from galileo.model.schema import Schema
from galileo.rdf.protocol import Refused

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of each answer that has none of its own: it is for its caller alone."""
REQUEST_HEADER = "Galileo-Request"
"""The id of a request, by which its lines in the logs of all nodes can be found."""

_Handler = Callable[[Request], Awaitable[Response]]


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
        self._sparql_queries = SparqlQueries()
        self._continuous = CcqRoutes(self.callers, self._encoders)
        self._aggregates = AggregateRoutes(self.callers, self._encoders)
        self._cluster_routes = ClusterRoutes(self.callers, self._encoders)
        self._tiles = TileRoutes(self.callers, self._encoders)
        self._routes = [
            Route(route.path, self._answering(route.name), methods=list(route.methods))
            for route in ROUTES
        ]
        self._routes += MapPage(self._encoders).routes
        self.metrics = GatewayMetrics()
        self.metrics.readers = lambda: self.callers.readers
        self.app = self._application()

    def _application(self) -> Any:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self._options.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID"],
            expose_headers=[REQUEST_HEADER, TOKEN_HEADER, MISSING_HEADER, "ETag", "Location"],
        )
        inner = Starlette(
            routes=self._routes,
            middleware=[cors] if self._options.origins else [],
            exception_handlers={HTTPException: _refused, Exception: _failed},
        )
        return _Outer(inner, self._options, self.metrics)

    async def close(self) -> None:
        self._encoders.close()
        await self.callers.close()

    def stop(self) -> None:
        """Cancels queries that run long, and ends streams of events."""
        self._sparql_queries.stop()
        self._continuous.hubs.stop()

    def _answering(self, name: str) -> _Handler:
        handler: _Handler = getattr(self, f"_{name}")

        async def answer(request: Request) -> Response:
            request.scope["galileo_route"] = name
            try:
                return await handler(request)
            except NoSuchTile as error:
                return problem(HTTPStatus.NOT_FOUND, str(error))
            except GalileoError as error:
                return problem_of(error)
            except Refused as refused:
                return problem(refused.status, refused.text, headers=refused.headers)

        return answer

    # --- documents ---------------------------------------------------------------------------

    async def _landing(self, request: Request) -> Response:
        return _json(request, documents.landing(_url(request)))

    async def _conformance(self, request: Request) -> Response:
        return _json(request, documents.conformance())

    async def _api(self, request: Request) -> Response:
        return _json(request, openapi(_url(request)), documents.OPENAPI_JSON)

    async def _collections(self, request: Request) -> Response:
        async with self.callers.client(request) as client:
            schemas = await client.datasets()
        return _json(request, documents.collections(_url(request), schemas))

    async def _collection(self, request: Request) -> Response:
        schema = await self._schema_of(request)
        return _json(request, documents.collection(_url(request), schema))

    async def _queryables(self, request: Request) -> Response:
        schema = await self._schema_of(request)
        document = documents.queryables(_url(request), schema)
        return _json(request, document, documents.SCHEMA_JSON)

    async def _schema(self, request: Request) -> Response:
        schema = await self._schema_of(request)
        document = documents.item_schema(_url(request), schema)
        return _json(request, document, documents.SCHEMA_JSON)

    async def _schema_of(self, request: Request) -> Schema:
        async with self.callers.client(request) as client:
            return await client.schema(request.path_params["collectionId"])

    # --- observations ------------------------------------------------------------------------

    async def _items(self, request: Request) -> Response:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self.callers.client(request))
            schema = await client.schema(request.path_params["collectionId"])
            wanted = items_request(request.query_params, schema)
            accept = request.headers.get("accept", "")
            format = preferred(request.query_params.get("f"), accept, MEDIA_TYPES)
            if format == "geojson":
                return await self._page(request, client, schema, wanted)
            if wanted.after is not None:
                raise InputError(
                    f"expected f as geojson, which has pages, with 'after', got {format}; other "
                    "formats have all observations",
                    parameter="after",
                )
            tables: Any = client.select_batches(
                schema.name, wanted.query, columns=wanted.columns, limit=wanted.limit
            )
            stack.push_async_callback(tables.aclose)
            first = [table async for table in _first(tables)]
            columns = wanted.columns or schema.observation_schema.names
            arrow_schema = pa.schema([schema.observation_schema.field(name) for name in columns])
            encoder = TableEncoder(format, arrow_schema)
            pieces = encoder.encode(_joined(first, tables), self._encoders)
            return Streamed(pieces, MEDIA_TYPES[format], held=stack.pop_all())

    async def _page(
        self, request: Request, client: AsyncClient, schema: Schema, wanted: ItemsRequest
    ) -> Response:
        """A page of GeoJSON, with a link to the next one."""
        page = await client.select_page(
            schema.name,
            wanted.query,
            limit=wanted.limit or parameters.PAGE_LIMIT,
            columns=wanted.columns,
            after=wanted.after,
        )
        links = [documents.link("self", str(request.url), documents.GEOJSON)]
        if page.next is not None:
            following = request.url.include_query_params(after=page.next)
            links.append(documents.link("next", str(following), documents.GEOJSON))
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = await self._features(page.table, {"timeStamp": at, "links": links})
        return Response(body, media_type=documents.GEOJSON, headers={"Vary": "Accept"})

    async def _item(self, request: Request) -> Response:
        known = parameters.single_values(request.query_params, ("f",))
        preferred(known.get("f"), "", {"geojson": documents.GEOJSON})
        url, name = _url(request), request.path_params["featureId"]
        async with self.callers.client(request) as client:
            schema = await client.schema(request.path_params["collectionId"])
            try:
                table = await client.read_ids(schema.name, [name])
            except InputError as error:
                return problem(HTTPStatus.NOT_FOUND, error.message)
        feature = json.loads(await self._features(table, {}))["features"][0]
        collection = f"{url}/collections/{quote(schema.name)}"
        links = [
            documents.link("self", f"{collection}/items/{name}", documents.GEOJSON),
            documents.link("collection", collection, documents.JSON),
        ]
        return Response(json.dumps({**feature, "links": links}), media_type=documents.GEOJSON)

    async def _features(self, table: pa.Table, members: dict[str, Any]) -> bytes:
        """Observations with a column of ids as GeoJSON."""
        encoder = TableEncoder("geojson", table.schema, members=members, id_column=pages.ID)
        pieces = encoder.encode(_of_one(table), self._encoders)
        return b"".join([piece async for piece in pieces])

    async def _sparql(self, request: Request) -> Response:
        async with self.callers.client(request) as client:
            dataset = request.path_params["collectionId"]
            return await self._sparql_queries.answer(request, client, dataset)

    # --- aggregates --------------------------------------------------------------------------

    async def _cells(self, request: Request) -> Response:
        return await self._aggregates.cells(request)

    async def _series(self, request: Request) -> Response:
        return await self._aggregates.series(request)

    async def _latest(self, request: Request) -> Response:
        return await self._aggregates.latest(request)

    async def _summary(self, request: Request) -> Response:
        return await self._aggregates.summary(request)

    async def _estimate(self, request: Request) -> Response:
        return await self._aggregates.estimate(request)

    async def _explain(self, request: Request) -> Response:
        return await self._aggregates.explain(request)

    # --- tiles -------------------------------------------------------------------------------

    async def _tile_matrix_sets(self, request: Request) -> Response:
        return _json(request, self._tiles.sets(_url(request)))

    async def _tile_matrix_set(self, request: Request) -> Response:
        return _json(request, self._tiles.set(request, _url(request)))

    async def _tilesets(self, request: Request) -> Response:
        return _json(request, await self._tiles.tilesets(request, _url(request)))

    async def _tileset(self, request: Request) -> Response:
        return _json(request, await self._tiles.tileset(request, _url(request)))

    async def _tile(self, request: Request) -> Response:
        return await self._tiles.tile(request)

    # --- continuous queries ------------------------------------------------------------------

    async def _ccqs(self, request: Request) -> Response:
        return await self._continuous.all(request)

    async def _ccq(self, request: Request) -> Response:
        return await self._continuous.one(request)

    async def _ccq_labels(self, request: Request) -> Response:
        return await self._continuous.labels(request)

    async def _ccq_events(self, request: Request) -> Response:
        return await self._continuous.events(request)

    async def _events(self, request: Request) -> Response:
        return await self._continuous.merged_events(request)

    # --- the cluster -------------------------------------------------------------------------

    async def _cluster(self, request: Request) -> Response:
        return await self._cluster_routes.cluster(request)

    async def _whoami(self, request: Request) -> Response:
        return await self._cluster_routes.whoami(request)

    async def _samplers(self, request: Request) -> Response:
        return await self._cluster_routes.samplers(request)


async def _first(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    """The first table, if there is one: an error before it has a status of its own."""
    async for table in tables:
        yield table
        return


async def _of_one(table: pa.Table) -> AsyncIterator[pa.Table]:
    yield table


async def _joined(first: list[pa.Table], rest: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    while first:  # The table is not kept while it is sent.
        yield first.pop()
    async for table in rest:
        yield table


def _json(request: Request, document: Any, media_type: str = documents.JSON) -> Response:
    known = parameters.single_values(request.query_params, ("f",))
    preferred(known.get("f"), "", {"json": media_type})
    return Response(json.dumps(document), media_type=media_type)


def _url(request: Request) -> str:
    """The URL of the gateway, as the client addresses it."""
    return str(request.base_url).rstrip("/")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.NOT_FOUND:
        paths = ", ".join(route.path for route in ROUTES)
        return problem(status, f"there is no {request.url.path}; expected one of {paths}")
    return problem(status, str(error.detail), headers=headers)


async def _failed(request: Request, error: Exception) -> Response:
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of Galileo; its log has the reason")


class _Outer:
    """What surrounds each request: host check, request id, headers for browsers, metrics."""

    def __init__(self, app: Any, options: GatewayOptions, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics
        names = {options.host, *options.hosts, *LOOPBACK_NAMES}
        is_checked = bool(options.hosts) or is_loopback(options.host)
        self._names = {name.lower() for name in names} if is_checked else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started, status = time.monotonic(), 0

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                extra = {**SECURITY_HEADERS, REQUEST_HEADER: request_id.current()}
                raw = {name.lower().encode(): value.encode() for name, value in extra.items()}
                own = dict(message.get("headers", ()))
                rest = [pair for pair in raw.items() if pair[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *rest]}
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]

        headers = dict(scope["headers"])
        request_id.begin(request_id.sound(headers.get(b"galileo-request", b"").decode("latin-1")))
        is_known = self._is_known(headers.get(b"host", b"").decode("latin-1"))
        app = self._app if is_known else _misdirected
        try:
            await app(scope, receive, send_with_headers)
        finally:
            route = scope.get("galileo_route", "none")
            self._metrics.record(route, status, time.monotonic() - started)

    def _is_known(self, host: str) -> bool:
        return self._names is None or host_name(host) in self._names


async def _misdirected(scope: Any, receive: Any, send: Any) -> None:
    text = "expected a Host of this gateway; name further ones with --host-name"
    response = problem(HTTPStatus.MISDIRECTED_REQUEST, text)
    await response(scope, receive, send)
