"""Notifications of a channel as JSON: of an execution in one document, or each as a feature."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from galileo.client.geo_files import RowShapes
from galileo.client.json_lines import joined_texts, json_lines, json_values
from galileo.client.results import Notifications
from galileo.cursor import CommitRange
from galileo.model.channel import LEFT, pairs_of

MEDIA_TYPE = "application/geo+json"


def document(batch: Notifications, **members: Any) -> bytes:
    """Notifications as JSON on one line: a FeatureCollection of observations, and the matches.

    Args:
        batch: the notifications.
        members: further ones of the object, after its own.
    """
    matches = joined_texts(',"matches":[', json_lines(batch.matches), "]")
    own = {
        "numberReturned": batch.observations.num_rows,
        "partition": batch.partition,
        "execution": batch.execution,
        "notifications": len(batch),
        "gone": list(map(members_of_range, batch.gone)),
    }
    collection = joined_texts(
        '{"type":"FeatureCollection","features":[', _features(batch.observations), "]"
    )
    # Line feeds are between features and matches only; within texts they are escaped.
    rest = json.dumps(own | members, ensure_ascii=False)[1:].encode()
    return b"".join([collection, matches, b",", rest]).replace(b"\n", b"")


def features(batch: Notifications) -> pa.StringArray:
    """Each notification as a GeoJSON feature, in the order of `Notifications.to_arrow`.

    Besides its members a feature has `subscription`, and of a channel with `leave` also `left`.
    """
    match, rows, ids = pairs_of(batch.matches)
    begin = '{"type":"Feature","subscription":'
    parts: list[pa.Array | str] = [begin, json_values(ids)]
    if LEFT in batch.matches.column_names:
        parts += [',"left":', json_values(batch.matches.column(LEFT).take(pa.array(match)))]
    bodies = _bodies(batch.observations).take(pa.array(rows))
    return pc.binary_join_element_wise(*parts, ",", bodies, "")


def _features(observations: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise('{"type":"Feature",', _bodies(observations), "")


def _bodies(observations: pa.Table) -> pa.Array:
    """The members of the features of observations, up to the closing brace.

    Observations of a channel without positions have no geometry.
    """
    names = observations.column_names
    place = ("latitude", "longitude")
    has_place = all(name in names for name in place)
    geometries = RowShapes.of(observations).geojson() if has_place else "null"
    rest = [name for name in names if not has_place or name not in place]
    properties = json_lines(observations.select(rest)) if rest else "{}"
    parts = ('"geometry":', geometries, ',"properties":', properties, "}", "")
    return pc.binary_join_element_wise(*parts)


def members_of_range(gone: CommitRange) -> dict[str, int]:
    """Dropped commits as JSON values."""
    return dataclasses.asdict(gone) | {"commits": gone.commits}
