"""A query: a predicate over one dataset, tested on paths, observations and zones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import QuerySyntaxError, UnknownProperty
from galileo.geo.ranges import Ranges
from galileo.interpreter_turns import interpret
from galileo.model.schema import Schema
from galileo.model.times import column_micros, iso
from galileo.query import cql_syntax, time_predicates, visitors
from galileo.query.binding import bind
from galileo.query.columns import Columns, FeatureColumn, FloatColumn, Mask, from_arrow
from galileo.query.predicates import (
    EVERYTHING,
    And,
    Leaf,
    Node,
    ObservationColumns,
    Or,
    Span,
    conjunction,
    leaves,
)
from galileo.query.spatial_predicates import InRegion
from galileo.query.zone_maps import Zones


@dataclass(frozen=True)
class Query:
    """An immutable predicate, bound to a schema.

    Two levels: a *path* matches if its cell and bucket could hold an observation that matches
    and its features match; an *observation* matches exactly. No path of a matching observation
    is ever missed.

    Attributes:
        schema: of the dataset.
        tree: the predicate, with NOT pushed into its leaves.
    """

    schema: Schema
    tree: Node

    @property
    def everything(self) -> bool:
        """Whether every path matches."""
        return self.tree == EVERYTHING

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the query reads, in schema order."""
        named = {name for leaf in leaves(self.tree) for name in leaf.features}
        return tuple(f.name for f in self.schema.features if f.name in named)

    def number_bounds(self, feature: str) -> tuple[float, float]:
        """Closed interval of a feature in all matches; lowest above highest: no match.

        It follows from the conditions on the feature itself.
        """
        return visitors.number_range(self.tree, feature)

    @property
    def vertices(self) -> int:
        """Number of vertices of all geometries."""
        regions = [leaf.region for leaf in leaves(self.tree) if isinstance(leaf, InRegion)]
        return sum(region.vertices for region in regions)

    def to_json(self) -> str:
        """Canonical CQL2 JSON: it parses to an equal query; "true" for everything."""
        return self._json

    @cached_property
    def _json(self) -> str:
        value = visitors.json_value(self.tree)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def prepared(self) -> Query:
        """This query, which keeps its cells and its JSON from now on for the event loop."""
        self.cell_ranges()
        self.to_json()
        return self

    def since(self, time_us: int) -> Query:
        """The query for those of its matches that are not before a time in microseconds."""
        recent = time_predicates.leaf([(time_us, None)], self.schema.time_bucket_us)
        return Query(self.schema, conjunction([self.tree, recent]))

    def match_paths(self, columns: Mapping[str, Any] | Columns) -> Mask:
        """Mask of matching paths.

        Args:
            columns: "cell" (uint64), "bucket" (int64, start in microseconds) and at least the
                indexed features that the query reads, each as a `FeatureColumn`, an array of
                doubles or an Arrow array.
        """
        return visitors.verdicts(self.tree, self._columns(columns), _test_paths)

    def must_match_paths(self, columns: Mapping[str, Any] | Columns) -> Mask:
        """Mask of paths that certainly hold matching observations only.

        Args:
            columns: as in `match_paths`.
        """
        return visitors.verdicts(self.tree, self._columns(columns), _test_paths_certainly)

    def must_match_labels(self, labels: pa.Table | pa.RecordBatch) -> Mask:
        """As `must_match_paths`, of labels of `schema.label_schema`."""
        features = {name: from_arrow(labels.column(name)) for name in self.features}
        cell = np.asarray(labels.column("cell").to_numpy(), dtype=np.uint64)
        return self.must_match_paths(
            Columns(cell, column_micros(labels.column("bucket")), features)
        )

    def match_observations(self, table: pa.Table) -> Mask:
        """Mask of the rows of a table of `schema.observation_schema` that match exactly."""
        return self.match_points(observation_columns(table, self.features))

    def match_points(self, points: ObservationColumns) -> Mask:
        """As `match_observations`, of columns with at least the features that the query reads."""
        return visitors.verdicts(self.tree, points, _test_rows)

    def may_match_zones(self, zones: Zones) -> Mask:
        """Mask of zones that may hold a matching path; False is certain."""
        return visitors.verdicts(self.tree, zones, _test_zones)

    def cell_ranges(self) -> Ranges | None:
        """Sorted, disjoint, half-open ranges of cells outside of which nothing matches.

        None is no limit; no range at all is a query that nothing matches.
        """
        return self._cell_ranges

    @cached_property
    def _cell_ranges(self) -> Ranges | None:
        return visitors.cell_ranges(self.tree)

    def time_range(self) -> Span:
        """Half-open bounds, microseconds, on the starts of buckets that can match.

        None is an open end; (0, 0) is a query that nothing matches.
        """
        span = visitors.bucket_span(self.tree)
        return (0, 0) if time_predicates.empty(span) else span

    def _columns(self, columns: Mapping[str, Any] | Columns) -> Columns:
        if isinstance(columns, Columns):
            named = {name: columns.features[name] for name in self.features}
            return Columns(columns.cell, columns.bucket, named)
        features = {name: _feature_column(columns[name]) for name in self.features}
        return Columns(columns["cell"], columns["bucket"], features)


def observation_columns(table: pa.Table, features: Iterable[str]) -> ObservationColumns:
    """The columns of a table of `Schema.observation_schema` that queries read."""
    return ObservationColumns(
        latitude=np.asarray(table.column("latitude").to_numpy(), dtype=np.float64),
        longitude=np.asarray(table.column("longitude").to_numpy(), dtype=np.float64),
        time=column_micros(table.column("time")),
        features={name: from_arrow(table.column(name)) for name in features},
    )


def parse(source: str | dict[str, Any], schema: Schema, *, now_us: int | None = None) -> Query:
    """The query of CQL2 text or CQL2 JSON, bound to a schema.

    Args:
        source: CQL2 text, JSON text (it starts with "{") or a JSON object; blank text and
            "true" ask for everything.
        schema: of the dataset that is asked.
        now_us: what now() means, microseconds; None: it is refused.

    Raises:
        QuerySyntaxError: it does not parse; `details["position"]` is the offset in a text,
            `details["path"]` the place in JSON.
        UnknownProperty: a property that the schema lacks; `details["nearest"]` the likeliest.
        UnsupportedQuery: valid CQL2 that means nothing here.
        InputError: an invalid geometry or geohash.
    """
    if isinstance(source, dict):
        return Query(schema, bind(source, schema))
    if not isinstance(source, str):
        raise QuerySyntaxError(
            f"expected CQL2 as text or as a JSON object, got {type(source).__name__}", path="$"
        )
    if now_us is not None and _NOW.search(source):
        return _parse(source, schema, now_us)
    return (
        _parse_cached(source, schema)
        if len(source) <= CACHED_CHARACTERS_MAX
        else _parse(source, schema)
    )


async def parse_async(text: str, schema: Schema, *, now_us: int | None = None) -> Query:
    """As `parse`, for use in an event loop: a thread prepares a query that takes many steps.

    Raises:
        InputError: as `parse`.
        Overloaded: as `interpret`.
    """
    return await interpret(parse_steps(text), _prepared, text, schema, now_us)


def parse_steps(text: str) -> int:
    """Steps of `offload` that it takes to parse a query and to cover its regions."""
    return len(text) + PLACE_STEPS * len(_PLACE.findall(text[:CACHED_CHARACTERS_MAX]))


def _prepared(text: str, schema: Schema, now_us: int | None) -> Query:
    return parse(text, schema, now_us=now_us).prepared()


_PATH = re.compile(r" at \$[^ ]* of the query$")
"""A place in CQL2 JSON."""
_GROWTH = 16
"""Greatest ratio of the canonical JSON of a query, which nodes exchange, to its source."""
_CACHE_ENTRIES = 64
"""Cached queries with the covers of their regions, 0.3 MB each at most."""
CACHED_CHARACTERS_MAX = 4096
"""Longer texts are not cached."""
PLACE_STEPS = 1_500
"""Steps that the event loop takes itself for the cover of a region; some take 7,000."""
_PLACE = re.compile("s_|dwithin|like", re.IGNORECASE)
"""A condition on a place in CQL2, perhaps."""
_NOW = re.compile("now", re.IGNORECASE)


@lru_cache(maxsize=_CACHE_ENTRIES)
def _parse_cached(source: str, schema: Schema) -> Query:
    """`_parse` with a cache: a node parses the same text several times per request."""
    return _parse(source, schema)


def _parse(source: str, schema: Schema, now_us: int | None = None) -> Query:
    raw = cql_syntax.read(source)
    if now_us is not None:
        raw = cql_syntax.with_now(raw, iso(now_us))
    try:
        query = Query(schema, bind(raw, schema))
    except UnknownProperty as error:
        raise pointing(error, source) from None
    except QuerySyntaxError as error:
        if source.lstrip().startswith("{"):
            raise
        raise QuerySyntaxError(_PATH.sub("", error.message), **error.details) from None
    _check_canonical(query, long=len(source) * _GROWTH > cql_syntax.TEXT_MAX)
    return query


def _check_canonical(query: Query, *, long: bool) -> None:
    """Refuse a query whose canonical JSON other nodes would refuse."""
    if long:
        cql_syntax.check_length(query.to_json())
    if _levels(query.tree) > cql_syntax.NESTING_MAX:
        bind(json.loads(query.to_json()), query.schema)


def _levels(node: Node) -> int:
    """Upper bound of the levels of the canonical JSON; a condition on cells is an OR under NOT."""
    if isinstance(node, And | Or):
        return 1 + max(map(_levels, node.parts), default=0)
    return 3


def pointing(error: UnknownProperty, source: str) -> UnknownProperty:
    """The same error with the place of the name in the text; not for JSON."""
    if source.lstrip().startswith("{"):
        return error
    position = cql_syntax.find_name(source, error.details["property"])
    if position is None:
        return error
    shown = cql_syntax.pointed(source, position)
    return UnknownProperty(f"{error.message}\n{shown}", **error.details, position=position)


def _feature_column(values: Any) -> FeatureColumn:
    if isinstance(values, np.ndarray):
        return FloatColumn(np.asarray(values, dtype=np.float64))
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return from_arrow(values)
    column: FeatureColumn = values
    return column


def _test_paths(leaf: Leaf, columns: Columns) -> Mask:
    return leaf.may_match_paths(columns)


def _test_paths_certainly(leaf: Leaf, columns: Columns) -> Mask:
    return leaf.must_match_paths(columns)


def _test_rows(leaf: Leaf, points: ObservationColumns) -> Mask:
    return leaf.matches_rows(points)


def _test_zones(leaf: Leaf, zones: Zones) -> Mask:
    return leaf.may_match_zones(zones)
