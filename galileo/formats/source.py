"""A file of observations, read in reproducible batches.

Reading a file again yields the same batches in the same order, so that a failed ingest can be
repeated: `digest()` identifies the batches, and the store ignores batches that it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from galileo.arrays import rebatch
from galileo.errors import (
    GalileoWarning,
    InputError,
    InvalidObservations,
    InvalidSchema,
)
from galileo.formats.expressions import (
    Expression,
    FileColumns,
    Name,
    kind_of,
    metadata_of,
    names,
    parse,
    renamed,
)
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Reader, table_of
from galileo.formats.sentinels import SentinelSearch
from galileo.formats.type_conversion import convert, one_array
from galileo.formats.variables import (
    VariableInfo,
    default_features,
    derived_names,
    feature_name,
    resolve,
    split_name,
)
from galileo.model.feature_metadata import NO_METADATA, FeatureMetadata
from galileo.model.schema import (
    ARROW_TYPES,
    COORDINATES,
    Feature,
    FeatureType,
    Schema,
)
from galileo.model.units import converted, is_converted, is_known

Counts: TypeAlias = AbstractMapping[str, int]
BATCH_ROWS = 65_536
SAMPLE_ROWS, SAMPLE_VALUES = 10_000, 3

# Part of each digest. Increase it with any change to the order of rows or to the values.
READING_VERSION = 7


@dataclass(frozen=True, slots=True)
class Binding:
    """A feature and its source expression; without one it is null in each row.

    Attributes:
        feature: its name.
        type: None if only the file could tell it, and the file has no value.
        expression: in full names of variables.
        about: what the file says of the values.
        unit: that the values are converted to; "" if they are taken as they are.
    """

    feature: str
    type: FeatureType | None
    expression: Expression | None
    about: FeatureMetadata = NO_METADATA
    unit: str = ""


class Source:
    """An open file: its variables and observations.

    Attributes:
        path: of the file; None for data in memory.
        format: name of its format.
        mapping: of variables to features.
        lacking: rows that the latest `batches` has skipped so far, by what they lack: "latitude",
            "longitude", "time", or a "value" of a feature.
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
        self.lacking = Counter[str]()
        self._sentinels = SentinelSearch()
        self._reader = reader
        self._schema = schema

    def bound_to(self, schema: Schema) -> Source:
        """The same data with the features and types of a schema; reads nothing."""
        return Source(
            self.path, self._reader, format=self.format, mapping=self.mapping, schema=schema
        )

    @property
    def rows(self) -> int | None:
        """Rows of the file including skipped ones, exact or estimated; None if unknown."""
        return self._reader.rows

    @property
    def skipped(self) -> int:
        """Rows that the latest `batches` has skipped so far."""
        return self.lacking.total()

    def warnings(self) -> list[GalileoWarning]:
        """What is suspicious about the values that the latest `batches` has read, and bad rows."""
        notes = list(self._reader.bad_rows.notes) if self._reader.bad_rows else []
        units = {f.name: f.unit for f in self._schema.features} if self._schema else {}
        notes += [
            f"{b.feature}: the unit {b.about.unit!r} of {b.expression} is unknown, so the values "
            f"were taken as {units[b.feature]!r}"
            for b in self.bindings
            if units.get(b.feature, "") not in ("", b.about.unit) and not is_known(b.about.unit)
        ]
        return [*map(GalileoWarning, notes), *self._sentinels.warnings()]

    @property
    def place_error(self) -> InputError | None:
        """Says which coordinate was not found; None if none is missing."""
        return self._reader.coordinates.error

    def variables(self) -> list[VariableInfo]:
        return list(self._reader.variables())

    def all_variables(self) -> list[VariableInfo]:
        """The variables of coordinates, which have a `role`, and `variables()`."""
        return [*self._reader.coordinate_variables(), *self.variables()]

    def left_out(self) -> list[str]:
        """What the file has and the features do not read, by name, with the number of levels."""
        levels = self._levels_left_out().items()
        named = [f"{base} ({count} levels)" if count > 1 else base for base, count in levels]
        return [*named, *self._reader.others]

    @property
    def has_levels_left_out(self) -> bool:
        """Whether the features do not read several levels of a variable."""
        return any(count > 1 for count in self._levels_left_out().values())

    def _levels_left_out(self) -> Counter[str]:
        read = _names_read(self.bindings)
        return Counter(
            split_name(info.name)[0] for info in self.variables() if info.name not in read
        )

    def samples(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Some values of variables from the first rows; empty if the file has no rows."""
        where = self._reader.coordinates
        roles = {} if where.error else where.roles

        def sample(columns: FileColumns) -> dict[str, list[Any]]:
            first = columns.take(np.arange(min(columns.rows, SAMPLE_ROWS)))
            values = dict(first.arrays)
            if not where.error:
                values |= zip(COORDINATES, where.evaluate(first), strict=True)
            return {name: _sample(values[roles.get(name, name)]) for name in names}

        return next(self._reader.evaluate(names, sample, self.mapping), {})

    @property
    def features(self) -> dict[str, str]:
        """Source expressions by feature; an empty text for a feature without one."""
        return {b.feature: str(b.expression) if b.expression else "" for b in self.bindings}

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The features in order, with full names of variables.

        Raises:
            InputError: the mapping, the file and the schema contradict each other.
        """
        if self._schema is not None:
            variables = self._reader.named_variables()
            if self._reader.rows == 0 and not variables:  # It names no columns, either.
                return tuple(Binding(f.name, f.type, None) for f in self._schema.features)
            return _bound_to_schema(self._schema, self.mapping, variables=variables)
        variables = self._reader.variables()
        pairs = self.mapping.features or default_features(variables, self._reader.others)
        return tuple(_bind(name, text, variables=variables) for name, text in pairs)

    def batches(self, rows_max: int = BATCH_ROWS) -> Iterator[pa.Table]:
        """Tables of latitude, longitude, time and the features, of `rows_max` rows but the last.

        Raises:
            InvalidObservations: a value does not fit its feature's type.
            InputError: the file is damaged.
        """
        if rows_max < 1:
            raise InputError(
                f"expected batches of at least 1 row, got {rows_max}", option="rows_max"
            )
        self.lacking = Counter()
        self._sentinels = SentinelSearch()
        return rebatch(self._tables(), rows_max=rows_max)

    def digest(self, rows_max: int = BATCH_ROWS) -> str:
        """Identifies the batches: a hash of the file, the bindings, the schema and `rows_max`.

        It is used as the producer id: equal digests mean equal batches. Features that were added to
        the dataset and that the file lacks change nothing. Reads the whole file.
        """
        if self.path is None:
            raise InputError("expected a file for a digest, got data in memory")
        schema, bindings = self._schema, self.bindings
        content = _digest_of(self.path)
        if schema is not None:
            schema = schema.narrowed_to(b.feature for b in bindings if b.expression)
            bindings = bindings[: len(schema.features)]
        inputs = {
            "version": READING_VERSION,
            "content": content,
            "format": self.format,
            "features": [[b.feature, b.type, str(b.expression or "")] for b in bindings],
            "place": [self.mapping.latitude, self.mapping.longitude],
            "time": [self.mapping.time, self.mapping.constant_time],
            "missing": self.mapping.missing,
            "partition": dict(self._reader.partition),
            "csv": self.mapping.csv.to_dict(),
            "grid": asdict(self.mapping.grid),
            "schema": schema.to_json() if schema else "",
            "rows_max": rows_max,
        }
        text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
        return f"file-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _tables(self) -> Iterator[pa.Table]:
        if self.place_error is not None:
            raise self.place_error
        read = _names_read(self.bindings)
        auxiliary = {info.name for info in self._reader.named_variables() if info.auxiliary}
        measured = [b.feature for b in self.bindings if {*_names_read([b])} - auxiliary]
        measured = measured or [b.feature for b in self.bindings if _names_read([b])]
        for columns, table in self._reader.evaluate(read, self._observations, self._missing()):
            self._search_sentinels(columns, table)
            is_valid, lacking = _valid_rows(table, measured)
            self.lacking.update(lacking)
            yield table.filter(pa.array(is_valid))

    def _observations(self, columns: FileColumns) -> tuple[FileColumns, pa.Table]:
        """Some rows, and their coordinates and features."""
        coordinates = self._reader.coordinates.evaluate(columns)
        features = [
            pa.nulls(columns.rows, ARROW_TYPES[b.type or "text"])
            if b.expression is None
            else _evaluated(b, b.expression, columns)
            for b in self.bindings
        ]
        return columns, table_of(coordinates, features, names=[b.feature for b in self.bindings])

    def _search_sentinels(self, columns: FileColumns, table: pa.Table) -> None:
        for binding in self.bindings:
            if isinstance(binding.expression, Name):
                feature = one_array(table.column(binding.feature))
                self._sentinels.add(str(binding.expression), feature)
            elif binding.expression is not None:
                for name in names(binding.expression):
                    # In a file of texts, only some columns are numbers.
                    with contextlib.suppress(InvalidObservations):
                        self._sentinels.add(name, columns.evaluate(Name(name), "float"))

    def _missing(self) -> Mapping:
        """A mapping of the sentinels, with full names of variables.

        Raises:
            InputError: a sentinel is for an unknown variable.
        """
        roles, variables = self._reader.coordinates.roles, self._reader.named_variables()
        pairs: list[tuple[str, str]] = []
        for name, value in self.mapping.missing:
            columns = [column for column, role in roles.items() if name in (column, role)]
            if name and name not in COORDINATES and not columns:
                columns = [resolve(variables, name).name]
            pairs += [(column, value) for column in (columns if name else [""])]
        return Mapping(missing=tuple(pairs))


def _digest_of(path: Path) -> str:
    """A hash of the content of a file, or of the names and contents of a directory's files."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    texts = [f"{_digest_of(path / name)} {name}" for name in names]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def skipped_words(lacking: Counts) -> str:
    """Rows that were skipped, for people: `4 rows without a latitude`."""
    return ", ".join(
        f"{count:,} {'row' if count == 1 else 'rows'} without a {name}"
        for name, count in lacking.items()
        if count
    )


# --- binding features to variables -----------------------------------------------------------


def _bind(name: str, text: str, *, variables: Sequence[VariableInfo]) -> Binding:
    """Binds a new feature to an expression, which determines its type."""
    expression = _expression(text, variables)
    infos = {source: resolve(variables, source) for source in names(expression)}
    kind = kind_of(expression, {source: info.type for source, info in infos.items()})
    about = metadata_of(expression, {source: info.about for source, info in infos.items()})
    return Binding(name, kind, expression, about)


def _expression(text: str, variables: Sequence[VariableInfo]) -> Expression:
    """The expression of a text, with full names of variables."""
    is_name = any(variable.name == text for variable in variables)
    expression = Name(text) if is_name else _parse_source(text, variables)
    return renamed(expression, {n: resolve(variables, n).name for n in names(expression)})


def _parse_source(text: str, variables: Sequence[VariableInfo]) -> Expression:
    """Parses an expression; accepts the beginning of a variable's name that does not parse."""
    try:
        return parse(text)
    except InputError:
        if any(variable.name.startswith(text) for variable in variables):
            return Name(text)
        raise


def _bound_to_schema(
    schema: Schema, mapping: Mapping, *, variables: Sequence[VariableInfo]
) -> tuple[Binding, ...]:
    """Binds features by the mapping, else by name.

    If there is a mapping, the others are null, and so are added features that the file lacks.
    """
    mapped = dict(mapping.features)
    for name in mapped:
        if schema.feature(name) is None:
            close = schema.nearest(name)
            hint = f" (did you mean {close!r}?)" if close else ""
            features = ", ".join(feature.name for feature in schema.features)
            raise InvalidSchema(
                f"dataset {schema.name!r} has no feature {name!r}{hint}; "
                f"its features are {features}",
                expected="known_feature",
                feature=name,
            )
    by_name = _by_feature_name(variables)
    sources = {f.name: mapped.get(f.name) or by_name.get(f.name) for f in schema.features}
    missing = [f.name for f in schema.narrowed(0).features if sources[f.name] is None]
    if missing and not mapped:
        raise InputError(
            f"the file has no variable named like {', '.join(missing)} of dataset "
            f"{schema.name!r}; map them: {missing[0]}=VARIABLE, or map some and leave the "
            "others missing",
            expected="mapped_feature",
            feature=missing[0],
        )
    expressions = {n: _expression(text, variables) for n, text in sources.items() if text}
    known = {variable.name: variable.about for variable in variables}
    return tuple(_bound(f, expressions.get(f.name), known) for f in schema.features)


def _bound(
    feature: Feature,
    expression: Expression | None,
    known: AbstractMapping[str, FeatureMetadata],
) -> Binding:
    """Binds a feature that there is to an expression, whose values get the unit of the feature.

    Raises:
        IncompatibleUnits: they cannot be converted to it.
    """
    if expression is None:
        return Binding(feature.name, feature.type, None)
    about = metadata_of(expression, known)
    unit = feature.unit if is_converted(about.unit, feature, source=str(expression)) else ""
    return Binding(feature.name, feature.type, expression, about, unit)


def _evaluated(binding: Binding, expression: Expression, columns: FileColumns) -> pa.Array:
    """The values of a feature, in its unit."""
    kind = binding.type or "text"
    if not binding.unit:
        return columns.evaluate(expression, kind)
    numbers = columns.evaluate(expression, "float").to_numpy(zero_copy_only=False)
    values = pa.array(converted(numbers, binding.about.unit, binding.unit), from_pandas=True)
    return convert(values, kind, name=str(expression))


def _by_feature_name(variables: Sequence[VariableInfo]) -> dict[str, str]:
    """Variables by their names and by the feature names derived from them."""
    by_name = {feature_name(variable.name): variable.name for variable in reversed(variables)}
    exact = {variable.name: variable.name for variable in variables}
    return by_name | dict(derived_names(variables)) | exact


# --- making batches --------------------------------------------------------------------------


def _names_read(bindings: Sequence[Binding]) -> tuple[str, ...]:
    read = [name for b in bindings if b.expression for name in names(b.expression)]
    return tuple(dict.fromkeys(read))


def _sample(column: pa.Array) -> list[Any]:
    sample: list[Any] = column.drop_null().unique()[:SAMPLE_VALUES].to_pylist()
    return sample


def _valid_rows(table: pa.Table, measured: Sequence[str]) -> tuple[Any, dict[str, int]]:
    """Rows with a place, a time and a value in a measured feature; what the others lack.

    Features that are constant, such as the name of a station, are not measured.
    """
    is_valid = np.ones(table.num_rows, dtype=bool)
    features = [_valid(table, name) for name in measured]
    has_value = np.logical_or.reduce(features) if features else is_valid
    lacking = {}
    for name in (*COORDINATES, "value"):
        has_it = has_value if name == "value" else _valid(table, name)
        lacking[name] = int((is_valid & ~has_it).sum())
        is_valid = is_valid & has_it
    return is_valid, lacking


def _valid(table: pa.Table, name: str) -> Any:
    return table.column(name).is_valid().to_numpy()
