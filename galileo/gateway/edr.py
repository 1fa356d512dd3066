"""OGC API Environmental Data Retrieval: observations by a place, and locations."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.errors import InputError
from galileo.gateway import coverage_json, documents, edr_documents, locations, parameters
from galileo.gateway.crs import CRS84, content_crs, crs_of
from galileo.gateway.edr_requests import (
    COVERAGE_JSON,
    FORMATS,
    POSITION_M,
    TEXT_FORMATS,
    EdrRequest,
    EdrSelection,
    Positions,
    edr_request,
    features_of,
    location_feature,
)
from galileo.gateway.formats import TEXT_ROWS, Encoders, TableEncoder, preferred
from galileo.gateway.json_answers import url_of
from galileo.gateway.problems import problem
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.streamed import file_answer
from galileo.geo.corridors import Corridor
from galileo.geo.geohash import PRECISION_MAX
from galileo.model.grouping import cell
from galileo.model.rows import RowOptions
from galileo.model.schema import COORDINATES, Schema
from galileo.query.builder import Condition, f, geohash, within

VALUES_MAX = 1_000_000
"""Values of an answer in CoverageJSON."""
BYTES_MAX = 64 << 20
"""Of the observations of an answer in CoverageJSON; texts can be long."""
_GEOHASH = re.compile(rf"[0-9b-hjkmnp-z]{{1,{PRECISION_MAX}}}")


class EdrRoutes(RouteGroup):
    """Answers requests of EDR."""

    async def query(self, request: Request) -> Response:
        """The observations of a position, an area, or another kind of query."""
        kind = request.scope["galileo_route"]
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.client(request))
            schema = await client.schema(request.path_params["collectionId"])
            wanted = await self._wanted(kind, request, schema)
            where = wanted.where
            assert where is not None
            if isinstance(where, Positions):
                places = await _nearest(client, schema, wanted, where)
                if not places:
                    text = f"there is no observation within {POSITION_M / 1000:g} km of coords"
                    return problem(HTTPStatus.NOT_FOUND, text)
                where = EdrSelection(functools.reduce(operator.or_, places))
            answer = _Answer(self._encoders, request, schema, wanted)
            condition = wanted.condition(where.condition)
            return await answer.of(client, condition, stack, corridor=where.corridor)

    position = area = cube = radius = trajectory = corridor = query

    async def location(self, request: Request) -> Response:
        """The observations of a location."""
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.client(request))
            schema = await client.schema(request.path_params["collectionId"])
            wanted = await self._wanted("location", request, schema)
            name = request.path_params["locationId"]
            condition = _location_condition(schema, name)
            if condition is None or not await _exists(client, schema, condition):
                return problem(HTTPStatus.NOT_FOUND, f"there is no location {name!r:.100}")
            answer = _Answer(self._encoders, request, schema, wanted)
            return await answer.of(client, wanted.condition(condition), stack)

    position = area = cube = radius = trajectory = corridor = query

    async def locations(self, request: Request) -> Response:
        """The locations that have observations, as GeoJSON."""
        known = ("f", "crs", "bbox", "datetime", "parameter-name", "parameter_names")
        given = parameters.single_values(request.query_params, known)
        preferred(given["f"].lower() if "f" in given else None, "", {"geojson": ""})
        if crs_of(given, "crs") is not CRS84:
            raise InputError(f"expected crs as {CRS84.uri}", parameter="crs")
        conditions = [
            *parameters.bbox_conditions(given, CRS84),
            *parameters.datetime_conditions(given),
        ]
        query = parameters.joined(conditions)
        async with self._callers.client(request) as client:
            schema = await client.schema(request.path_params["collectionId"])
            features = features_of(given, schema)
            name, precision = location_feature(schema), schema.geohash_precision
            groups = await client.aggregate(
                schema.name,
                query,
                by=[*([name] if name else []), cell(precision)],
                require_complete=True,
            )
            described = await client.describe(schema.name)
        encode = functools.partial(
            locations.encode,
            groups.table,
            name,
            url=documents.collection_url(url_of(request), schema),
            interval="/".join(at or ".." for at in edr_documents.interval(described)),
            features=features,
        )
        body = await self._encoders.run(encode)
        return Response(body, media_type=documents.GEOJSON, headers=content_crs(CRS84))

    async def _wanted(self, kind: str, request: Request, schema: Schema) -> EdrRequest:
        """What is asked for; the boxes along a line take some time."""
        query, accept = request.query_params, request.headers.get("accept", "")
        return await self._encoders.run(functools.partial(edr_request, kind, query, schema, accept))


class _Answer:
    """Makes the answer to a request from the observations that match."""

    def __init__(
        self, encoders: Encoders, request: Request, schema: Schema, wanted: EdrRequest
    ) -> None:
        self._encoders = encoders
        self._schema = schema
        self._wanted = wanted
        self._url = documents.collection_url(url_of(request), schema)
        self._location = location_feature(schema) if wanted.format in TEXT_FORMATS else ""
        names = [feature.name for feature in wanted.features]
        apart = [self._location] if self._location not in ("", *names) else []
        self._columns = [*COORDINATES, *names, *apart]

    async def of(
        self,
        client: AsyncClient,
        condition: Condition,
        stack: contextlib.AsyncExitStack,
        *,
        corridor: Corridor | None = None,
    ) -> Response:
        """The answer; it takes over what the stack holds, if it is a file."""
        pieces: Any = client.select_batches(self._schema.name, condition, columns=self._columns)
        stack.push_async_callback(pieces.aclose)
        tables = self._inside(pieces, corridor) if corridor else pieces
        headers = {"Vary": "Accept", **content_crs(self._wanted.crs)}
        if self._wanted.format == COVERAGE_JSON:
            body = await self._coverages(tables)
            return Response(body, media_type=FORMATS[COVERAGE_JSON], headers=headers)
        if self._wanted.format == "geojson":
            tables = self._features(tables)
        encoder = self._encoder()
        media_type = FORMATS[self._wanted.format]
        return await file_answer(
            tables, encoder, self._encoders, media_type=media_type, held=stack, headers=headers
        )

    async def _coverages(self, tables: AsyncIterator[pa.Table]) -> bytes:
        table = await self._collected(tables)
        where = self._wanted.where
        pieces = coverage_json.encode(
            table,
            self._wanted.features,
            crs=self._wanted.crs,
            location=self._location,
            single=isinstance(where, Positions) and len(where.points) == 1,
        )
        texts = list[bytes]()
        while piece := await self._encoders.run(lambda: next(pieces, b"")):
            texts.append(piece)
        return await self._encoders.run(lambda: b"".join(texts))

    async def _collected(self, tables: AsyncIterator[pa.Table]) -> pa.Table:
        """All observations. Raises InputError if there are too many."""
        rows_max = VALUES_MAX // len(self._wanted.features)
        pieces, rows, size = [self._arrow_schema().empty_table()], 0, 0
        async for table in tables:
            pieces.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            if rows > rows_max or size > BYTES_MAX:
                raise InputError(
                    f"expected at most {VALUES_MAX:,} values ({BYTES_MAX >> 20} MiB) in an answer "
                    "in CoverageJSON, got more; narrow the region, datetime or parameter-name, or "
                    "ask for f=geojson, f=csv or f=parquet, which have no bound",
                    parameter="f",
                    bound=VALUES_MAX,
                )
        return await self._encoders.run(lambda: pa.concat_tables(pieces).combine_chunks())

    async def _inside(
        self, tables: AsyncIterator[pa.Table], corridor: Corridor
    ) -> AsyncIterator[pa.Table]:
        """The observations in a corridor."""
        async for table in tables:
            for start in range(0, table.num_rows, TEXT_ROWS):
                piece = table.slice(start, TEXT_ROWS)
                yield await self._encoders.run(functools.partial(_in_corridor, piece, corridor))

    async def _features(self, tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
        """Observations with the columns and positions of GeoJSON."""
        async for table in tables:
            positions = functools.partial(self._wanted.crs.positions, table)
            yield self._labelled(await self._encoders.run(positions))

    def _labelled(self, table: pa.Table) -> pa.Table:
        """The columns of features of EDR: the time as `datetime`, and a label."""
        label: Any = pa.repeat(self._schema.name, table.num_rows)
        if self._location:
            label = pc.coalesce(table.column(self._location), self._schema.name)
        names = ["latitude", "longitude", "label", "datetime"]
        columns = [*(table.column(name) for name in names[:2]), label, table.column("time")]
        for feature in self._wanted.features:
            names.append(feature.name)
            columns.append(table.column(feature.name))
        return pa.table(columns, names=names)

    def _encoder(self) -> TableEncoder:
        schema = self._arrow_schema()
        if self._wanted.format != "geojson":
            return TableEncoder(self._wanted.format, schema)
        names = [feature.name for feature in self._wanted.features]
        described = [coverage_json.parameter(feature) for feature in self._wanted.features]
        links = [documents.link("collection", self._url, documents.JSON)]
        return TableEncoder(
            "geojson",
            self._labelled(schema.empty_table()).schema,
            members={"parameters": described, "links": links},
            constants={"parameter-name": names, "edrqueryendpoint": f"{self._url}/position"},
        )

    def _arrow_schema(self) -> pa.Schema:
        return RowOptions(tuple(self._columns)).described_schema(self._schema)


async def _nearest(
    client: AsyncClient, schema: Schema, wanted: EdrRequest, positions: Positions
) -> list[Condition]:
    """Conditions on the places nearest to points, of those that have observations."""
    places = dict[tuple[float, float], None]()
    query = wanted.condition()
    for longitude, latitude in positions.points.tolist():
        nearest = await client.nearest(
            schema.name,
            query,
            latitude=latitude,
            longitude=longitude,
            k=1,
            within_m=POSITION_M,
            require_complete=True,
        )
        columns = (nearest.table.column(name).to_pylist() for name in COORDINATES[:2])
        places |= {(east, north): None for north, east in zip(*columns, strict=True)}
    return [within({"type": "Point", "coordinates": list(place)}) for place in places]


def _location_condition(schema: Schema, name: str) -> Condition | None:
    """The condition of a location; None if there can be none of that name."""
    if feature := location_feature(schema):
        return f[feature] == name
    return geohash(f"{name}%") if _GEOHASH.fullmatch(name) else None


async def _exists(client: AsyncClient, schema: Schema, condition: Condition) -> bool:
    """Whether any observation matches."""
    table = await client.select(schema.name, condition, columns=["time"], limit=1)
    return bool(table.num_rows)


def _in_corridor(table: pa.Table, corridor: Corridor) -> pa.Table:
    latitude, longitude = (table.column(name).to_numpy() for name in COORDINATES[:2])
    return table.filter(pa.array(corridor.contains(latitude, longitude)))
