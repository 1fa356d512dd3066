"""A file of observations, read in batches that are the same on every reading.

Reading again gives the same batches in the same order, so that an ingest which broke off can
be repeated: batch k of `digest()` is always the same, and the store answers a batch that it
has with its first result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError, InvalidObservations, InvalidSchema, UnknownProperty
from galileo.formats.expressions import (
    Columns,
    Expression,
    Name,
    kind_of,
    names,
    parse,
    renamed,
    unit_of,
)
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Reader, table_of
from galileo.formats.sentinels import SentinelSearch
from galileo.formats.type_conversion import one_array, without
from galileo.formats.variables import VariableInfo, default_features, feature_name, listed, resolve
from galileo.model.schema import (
    ARROW_TYPES,
    COORDINATES,
    Feature,
    FeatureType,
    Schema,
    nearest_name,
)
from galileo.model.times import Duration

BATCH_ROWS = 65_536
BATCH_BYTES_MAX = 32 << 20
"""Of a batch in Arrow; one that is wide or has long texts has fewer rows for it."""
DEFAULT_INDEXED_MAX = 32
SAMPLE_ROWS, SAMPLE_VALUES = 10_000, 3

# Part of every digest. Raise it with any change to the order of rows or to how values are read.
READING_VERSION = 3


@dataclass(frozen=True, slots=True)
class Binding:
    """One feature and where it comes from; without an expression it is null in every row."""

    feature: str
    type: FeatureType
    unit: str
    expression: Expression | None


class Source:
    """An open file: what it offers, and its observations.

    Attributes:
        path: of the file; None for data in memory.
        format: its format's name.
        mapping: as given, or the one that stands in for it.
        skipped: rows left out by the latest `batches` so far, for they have no place or time,
            or every feature is missing.
        sentinels: usual sentinels that the latest `batches` has so far taken for numbers.
    """

    def __init__(
        self,
        path: Path | None,
        reader: Reader,
        *,
        format: str,
        mapping: Mapping,
        schema: Schema | None,
    ) -> None:
        self.path = path
        self.format = format
        self.mapping = mapping
        self.skipped = 0
        self.sentinels = SentinelSearch()
        self._reader = reader
        self._schema = schema

    def bound_to(self, schema: Schema) -> Source:
        """The same data for a dataset, whose schema decides features and types; nothing is read."""
        return Source(
            self.path, self._reader, format=self.format, mapping=self.mapping, schema=schema
        )

    @property
    def rows(self) -> int | None:
        """Rows of the file, skipped ones included: exact or a fair estimate; None if unknown."""
        return self._reader.rows

    def variables(self) -> list[VariableInfo]:
        return list(self._reader.variables())

    def all_variables(self) -> list[VariableInfo]:
        """Those of the coordinates, which have a `role`, and `variables()`."""
        return [*self._reader.coordinate_variables(), *self.variables()]

    def samples(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Some values of variables, out of the first rows that are read; none where none is."""
        roles = {one.name: one.role for one in self._reader.coordinate_variables()}
        read = [name for name in names if name not in roles]
        table = next(iter(self._reader.tables(read)), None)
        if table is None:
            return {}
        columns = {name: roles.get(name, name) for name in names}
        return {name: _sample(table.column(column)) for name, column in columns.items()}

    @property
    def features(self) -> dict[str, str]:
        """Feature to source expression, as bound; empty text for a feature without a source."""
        return {b.feature: str(b.expression) if b.expression else "" for b in self.bindings}

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The features in order, every name in them resolved.

        Raises:
            InputError: the mapping, the file and the schema do not fit together.
        """
        if self._schema is not None:
            return _bound_to_schema(self._schema, self.mapping, variables=self._reader.variables())
        variables = self._reader.variables()
        pairs = self.mapping.features or default_features(variables)
        return tuple(_bind(Feature(name), text, variables=variables) for name, text in pairs)

    def batches(self, rows_max: int = BATCH_ROWS) -> Iterator[pa.Table]:
        """Tables of latitude, longitude, time and the features; full but for the last one.

        Raises:
            InvalidObservations: a value does not fit its feature's type.
            InputError: the file is damaged.
        """
        if rows_max < 1:
            raise InputError(f"expected batches of at least 1 row, got {rows_max}")
        self.skipped = 0
        self.sentinels = SentinelSearch()
        return rebatched(self._tables(), rows_max=rows_max)

    def digest(self, rows_max: int = BATCH_ROWS) -> str:
        """Name of this way to read this file: of its bytes, bindings and batch size.

        It serves as the producer id: equal digests mean equal batches. The schema, if one was
        given, is part of it, so that one file may go into two datasets. Costs one reading of
        the file.
        """
        if self.path is None:
            raise InputError("expected a file to make a digest of, got data in memory")
        way = {
            "version": READING_VERSION,
            "content": _content_digest(self.path),
            "format": self.format,
            "features": [[b.feature, b.type, str(b.expression or "")] for b in self.bindings],
            "place": [self.mapping.latitude, self.mapping.longitude],
            "time": [self.mapping.time, self.mapping.constant_time],
            "missing": self.mapping.missing,
            "schema": self._schema.to_json() if self._schema else "",
            "rows_max": rows_max,
        }
        text = json.dumps(way, sort_keys=True, separators=(",", ":"))
        return f"file-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _tables(self) -> Iterator[pa.Table]:
        missing = self._missing()
        first_row = 0
        for raw in self._reader.tables(_names_read(self.bindings)):
            table = _featured(
                raw, self.bindings, first_row=first_row, missing=missing, search=self.sentinels
            )
            first_row += raw.num_rows
            kept = table.filter(pa.array(_present(table, self.bindings)))
            self.skipped += table.num_rows - kept.num_rows
            yield kept

    def _missing(self) -> Mapping:
        """The mapping with full names of variables for its sentinels.

        Raises:
            InputError: a sentinel is for a variable that there is not.
        """
        coordinates = {one.name for one in self._reader.coordinate_variables()} | {*COORDINATES}
        variables = self._reader.variables()
        pairs = [
            (name if not name or name in coordinates else resolve(variables, name).name, value)
            for name, value in self.mapping.missing
        ]
        return Mapping(missing=tuple(pairs))


def suggest_schema(
    source: Source,
    name: str,
    *,
    geohash_precision: int = 5,
    time_bucket: Duration = "1h",
    index: Sequence[str] | None = None,
) -> Schema:
    """A schema for the file's observations, to create its dataset with.

    Units and types are those of the file. The features of `index` are indexed; without it those
    that are mapped; without a mapping the first `DEFAULT_INDEXED_MAX`, ids and URLs excepted.

    Raises:
        UnknownProperty: `index` names a feature that there will not be.
    """
    chosen = {feature for feature, _ in source.mapping.features}
    if index is not None:
        chosen = {_known_feature(name, source.bindings) for name in index}
    identifiers = {variable.name for variable in source.variables() if variable.identifier}
    free = [
        binding.feature
        for binding in source.bindings
        if binding.expression and not identifiers & {*names(binding.expression)}
    ]
    indexed = chosen if chosen or index is not None else set(free[:DEFAULT_INDEXED_MAX])
    features = [
        Feature(b.feature, unit=b.unit, type=b.type, indexed=b.feature in indexed)
        for b in source.bindings
    ]
    return Schema(name, features, geohash_precision=geohash_precision, time_bucket=time_bucket)


def _known_feature(name: str, bindings: Sequence[Binding]) -> str:
    features = [binding.feature for binding in bindings]
    if name not in features:
        close = nearest_name(name, features)
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownProperty(
            f"there is no feature {name!r} to index{hint} The features are {listed(features)}",
            nearest=close,
        )
    return name


# --- binding features to variables -----------------------------------------------------------


def _bind(feature: Feature, text: str, *, variables: Sequence[VariableInfo]) -> Binding:
    """A feature without a given type, bound to an expression."""
    is_name = any(variable.name == text for variable in variables)
    expression = Name(text) if is_name else _parse_source(text, variables)
    found = {name: resolve(variables, name) for name in names(expression)}
    return Binding(
        feature.name,
        kind_of(expression, {name: info.type for name, info in found.items()}),
        unit_of(expression, {name: info.units for name, info in found.items()}),
        renamed(expression, {name: info.name for name, info in found.items()}),
    )


def _parse_source(text: str, variables: Sequence[VariableInfo]) -> Expression:
    """An expression; a text that is none may still be a name with other characters."""
    try:
        return parse(text)
    except InputError:
        if any(variable.name.startswith(text) for variable in variables):
            return Name(text)
        raise


def _bound_to_schema(
    schema: Schema, mapping: Mapping, *, variables: Sequence[VariableInfo]
) -> tuple[Binding, ...]:
    """Mapped features from their sources, the others by name; the rest is null if any is mapped."""
    mapped = dict(mapping.features)
    for name in mapped:
        if schema.feature(name) is None:
            close = schema.nearest(name)
            hint = f" (did you mean {close!r}?)" if close else ""
            features = ", ".join(one.name for one in schema.features)
            raise InvalidSchema(
                f"dataset {schema.name!r} has no feature {name!r}{hint}; "
                f"its features are {features}"
            )
    by_name = _by_feature_name(variables)
    sources = {f.name: mapped.get(f.name) or by_name.get(f.name) for f in schema.features}
    missing = [name for name, source in sources.items() if source is None]
    if missing and not mapped:
        raise InputError(
            f"the file has no variable named like {', '.join(missing)} of dataset "
            f"{schema.name!r}; map them: {missing[0]}=VARIABLE, or map some and leave the "
            "others missing"
        )
    return tuple(
        _bound_as(feature, sources[feature.name], variables=variables)
        for feature in schema.features
    )


def _bound_as(feature: Feature, text: str | None, *, variables: Sequence[VariableInfo]) -> Binding:
    """A feature of a schema, which decides its type."""
    expression = None if text is None else _bind(feature, text, variables=variables).expression
    return Binding(feature.name, feature.type, feature.unit, expression)


def _by_feature_name(variables: Sequence[VariableInfo]) -> dict[str, str]:
    """Variables by their own name and by the feature name that would be made of it."""
    pairs = default_features(variables) if any(v.default for v in variables) else ()
    made = dict(pairs)
    made |= {feature_name(v.name): v.name for v in variables if feature_name(v.name) not in made}
    return made | {variable.name: variable.name for variable in variables}


# --- making batches --------------------------------------------------------------------------


def _names_read(bindings: Sequence[Binding]) -> tuple[str, ...]:
    read = [name for b in bindings if b.expression for name in names(b.expression)]
    return tuple(dict.fromkeys(read))


def _featured(
    raw: pa.Table,
    bindings: Sequence[Binding],
    *,
    first_row: int,
    missing: Mapping,
    search: SentinelSearch,
) -> pa.Table:
    arrays = [
        without(one_array(column), missing.sentinels(name))
        for name, column in zip(raw.column_names, raw.columns, strict=True)
    ]
    count = len(COORDINATES)
    by_name = dict(zip(raw.column_names[count:], arrays[count:], strict=True))
    columns = Columns(by_name, rows=raw.num_rows, first_row=first_row)
    features = [
        pa.nulls(raw.num_rows, ARROW_TYPES[b.type])
        if b.expression is None
        else columns.evaluate(b.expression, b.type)
        for b in bindings
    ]
    for binding, feature in zip(bindings, features, strict=True):
        if isinstance(binding.expression, Name):
            search.add(str(binding.expression), feature)
        elif binding.expression is not None:
            for name in names(binding.expression):
                # A file of texts has numbers only as it is evaluated; another text is no matter.
                with contextlib.suppress(InvalidObservations):
                    search.add(name, columns.evaluate(Name(name), "float"))
    return table_of(arrays[:count], features, names=[b.feature for b in bindings])


def _sample(column: pa.ChunkedArray) -> list[Any]:
    values = one_array(column.slice(0, SAMPLE_ROWS)).drop_null().unique()
    found: list[Any] = values[:SAMPLE_VALUES].to_pylist()
    return found


def _present(table: pa.Table, bindings: Sequence[Binding]) -> Any:
    """Rows that say where and when and have a value in at least one feature.

    What is the same in every row, such as the name of a station, does not count.
    """
    known = [_valid(table, name) for name in COORDINATES]
    features = [_valid(table, b.feature) for b in bindings if b.expression and names(b.expression)]
    present = np.logical_and.reduce(known)
    return present & np.logical_or.reduce(features) if features else present


def _valid(table: pa.Table, name: str) -> Any:
    return table.column(name).is_valid().to_numpy()


def rebatched(tables: Iterator[pa.Table], *, rows_max: int) -> Iterator[pa.Table]:
    """The same rows in tables of `rows_max`; of fewer, where those have too many bytes."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows < rows_max and size < BATCH_BYTES_MAX:
            continue
        joined = pa.concat_tables(waiting)
        whole = rows if size >= BATCH_BYTES_MAX else rows - rows % rows_max
        for start in range(0, whole, rows_max):
            yield from _concat(joined.slice(start, min(rows_max, whole - start)))
        waiting, rows = [joined.slice(whole)], rows - whole
        size = waiting[0].nbytes
    if rows:
        yield from _concat(pa.concat_tables(waiting))


def _concat(table: pa.Table) -> Iterator[pa.Table]:
    return (piece.combine_chunks() for piece in within_bytes(table))


def within_bytes(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in halves, quarters and so on of at most `BATCH_BYTES_MAX`, or of one row."""
    if table.num_rows <= 1 or table.nbytes <= BATCH_BYTES_MAX:
        yield table
        return
    half = table.num_rows // 2
    yield from within_bytes(table.slice(0, half))
    yield from within_bytes(table.slice(half))


def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
