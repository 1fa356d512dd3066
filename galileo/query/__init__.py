"""Queries: OGC CQL2, bound to a schema, evaluated on paths, observations and zones."""

from galileo.query.columns import (
    BoolColumn,
    Columns,
    FeatureColumn,
    FloatColumn,
    IntColumn,
    TextColumn,
    from_arrow,
)
from galileo.query.query import Query, parse, parse_async
from galileo.query.zone_maps import FeatureZones, Zones

__all__ = [
    "BoolColumn",
    "Columns",
    "FeatureColumn",
    "FeatureZones",
    "FloatColumn",
    "IntColumn",
    "Query",
    "TextColumn",
    "Zones",
    "from_arrow",
    "parse",
    "parse_async",
]
