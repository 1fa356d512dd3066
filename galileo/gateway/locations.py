"""Locations of a dataset as GeoJSON: rectangles around the cells with their observations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from galileo.client.json_lines import joined_texts, json_values
from galileo.errors import InputError
from galileo.gateway import coverage_json
from galileo.geo import geohash
from galileo.model.schema import Feature
from galileo.rdf.terms import percent_encoded

LOCATIONS_MAX = 10_000
"""Locations of an answer."""
_GEOHASH = "geohash"
_EDGES = ("west", "south", "east", "north")


def encode(
    groups: pa.Table, feature: str, *, url: str, interval: str, features: Sequence[Feature]
) -> bytes:
    """A collection of features with a rectangle around the cells of each location.

    Args:
        groups: of observations by the feature, if there is one, and by cell.
        feature: whose values are the locations; "" if the cells are.
        url: of the dataset.
        interval: of its observations.
        features: that its observations have.

    Raises:
        InputError: there are too many locations.
    """
    boxes = _boxes(groups, feature)
    if boxes.num_rows > LOCATIONS_MAX:
        raise InputError(
            f"expected at most {LOCATIONS_MAX:,} locations, got {boxes.num_rows:,}; narrow bbox or "
            "datetime",
            parameter="bbox",
            bound=LOCATIONS_MAX,
        )
    names = [one.name for one in features]
    constants = {"datetime": interval, "parameter-name": names}
    ids = boxes.column("id").combine_chunks()
    paths = percent_encoded(ids).cast(pa.string())
    endpoints = pc.binary_join_element_wise(f"{url}/locations/", paths, "")
    west, south, east, north = (
        boxes.column(name).combine_chunks().cast(pa.string()) for name in _EDGES
    )
    ring: list[Any] = ["[[", west, ",", south, "],[", east, ",", south, "],[", east, ",", north]
    ring += ["],[", west, ",", north, "],[", west, ",", south, "]]"]
    quoted = json_values(ids)
    parts: list[Any] = ['{"type":"Feature","id":', quoted]
    parts += [',"geometry":{"type":"Polygon","coordinates":[', *ring, "]}"]
    parts += [f',"properties":{json.dumps(constants)[:-1]},"label":', quoted]
    parts += [',"edrqueryendpoint":', json_values(endpoints), "}}"]
    texts = pc.binary_join_element_wise(*parts, "")
    described = json.dumps([coverage_json.parameter(one) for one in features])
    begin = f'{{"type":"FeatureCollection","parameters":{described},"numberReturned":{len(ids)}'
    return joined_texts(f'{begin},"features":[\n', texts, "\n]}")


def _boxes(groups: pa.Table, feature: str) -> pa.Table:
    """The id of each location, and the edges of the box around its cells."""
    cells = groups.column(_GEOHASH).combine_chunks()
    precision = pc.max(pc.utf8_length(cells)).as_py() or 1
    edges = geohash.bounds(geohash.from_text(cells), precision)
    ids = groups.column(feature) if feature else cells
    named = pa.table([ids, *map(pa.array, edges)], names=["id", *_EDGES])
    named = named.filter(pc.is_valid(named.column("id")))
    extremes = list(zip(_EDGES, ("min", "min", "max", "max"), strict=True))
    boxes = named.group_by("id").aggregate(extremes)
    columns = [boxes.column(name) for name in ("id", *("_".join(pair) for pair in extremes))]
    return pa.table(columns, names=["id", *_EDGES]).sort_by("id")
