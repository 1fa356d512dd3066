"""Groups of observations by cell and time, the newest of each, summaries and estimates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.analytics_results import Aggregates, LatestResult, QueryExplanation
from galileo.client.async_client import AsyncClient
from galileo.client.descriptions import DatasetDescription, FeatureDescription
from galileo.client.json_lines import json_values
from galileo.errors import InputError
from galileo.gateway import documents, parameters
from galileo.gateway.formats import (
    GROUP_FORMATS,
    LATEST_FORMATS,
    TEXT_ROWS,
    Encoders,
    TableEncoder,
    preferred,
)
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.streamed import Streamed
from galileo.geo import geohash
from galileo.labels import marked
from galileo.model.grouping import CellKey, Grouping, WindowKey
from galileo.model.schema import Schema
from galileo.model.times import column_micros, iso, iso_column, micros
from galileo.query.builder import Condition

MISSING_HEADER = "Galileo-Missing"
"""The number of partitions that an answer lacks, with answers that may lack some."""
RANK_ERROR_HEADER = "Galileo-Rank-Error"
"""`Aggregates.rank_error`, with answers whose percentiles are not exact."""
PIECE_BYTES = 1 << 16
"""Bytes of JSON that are sent together, at least."""
_JSON_ONLY = {"json": documents.JSON}


class AggregateRoutes(RouteGroup):
    """Answers requests that the nodes answer by aggregates."""

    async def cells(self, request: Request) -> Response:
        """Groups by geohash cell, and by time window if one is asked for."""
        return await self._groups(request, parameters.CELLS)

    async def series(self, request: Request) -> Response:
        """Groups by time window."""
        return await self._groups(request, parameters.SERIES)

    async def _groups(self, request: Request, known: tuple[str, ...]) -> Response:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.client(request))
            schema, given, query = await _read(client, request, known)
            format = preferred(given.get("f"), request.headers.get("accept", ""), GROUP_FORMATS)
            grouping = grouping_of(_keys(given, known), given.get("statistics", ""), schema)
            groups = await client.aggregate(
                schema.name, query, by=grouping.keys, statistics=dict(grouping.statistics)
            )
            table = await self._encoders.run(functools.partial(located, groups.table, grouping))
            pieces = _encoded(table, groups, format, self._encoders)
            media_type, headers = GROUP_FORMATS[format], missing_header(groups.missing)
            if groups.rank_error:
                headers[RANK_ERROR_HEADER] = str(groups.rank_error)
            return Streamed(pieces, media_type, held=stack.pop_all(), headers=headers)

    async def latest(self, request: Request) -> Response:
        """The newest observation of each cell, or of each value of a feature."""
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.client(request))
            schema, given, query = await _read(client, request, parameters.LATEST)
            format = preferred(given.get("f"), request.headers.get("accept", ""), LATEST_FORMATS)
            newest = await client.latest(
                schema.name, query, by=parameters.latest_key(given.get("by"))
            )
            pieces = _encoded(newest.table, newest, format, self._encoders)
            media_type, headers = LATEST_FORMATS[format], missing_header(newest.missing)
            return Streamed(pieces, media_type, held=stack.pop_all(), headers=headers)

    async def summary(self, request: Request) -> Response:
        """What a dataset holds, or the statistics of a feature."""
        async with self._callers.client(request) as client:
            schema, given, query = await _read(client, request, parameters.SUMMARY)
            preferred(given.get("f"), "", _JSON_ONLY)
            if "feature" in given:
                return await _feature_summary(client, schema, query, given)
            if others := sorted(set(request.query_params) - {"f"}):
                raise InputError(
                    f"expected feature with {others[0]}, got none; name the feature whose "
                    "statistics are wanted",
                    parameter="feature",
                )
            description = await client.describe(schema.name)
        return _answer(_described(description), description.missing)

    async def estimate(self, request: Request) -> Response:
        """Bounds on the number of matching labels."""
        async with self._callers.client(request) as client:
            schema, given, query = await _read(client, request, parameters.ESTIMATE)
            preferred(given.get("f"), "", _JSON_ONLY)
            estimate = await client.estimate(
                schema.name,
                query,
                feature=given.get("feature"),
                quantiles=parameters.numbers("quantiles", given.get("quantiles", "")),
            )
        document = {
            "low": estimate.low,
            "high": estimate.high,
            "feature": estimate.feature,
            "quantiles": [dataclasses.asdict(quantile) for quantile in estimate.quantiles],
            "behind": estimate.behind,
            "node": estimate.node,
            **_state(estimate.missing, complete=estimate.complete),
        }
        return _answer(document, estimate.missing)

    async def explain(self, request: Request) -> Response:
        """How a query is answered."""
        async with self._callers.client(request) as client:
            schema, given, query = await _read(client, request, parameters.EXPLAIN)
            preferred(given.get("f"), "", _JSON_ONLY)
            explanation = await client.explain(schema.name, query)
        return _answer(_explained(explanation), explanation.missing)


def grouping_of(keys: Sequence[CellKey | WindowKey], statistics: str, schema: Schema) -> Grouping:
    """A grouping by keys with the statistics of a parameter. Raises InputError."""
    grouping = Grouping.of(keys, parameters.statistics(statistics))
    try:
        grouping.check(schema)
    except InputError as error:
        details = {"parameter": "statistics", **error.details}
        raise InputError(error.message, **details) from error
    return grouping


def missing_header(missing: Sequence[int]) -> dict[str, str]:
    """The header of an answer without some partitions."""
    return {MISSING_HEADER: str(len(missing))} if missing else {}


async def _read(
    client: AsyncClient, request: Request, known: tuple[str, ...]
) -> tuple[Schema, Mapping[str, str], Condition | str]:
    """The schema of the dataset that a request is about, its known parameters and its condition."""
    schema = await client.schema(request.path_params["collectionId"])
    return schema, *await parameters.filtered(request.query_params, schema, known)


def _keys(given: Mapping[str, str], known: tuple[str, ...]) -> list[CellKey | WindowKey]:
    if "precision" not in known:
        return [parameters.time_window(given.get("window"))]
    cells = parameters.precision(given.get("precision"))
    return [cells, parameters.time_window(given["window"])] if "window" in given else [cells]


def located(table: pa.Table, grouping: Grouping) -> pa.Table:
    """Groups with the geohash and the centre of cells as first columns, if cells are a key."""
    if not grouping.keys or not isinstance(grouping.keys[0], CellKey):
        return table
    texts = table.column(0)
    precision = grouping.keys[0].bits // 5
    cells = geohash.from_text(texts.to_numpy())
    west, south, east, north = geohash.bounds(cells, precision)
    columns = [texts, pa.array((south + north) / 2), pa.array((west + east) / 2)]
    names = ["cell", "latitude", "longitude", *table.column_names[1:]]
    return pa.table([*columns, *table.columns[1:]], names=names)


def _encoded(
    table: pa.Table, answer: Aggregates | LatestResult, format: str, encoders: Encoders
) -> AsyncIterator[bytes]:
    """The pieces of an answer in a format of `LATEST_FORMATS`."""
    if format == "json":
        members = _state(answer.missing)
        if isinstance(answer, Aggregates):
            members["rank_error"] = answer.rank_error
        return _gathered(_json_pieces(table, members), encoders)
    if format == "csv" and "time" in table.column_names:
        times = iso_column(column_micros(table.column("time")))
        table = table.set_column(table.column_names.index("time"), "time", times)
    table = marked(table, answer.missing)
    encoder = TableEncoder(format, table.schema, members=_state(answer.missing))
    return encoder.encode(_of_one(table), encoders)


async def _of_one(table: pa.Table) -> AsyncIterator[pa.Table]:
    yield table


async def _gathered(pieces: Iterator[bytes], encoders: Encoders) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces, which are made in threads."""
    while piece := await encoders.run(functools.partial(_gather, pieces)):
        yield piece


def _gather(pieces: Iterator[bytes]) -> bytes:
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= PIECE_BYTES:
            break
    return bytes(gathered)


def _json_pieces(table: pa.Table, members: Mapping[str, Any]) -> Iterator[bytes]:
    """A document with the columns of a table, and further members."""
    before = '{"columns":{'
    for name in table.column_names:
        yield f"{before}{json.dumps(name)}:[".encode()
        column, before = table.column(name), "],\n"
        for start in range(0, table.num_rows, TEXT_ROWS):
            values = json_values(column.slice(start, TEXT_ROWS))
            text = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), ",")
            yield (b"," if start else b"") + text[0].as_buffer().to_pybytes()
    yield f"]}},\n{json.dumps(members)[1:]}\n".encode()


def _answer(document: Mapping[str, Any], missing: Sequence[int]) -> Response:
    body = json.dumps(_finite(document), allow_nan=False)
    return Response(body, headers=missing_header(missing), media_type=documents.JSON)


def _finite(value: Any) -> Any:
    """A JSON value with null in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _state(missing: Sequence[int], *, complete: bool | None = None) -> dict[str, Any]:
    return {"complete": not missing if complete is None else complete, "missing": list(missing)}


async def _feature_summary(
    client: AsyncClient, schema: Schema, query: Any, given: Mapping[str, str]
) -> Response:
    summary = await client.summarise(
        schema.name, query, feature=given["feature"], bins=_bins(given.get("bins"))
    )
    names = ("feature", "paths", "observations", "nulls", "minimum", "maximum", "mean", "total")
    document = {
        **{name: getattr(summary, name) for name in names},
        "edges": summary.edges,
        "counts": summary.counts,
        **_state(summary.missing),
    }
    return _answer(document, summary.missing)


def _bins(text: str | None) -> int | list[float] | None:
    """The number of bins, or their edges."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    return parameters.numbers("bins", text)


def _described(description: DatasetDescription) -> dict[str, Any]:
    times = (description.start, description.end)
    interval = [iso(micros(at)) for at in times if at is not None]
    bbox = description.bbox
    return {
        "dataset": description.schema.name,
        "observations": description.observations,
        "paths": description.paths,
        "bytes": description.bytes,
        "extent": None if bbox is None else {"bbox": list(bbox), "interval": interval},
        "features": [_feature(feature) for feature in description.features],
        **_state(description.missing),
    }


def _feature(feature: FeatureDescription) -> dict[str, Any]:
    members = {name: getattr(feature, name) for name in FeatureDescription.__slots__}
    return {**members, "values": dict(feature.values)}


def _explained(explanation: QueryExplanation) -> dict[str, Any]:
    return {
        "dataset": explanation.dataset,
        "query": json.loads(explanation.query) if explanation.query else None,
        "groups": list(explanation.groups),
        "partitions": list(explanation.partitions),
        "pruned": {str(partition): at for partition, at in explanation.pruned.items()},
        "found": explanation.found,
        "nodes": [dataclasses.asdict(node) for node in explanation.nodes],
        "plan_s": explanation.plan_s,
        "total_s": explanation.total_s,
        **_state(explanation.missing),
    }
