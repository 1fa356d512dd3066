"""Observations of a dataset: pages of GeoJSON, files, single ones, ingest and deletion."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.errors import InputError
from galileo.gateway import documents, parameters
from galileo.gateway.callers import Callers
from galileo.gateway.crs import Crs, check_columns_crs, content_crs, crs_of
from galileo.gateway.formats import ID_COLUMN, MEDIA_TYPES, Encoders, TableEncoder, preferred
from galileo.gateway.ingestion import IngestRoute
from galileo.gateway.json_answers import url_of
from galileo.gateway.keyed_datasets import (
    delete_matching,
    delete_observation,
    gone,
    token_headers,
)
from galileo.gateway.parameters import ItemsRequest, items_request
from galileo.gateway.problems import problem
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.streamed import file_answer
from galileo.model.grouping import OBSERVATIONS
from galileo.model.rows import RowOptions
from galileo.model.schema import Schema


class ItemRoutes(RouteGroup):
    """Answers requests for observations."""

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self._ingest = IngestRoute(callers, encoders)

    async def items(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._ingest.store(request)
        if request.method == "DELETE":
            async with self._callers.client(request) as client:
                return await delete_matching(client, request)
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.client(request))
            schema = await client.schema(request.path_params["collectionId"])
            wanted = await items_request(request.query_params, schema)
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
            check_columns_crs(wanted.crs, format)
            headers = await token_headers(client, schema)
            columns = wanted.columns or tuple(schema.observation_schema.names)
            tables: Any = client.select_batches(
                schema.name, wanted.query, columns=columns, limit=wanted.limit
            )
            stack.push_async_callback(tables.aclose)
            arrow_schema = RowOptions(columns).described_schema(schema)
            encoder, media_type = TableEncoder(format, arrow_schema), MEDIA_TYPES[format]
            return await file_answer(
                tables,
                encoder,
                self._encoders,
                media_type=media_type,
                held=stack,
                headers=headers,
            )

    async def _page(
        self, request: Request, client: AsyncClient, schema: Schema, wanted: ItemsRequest
    ) -> Response:
        """A page of GeoJSON, with a link to the next one."""
        token = {} if wanted.after is not None else await token_headers(client, schema)
        page = await client.select_page(
            schema.name,
            wanted.query,
            limit=wanted.limit or parameters.PAGE_LIMIT,
            columns=wanted.columns,
            after=wanted.after,
        )
        links = [
            documents.link("self", str(request.url), documents.GEOJSON),
            documents.page_link(str(request.url.remove_query_params("f"))),
        ]
        if page.next is not None:
            following = request.url.include_query_params(after=page.next)
            links.append(documents.link("next", str(following), documents.GEOJSON))
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        members = {"timeStamp": at, "links": links}
        if wanted.after is None and page.next is None:
            members["numberMatched"] = page.table.num_rows
        elif wanted.after is None and wanted.query == "":  # Nodes have this count in memory.
            counted = await client.aggregate(schema.name, by=[], require_complete=True)
            members["numberMatched"] = sum(counted.table.column(OBSERVATIONS).to_pylist())
        body = await self._features(page.table, members, wanted.crs)
        headers = {"Vary": "Accept", **content_crs(wanted.crs), **token}
        return Response(body, media_type=documents.GEOJSON, headers=headers)

    async def item(self, request: Request) -> Response:
        if request.method == "DELETE":
            async with self._callers.client(request) as client:
                return await delete_observation(client, request)
        known = parameters.single_values(request.query_params, ("f", "crs"))
        preferred(known.get("f"), "", {"geojson": documents.GEOJSON})
        system = crs_of(known, "crs")
        url, name = url_of(request), request.path_params["featureId"]
        async with self._callers.client(request) as client:
            schema = await client.schema(request.path_params["collectionId"])
            token = await token_headers(client, schema)
            try:
                table = await client.read_ids(schema.name, [name])
            except InputError as error:
                return problem(HTTPStatus.NOT_FOUND, error.message)
        if not table.num_rows:
            return gone(schema, name)
        feature = json.loads(await self._features(table, {}, system))["features"][0]
        collection = documents.collection_url(url, schema)
        links = [
            documents.link("self", f"{collection}/items/{name}", documents.GEOJSON),
            documents.page_link(f"{collection}/items/{name}"),
            documents.link("collection", collection, documents.JSON),
        ]
        body = json.dumps({**feature, "links": links})
        headers = {**content_crs(system), **token}
        return Response(body, media_type=documents.GEOJSON, headers=headers)

    async def _features(self, table: pa.Table, members: dict[str, Any], system: Crs) -> bytes:
        """Observations with a first column of ids as GeoJSON; a feature can have its name, too."""
        table = system.positions(table.rename_columns([ID_COLUMN, *table.column_names[1:]]))
        encoder = TableEncoder("geojson", table.schema, members=members, id_column=ID_COLUMN)
        return await self._encoders.encode_whole(encoder, table)
