"""Continuous queries as collections of OGC API: a layer that has what a query has found so far.

Queries over keyed datasets are none: what they have found can match no more.

A page is a part of an update of the query. Its token names the two tokens of the query that the
update lies between, and how many of its labels earlier pages had: what lies between two tokens
never changes, so the pages have each label once.
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
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.client.geo_files import RowShapes
from galileo.client.results import CcqInfo, Labels, Update
from galileo.errors import IncompleteAnswer, InputError, Unavailable
from galileo.gateway import documents, parameters
from galileo.gateway.ccqs import info_of
from galileo.gateway.crs import CRS84
from galileo.gateway.formats import preferred
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.updates import cut, encode_labels
from galileo.model.schema import Schema, refuse_keyed

CCQ_ID = re.compile(r"ccq-[0-9a-f]{32}")
PARAMETERS = ("f", "limit", "after", "bbox", "datetime")
FETCHES_MAX = 16
"""Updates that are looked through for the labels of a page."""
_OFFSET = re.compile(r"[0-9]{1,9}")


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
    units = {feature.name: feature.unit for feature in schema.features if feature.unit}
    return {
        field.name: {
            "title": field.name,
            **_json_type(field.type),
            **({"x-ogc-unit": units[field.name]} if field.name in units else {}),
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
        after: the token of the query before the update.
        until: the token after it; "" if the update has no page yet.
        offset: labels of the update that earlier pages had.
    """

    after: str
    until: str
    offset: int

    @staticmethod
    def parse(text: str) -> Place:
        """The place that `str` wrote; for an empty text, the first one."""
        offset, *tokens = text.split(".") if text else ("0", "", "")
        if len(tokens) != 2 or not _OFFSET.fullmatch(offset):
            raise InputError("expected 'after' as a link has it", parameter="after")
        return Place(tokens[0], tokens[1], int(offset))

    def __str__(self) -> str:
        return f"{self.offset}.{self.after}.{self.until}"


async def page(
    client: AsyncClient, ccq_id: str, place: Place, *, limit: int, wanted: LabelFilter
) -> tuple[Labels, Place | None]:
    """Labels, and where the next page begins; None if there is none at present."""
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
    """Up to `limit` labels of one update, and the place behind them."""
    update = await client.fetch(ccq_id, token=place.after, labels_max=limit)
    refuse_keyed(update.labels.schema, "a collection of a continuous query")
    parts = [update.labels]
    if place.until:
        parts, update = await _whole(client, ccq_id, update, place.until)
    missing = [partition for part in parts for partition in part.missing]
    if missing:
        raise IncompleteAnswer(
            f"partitions {missing} cannot be read at present; try again", missing=missing
        )
    ordered = Labels.concat(update.labels.schema, parts).in_commit_order()
    end = min(len(ordered), place.offset + limit)
    part = ordered.slice(min(place.offset, end), end)
    assert isinstance(part, Labels)
    if end < len(ordered):
        return part, Place(place.after, update.token, end)
    has_more = update.more or bool(place.until)
    return part, Place(update.token, "", 0) if has_more else None


async def _whole(
    client: AsyncClient, ccq_id: str, update: Update, until: str
) -> tuple[list[Labels], Update]:
    """All labels up to a token that an earlier fetch ended at, and the last update with some.

    A fetch with the same token can go further than before, and less far.
    """
    parts = []
    while True:
        part = cut(update, until, ccq_id=ccq_id)
        parts.append(part.labels)
        if not part.more:
            return parts, part
        after = update.token
        update = await client.fetch(ccq_id, token=after)
        if update.token == after:
            raise Unavailable("what was read before cannot be read at present; try again")


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
