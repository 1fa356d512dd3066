"""OGC API Tiles: geohash cells with counts and statistics, as vector tiles."""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from galileo.arrays import one_array
from galileo.client.async_client import AsyncClient
from galileo.errors import InputError, UnsupportedQuery
from galileo.gateway import documents, parameters, vector_tiles
from galileo.gateway.aggregates import grouping_of, missing_header
from galileo.gateway.callers import Callers
from galileo.gateway.formats import Encoders, preferred
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.shared_calls import SharedCalls
from galileo.gateway.tile_cache import ClientVersions, EncodedTile, KnownVersion, TileCache, TileKey
from galileo.gateway.tile_matrix_sets import SETS, ZOOM_MAX, Tile, TileMatrixSet
from galileo.geo import geohash
from galileo.model.grouping import OBSERVATIONS, CellKey
from galileo.model.schema import Schema
from galileo.query.builder import Condition
from galileo.query.cql_syntax import names_now

_CACHED = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}
"""Of tiles: clients keep them, and ask each time whether they are still valid."""


class NoSuchTile(Exception):
    """A path names a tile, or a tile matrix set, that there is not."""


class TileRoutes(RouteGroup):
    """Answers requests for tiles."""

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self._versions = ClientVersions()
        self._cache = TileCache()
        self._making = SharedCalls[tuple[AsyncClient, TileKey, float], EncodedTile]()

    async def tile_matrix_sets(self, request: Request) -> Response:
        check_json(request)
        url = url_of(request)
        listed = [
            {
                "id": tiles.id,
                "title": tiles.title,
                "uri": tiles.uri,
                "crs": tiles.crs,
                "links": [
                    documents.link("self", f"{url}/tileMatrixSets/{tiles.id}", documents.JSON)
                ],
            }
            for tiles in SETS.values()
        ]
        links = [documents.link("self", f"{url}/tileMatrixSets", documents.JSON)]
        return json_answer({"tileMatrixSets": listed, "links": links})

    async def tile_matrix_set(self, request: Request) -> Response:
        """The definition of a tile matrix set. Raises NoSuchTile."""
        check_json(request)
        tiles, url = _set_of(request), url_of(request)
        link = documents.link("self", f"{url}/tileMatrixSets/{tiles.id}", documents.JSON)
        return json_answer(tiles.document([link]))

    async def tilesets(self, request: Request) -> Response:
        """The tile sets of a dataset, one for each tile matrix set."""
        check_json(request)
        schema, url = await self._schema(request), url_of(request)
        at = f"{documents.collection_url(url, schema)}/tiles"
        own = documents.link("self", at, documents.JSON)
        listed = [_tileset(url, schema, tiles) for tiles in SETS.values()]
        return json_answer({"links": [own], "tilesets": listed})

    async def tileset(self, request: Request) -> Response:
        """One of them. Raises NoSuchTile."""
        check_json(request)
        tiles = _set_of(request)
        schema, url = await self._schema(request), url_of(request)
        return json_answer({**_tileset(url, schema, tiles), "layers": [_layer(schema)]})

    async def _schema(self, request: Request) -> Schema:
        async with self._callers.client(request) as client:
            return await client.schema(request.path_params["collectionId"])

    async def tile(self, request: Request) -> Response:
        """A tile, or that the client has it. Raises NoSuchTile."""
        tile = _tile_of(request)
        place = (tile.tiles.id, tile.zoom, tile.row, tile.column)
        async with self._callers.client(request) as client:
            schema = await client.schema(request.path_params["collectionId"])
            known = await self._versions.known(client, schema.name)
            key = TileKey(known.version.schema.key, place, request.url.query)
            encoded = self._cache.get(key, known)
            if encoded is None:
                # Not shared by callers with other tokens, whose quotas are others, nor with a
                # request that has a newer version: the tile may be older than that.
                encoded = await self._making.call(
                    (client, key, known.asked_s),
                    lambda: self._make(client, known, key, request, tile),
                )
        return _answer(request, encoded)

    async def _make(
        self, client: AsyncClient, known: KnownVersion, key: TileKey, request: Request, tile: Tile
    ) -> EncodedTile:
        schema = known.version.schema
        given, query = await parameters.filtered(request.query_params, schema, parameters.TILE)
        preferred(given.get("f"), "", {"mvt": vector_tiles.MEDIA_TYPE})
        if isinstance(query, Condition) and names_now(query.tree):
            raise UnsupportedQuery(
                "expected the filter of a tile without now(), since tiles are kept until the "
                "dataset changes; write the time itself",
                expected="no_now",
            )
        grouping = grouping_of([CellKey(5 * tile.precision)], given.get("statistics", ""), schema)
        condition = tile.condition()
        if condition is not None:
            query = condition if isinstance(query, str) else condition & query
        answer = await client.aggregate(
            schema.key, query, by=grouping.keys, statistics=dict(grouping.statistics)
        )
        body = await self._encoders.run(
            functools.partial(_encoded, answer.table, tile, schema.name)
        )
        state = known.state_of(answer.partitions, ranges=answer.ranges, frontier=answer.frontier)
        encoded = EncodedTile(
            body, state if answer.complete else None, answer.partitions, answer.missing
        )
        self._cache.put(key, encoded)
        return encoded


def _set_of(request: Request) -> TileMatrixSet:
    """The tile matrix set of a path. Raises NoSuchTile."""
    name = request.path_params["tileMatrixSetId"]
    if name not in SETS:
        raise NoSuchTile(f"expected a tile matrix set of {', '.join(SETS)}, got {name!r}")
    return SETS[name]


def _tile_of(request: Request) -> Tile:
    """The tile of a path.

    Raises:
        InputError: it has no numbers.
        NoSuchTile: there is none.
    """
    tiles = _set_of(request)
    names = ("tileMatrix", "tileRow", "tileCol")
    zoom, row, column = (_number(name, request.path_params[name]) for name in names)
    if not tiles.has(zoom, row, column):
        raise NoSuchTile(
            f"{tiles.id} has no tile {zoom}/{row}/{column} (zoom, row, column); zooms are 0 to "
            f"{ZOOM_MAX}"
        )
    return Tile(tiles, zoom, row, column)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InputError(f"expected {name} as a number, got {text[:200]!r}", parameter=name)
    return int(text)


def _encoded(table: pa.Table, tile: Tile, layer: str) -> bytes:
    """The groups by cell that a tile shows, encoded."""
    cells = geohash.from_text(table.column(0).to_numpy())
    shown = tile.has_cells(cells)
    cells, table = cells[shown], table.filter(pa.array(shown)).combine_chunks()
    names = ["cell", *table.column_names[1:]]
    columns = {name: one_array(column) for name, column in zip(names, table.columns, strict=True)}
    return vector_tiles.encode(layer, columns, tile.rectangles(cells))


def _answer(request: Request, tile: EncodedTile) -> Response:
    if tile.missing:
        headers = missing_header(tile.missing)
        return Response(tile.body, headers=headers, media_type=vector_tiles.MEDIA_TYPE)
    headers = {**_CACHED, "ETag": tile.etag}
    if _has(request.headers.get("if-none-match", ""), tile.etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(tile.body, headers=headers, media_type=vector_tiles.MEDIA_TYPE)


def _has(header: str, etag: str) -> bool:
    """Whether an `If-None-Match` header names an entity tag."""
    named = [one.strip().removeprefix("W/") for one in header.split(",")]
    return etag in named or "*" in named


def _tileset(url: str, schema: Schema, tiles: TileMatrixSet) -> dict[str, Any]:
    dataset, scheme = documents.collection_url(url, schema), f"{url}/tileMatrixSets/{tiles.id}"
    at = f"{dataset}/tiles/{tiles.id}"
    template = f"{at}/{{tileMatrix}}/{{tileRow}}/{{tileCol}}"
    return {
        "title": f"{schema.name}: cells with counts",
        "dataType": "vector",
        "crs": tiles.crs,
        "tileMatrixSetURI": tiles.uri,
        "links": [
            documents.link("self", at, documents.JSON),
            documents.link(f"{documents.REL}tiling-scheme", scheme, documents.JSON),
            {**documents.link("item", template, vector_tiles.MEDIA_TYPE), "templated": True},
            documents.link(f"{documents.REL}geodata", dataset, documents.JSON),
        ],
    }


def _layer(schema: Schema) -> dict[str, Any]:
    properties = {"cell": {"type": "string"}, OBSERVATIONS: {"type": "integer"}}
    return {
        "id": schema.name,
        "dataType": "vector",
        "geometryDimension": 2,
        "propertiesSchema": {"type": "object", "properties": properties},
    }
