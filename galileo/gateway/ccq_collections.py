"""Continuous queries as collections of OGC API: a layer that has what matches now.

Each reading is a reader of the query that begins anew (`galileo.server.resets`): the pages have
what matched when the first one was read, whatever is stored, replaced or deleted meanwhile. A page
is a piece of a part of this result. Its token names the part, and the last label of earlier pages.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.client.geo_files import RowShapes
from galileo.client.results import CcqInfo, Labels
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import DataExpired, InputError
from galileo.gateway import documents, parameters
from galileo.gateway.ccqs import info_of
from galileo.gateway.crs import CRS84
from galileo.gateway.formats import preferred
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.updates import encode_labels, ids_of
from galileo.model.schema import Schema
from galileo.wire import token as tokens

CCQ_ID = re.compile(r"ccq-[0-9a-f]{32}")
PARAMETERS = ("f", "limit", "after", "bbox", "datetime")
FETCHES_MAX = 16
"""Parts that are looked through for the labels of a page."""
_PLACE = re.compile(r"([0-9]{1,9})\.([\w-]*)\.([\w-]*)\.([\w.]*)", re.ASCII)


def is_ccq(request: Request) -> bool:
    """Whether the collection of a request is a continuous query."""
    return CCQ_ID.fullmatch(request.path_params.get("collectionId", "")) is not None


class CcqCollections(RouteGroup):
    """Answers requests about collections that are continuous queries.

    Its methods have the names of the routes that have such collections.
    """

    async def collection(self, request: Request) -> Response:
        check_json(request)
        async with self._callers.client(request) as client:
            info = await info_of(client, request.path_params["collectionId"])
        return json_answer(described(url_of(request), info))

    async def queryables(self, request: Request) -> Response:
        return await self._schema_answer(request, "queryables", {})

    async def schema(self, request: Request) -> Response:
        async with self._callers.client(request) as client:
            info = await info_of(client, request.path_params["collectionId"])
            schema = await client.schema(info.dataset)
            if schema.added < info.added:  # Of a query of another client.
                await client.datasets()
                schema = await client.schema(info.dataset)
            schema = schema.narrowed(info.added)
        return await self._schema_answer(request, "schema", label_properties(schema))

    async def items(self, request: Request) -> Response:
        """A page of labels as GeoJSON."""
        given = parameters.single_values(request.query_params, PARAMETERS)
        preferred(given.get("f"), "", {"geojson": documents.GEOJSON})
        limit = parameters.page_limit(given.get("limit"))
        wanted, place = LabelFilter.of(given), Place.parse(given.get("after", ""))
        async with self._callers.client(request) as client:
            ccq_id = request.path_params["collectionId"]
            labels, following = await page(client, ccq_id, place, limit=limit, wanted=wanted)
        links = [
            documents.link("self", str(request.url), documents.GEOJSON),
            documents.page_link(str(request.url.remove_query_params("f"))),
        ]
        if following is not None:
            url = request.url.include_query_params(after=str(following))
            links.append(documents.link("next", str(url), documents.GEOJSON))
        members = {"links": links}
        body = await self._encoders.run(
            functools.partial(encode_labels, labels, "geojson", members)
        )
        return Response(body, media_type=documents.GEOJSON)

    async def _schema_answer(
        self, request: Request, name: str, properties: dict[str, Any]
    ) -> Response:
        check_json(request, documents.SCHEMA_JSON)
        ccq_id = request.path_params["collectionId"]
        document = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{url_of(request)}/collections/{ccq_id}/{name}",
            "type": "object",
            "title": ccq_id,
            "properties": {"geometry": {"format": "geometry-polygon"}, **properties},
            "additionalProperties": False,
        }
        return json_answer(document, documents.SCHEMA_JSON)


def described(url: str, info: CcqInfo) -> dict[str, Any]:
    """A continuous query as a collection."""
    at, query = f"{url}/collections/{info.id}", f"{url}/ccqs/{info.id}"
    schema = (f"{at}/schema", documents.SCHEMA_JSON, "the properties of a label")
    return {
        "id": info.id,
        "title": f"Continuous query of {info.dataset}",
        "description": info.query,
        "itemType": "feature",
        "crs": [CRS84.uri],
        "links": [
            documents.link("self", at, documents.JSON, "this document"),
            documents.page_link(at),
            documents.link("items", f"{at}/items", documents.GEOJSON, "labels as geojson"),
            documents.link("describedby", *schema),
            documents.link("http://www.opengis.net/def/rel/ogc/1.0/schema", *schema),
            documents.link("related", query, documents.JSON, "the query"),
            documents.link("monitor", f"{query}/events", documents.EVENT_STREAM, "its events"),
        ],
    }


def label_properties(schema: Schema) -> dict[str, Any]:
    """The properties of a label of a dataset, as JSON Schemas."""
    arrow_schema = Labels.empty(schema).to_arrow().schema
    about = {feature.name: documents.described(feature) for feature in schema.features}
    return {
        field.name: {
            "title": field.name,
            **_json_type(field.type),
            **about.get(field.name, {}),
        }
        for field in arrow_schema
    }


def _json_type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_timestamp(kind):
        return {"type": "string", "format": "date-time", "x-ogc-role": "primary-instant"}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_integer(kind):
        return {"type": "integer"}
    return {"type": "number" if pa.types.is_floating(kind) else "string"}


# --- pages -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a page begins.

    Attributes:
        labels_max: with which the part is fetched, so that it is the same part again; 0: any.
        after: the token before the part; "" for the first part.
        until: the token after it; "" if no page has labels of it.
        last: the id of the last label of the part that earlier pages have.
    """

    labels_max: int = 0
    after: str = ""
    until: str = ""
    last: str = ""

    @staticmethod
    def parse(text: str) -> Place:
        """The place that `str` wrote; for an empty text, the first one."""
        match = _PLACE.fullmatch(text or "0...")
        if match is None:
            raise InputError("expected 'after' as a link has it", parameter="after")
        labels_max, *rest = match.groups()
        return Place(int(labels_max), *rest)

    def __str__(self) -> str:
        return f"{self.labels_max}.{self.after}.{self.until}.{self.last}"


async def page(
    client: AsyncClient, ccq_id: str, place: Place, *, limit: int, wanted: LabelFilter
) -> tuple[Labels, Place | None]:
    """Labels, and where the next page begins; None after the last one."""
    following: Place | None = place
    for _ in range(FETCHES_MAX):
        assert following is not None
        labels, following = await _part(client, ccq_id, following, limit=limit)
        chosen = wanted.apply(labels)
        if len(chosen) or following is None:
            break
    return chosen, following


async def _part(
    client: AsyncClient, ccq_id: str, place: Place, *, limit: int
) -> tuple[Labels, Place | None]:
    """Up to `limit` labels of one part, and the place behind them.

    Raises:
        DataExpired: what earlier pages have cannot be read any more.
    """
    labels_max, after = place.labels_max or limit, place.after
    update = await client.fetch(
        ccq_id, token=after or tokens.begin_anew(ccq_id), labels_max=labels_max
    )
    end = tokens.read(update.token, ccq_id=ccq_id)
    if not after:
        after = tokens.Position(end.cursor, place=EMPTY_CURSOR).encode(ccq_id)
    elif update.reset or not _is_end(place.until, end, ccq_id):
        # The snapshot was removed, or nodes cut the result elsewhere since partitions have moved.
        raise DataExpired(
            "the layer cannot be read on from this page; read it again from its first page"
        )
    ids = ids_of(update.labels)
    order = pc.sort_indices(ids)
    rest = order.slice(pc.sum(pc.less_equal(ids, place.last)).as_py() or 0)
    part = Labels(update.labels.schema, update.labels.table.take(rest.slice(0, limit)))
    if len(rest) > limit:
        last = ids[rest[limit - 1].as_py()].as_py()
        return part, Place(labels_max, after, update.token, last)
    return part, Place(after=update.token) if update.more else None


def _is_end(until: str, end: tokens.Position, ccq_id: str) -> bool:
    """Whether a part ends where it did for an earlier page, if there is one."""
    return not until or tokens.read(until, ccq_id=ccq_id).place == end.place


# --- filters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelFilter:
    """The parameters `bbox` and `datetime`: which cells and time buckets are wanted.

    Attributes:
        bounds: None for all cells.
        interval: None for all times.
    """

    bounds: parameters.Box | None
    interval: parameters.Interval | None

    @staticmethod
    def of(given: Mapping[str, str]) -> LabelFilter:
        """The filter of a request. Raises InputError for what is no box or no time."""
        return LabelFilter(parameters.bbox(given, CRS84), parameters.interval(given))

    def apply(self, labels: Labels) -> Labels:
        """The labels whose cell and bucket have something of what is wanted."""
        mask: npt.NDArray[np.bool_] = np.ones(len(labels), dtype=np.bool_)
        if self.bounds is not None and len(labels):
            west, south, east, north = self.bounds
            left, low, right, high = RowShapes.of(labels.to_arrow()).bounds
            is_east, is_west = right >= west, left <= east
            mask &= (is_east & is_west) if west <= east else (is_east | is_west)
            mask &= (high >= south) & (low <= north)
        if self.interval is not None:
            first, last = self.interval
            if first is not None:
                mask &= labels.buckets + labels.schema.time_bucket_us > first
            if last is not None:
                mask &= labels.buckets <= last
        chosen = labels.where(mask)
        assert isinstance(chosen, Labels)
        return chosen
