"""What the document of a dataset says for OGC API Environmental Data Retrieval."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from galileo.client.async_client import AsyncClient
from galileo.client.descriptions import DatasetDescription
from galileo.errors import GalileoError, UnknownDataset
from galileo.gateway import coverage_json, crs
from galileo.gateway.edr_requests import COVERAGE_JSON, FORMATS, QUERIES
from galileo.gateway.formats import MEDIA_TYPES
from galileo.gateway.parameters import UNITS_M
from galileo.model.schema import Feature, Schema
from galileo.model.times import iso, micros

DESCRIBED_AT_ONCE = 8
"""Datasets that are described at the same time for one request."""
WORLD = (-180.0, -90.0, 180.0, 90.0)
"""The box of a dataset without observations."""
GREGORIAN = "http://www.opengis.net/def/uom/ISO-8601/0/Gregorian"


async def described(client: AsyncClient, schemas: Iterable[Schema]) -> list[DatasetDescription]:
    """The descriptions of datasets; those that are dropped meanwhile are left out."""
    turns = asyncio.Semaphore(DESCRIBED_AT_ONCE)

    async def describe(schema: Schema) -> DatasetDescription | None:
        async with turns:
            try:
                return await client.describe(schema.name)
            except UnknownDataset:
                return None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(describe(schema)) for schema in schemas]
    except* GalileoError as errors:
        raise errors.exceptions[0] from None
    return [found for task in tasks if (found := task.result()) is not None]


def members(at: str, described: DatasetDescription) -> dict[str, Any]:
    """Members of the document of a dataset at a URL."""
    return {
        "extent": extent(described),
        "data_queries": _data_queries(at),
        "output_formats": list(FORMATS),
        "distanceunits": list(UNITS_M),
        "parameter_names": {one.name: _parameter(one) for one in described.schema.features},
    }


def _parameter(feature: Feature) -> dict[str, Any]:
    """As in CoverageJSON, but texts have no language."""
    parameter = coverage_json.parameter(feature)
    described = {
        "description": feature.description or feature.name,
        "data-type": coverage_json.DATA_TYPES[feature.type],
        "observedProperty": _without_languages(parameter["observedProperty"]),
    }
    unit = {"unit": {**parameter["unit"], "label": feature.unit}} if feature.unit else {}
    return {**parameter, **described, **unit}


def _without_languages(observed: dict[str, Any]) -> dict[str, Any]:
    """A property that is observed, and its categories, whose labels are texts."""
    plain = observed | {"label": observed["label"]["en"]}
    if "categories" in observed:
        plain["categories"] = [_without_languages(one) for one in observed["categories"]]
    return plain


def extent(described: DatasetDescription) -> dict[str, Any]:
    """Where and when there are observations."""
    return {
        "spatial": {"bbox": [list(described.bbox or WORLD)], "crs": crs.CRS84.uri},
        "temporal": {
            "interval": [list(interval(described))],
            "values": ["/".join(at or ".." for at in interval(described))],
            "trs": GREGORIAN,
        },
    }


def interval(described: DatasetDescription) -> tuple[str | None, str | None]:
    """The first and last instant, to a whole time bucket; None where there is none."""
    ends = (described.start, described.end)
    start, end = (iso(micros(at)) if at is not None else None for at in ends)
    return start, end


def _data_queries(at: str) -> dict[str, Any]:
    own = {
        "radius": {"within_units": list(UNITS_M)},
        "corridor": {"width_units": list(UNITS_M), "height_units": list(UNITS_M)},
    }
    coverages = {
        kind: _data_query(f"{at}/{kind}", kind, list(FORMATS), own.get(kind, {}))
        for kind in QUERIES
    }
    locations = _data_query(f"{at}/locations", "locations", list(FORMATS), {})
    return {
        **coverages,
        "locations": locations,
        "items": _data_query(f"{at}/items", "items", list(MEDIA_TYPES), {}),
    }


def _data_query(href: str, kind: str, formats: list[str], own: dict[str, Any]) -> dict[str, Any]:
    variables = {
        "title": f"Query by {kind}",
        "description": f"Observations by {kind}",
        "query_type": kind,
        "output_formats": formats,
        "default_output_format": "geojson" if kind == "items" else COVERAGE_JSON,
        "crs_details": [{"crs": one.uri, "wkt": one.wkt} for one in crs.ALL],
        **own,
    }
    return {"link": {"href": href, "rel": "data", "variables": variables}}
