"""The schema of a dataset: features, precision of cells, width of buckets."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, NoReturn, Self, TypeAlias, TypeVar

import pyarrow as pa

from galileo.errors import (
    DatasetExists,
    InputError,
    InvalidFlags,
    InvalidSchema,
    UnknownDataset,
    listed,
    reason_of,
)
from galileo.geo.geohash import PRECISION_MAX
from galileo.model.times import MICROS, TIME_MIN_US, TIME_TYPE, Duration, latest_us, seconds

FeatureType = Literal["float", "float32", "int", "text", "bool"]

ARROW_TYPES: dict[str, pa.DataType] = {
    "float": pa.float64(),
    "float32": pa.float32(),
    "int": pa.int64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}
FLOATS = ("float", "float32")
NUMBERS = (*FLOATS, "int")
"""Types of numbers."""
COORDINATES = ("latitude", "longitude", "time")
RESERVED = frozenset(
    {*COORDINATES, "geometry", "datetime", "geohash", "block", "partition", "sequence", "label"}
    | {"cell", "bucket", "row", "rows"}
)
FEATURES_MAX = 256
KEY_FEATURES_MAX = 8
KEY_TYPES = ("int", "text", "bool")
"""Of features of a key; floats are rarely equal."""
DELETED = "deleted"
"""The column that says whether a version deletes its key."""
SCHEMA_STEPS = 1_000
"""Steps of `offload` that it takes to read or write a schema of 256 features as JSON."""
ARROW_SCHEMAS_KEPT = 256
"""Cached Arrow schemas; building one dominates the cost of a small answer."""
NAMED_MAX = 20
NEARNESS_MIN = 0.66
"""Least similarity, from 0 to 1, of a suggested name: "nan" and "nam"."""
SHORTENED_MIN = 3
"""Least length of a name that is suggested for its beginning."""
TIME_BUCKET_MIN_S = 1.0
TIME_BUCKET_MAX_S = 366 * 86400.0

VERSION_SCHEMA = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("since", pa.int64(), nullable=False),
        pa.field(DELETED, pa.bool_(), nullable=False),
    ]
)
"""What is indexed of each version of a key: both halves of the key's hash, the commit since which
the version counts, 0 for the one that has it, and whether it deletes its key."""
PLACED_KEY_SCHEMA = pa.schema(
    [pa.field("partition", pa.int32(), nullable=False), *list(VERSION_SCHEMA)[:2]]
)
"""What finds a key of a keyed dataset: the partition of its block, and both halves of its hash."""

_Levels: TypeAlias = tuple[tuple[str, FeatureType], ...]
"""Names and types of indexed features."""

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_OF_GENERATION = "@"
"""Separates name and generation in a key; no name contains it."""
INTERNAL_PREFIX = "galileo."
"""Tables of the cluster itself begin so."""
_DATASET_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
FEATURE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MEANING = re.compile(r"[A-Za-z0-9_.@+-]{1,128}")
"""Meanings of flags, as CF writes them (1.11, section 3.5): words without blanks."""
TEXTS_MAX = {"unit": 64, "standard_name": 128, "description": 1_000}
"""Characters of the texts that describe a feature."""
FLAGS_MAX = 256


@dataclass(frozen=True, slots=True)
class Feature:
    """A named, typed quantity.

    Args:
        name: letters, digits and underscores, at most 64; not the name of a coordinate.
        unit: a unit of UDUNITS ("K", "%", "m s-1"), or "".
        type: "float" (64 bits), "float32", "int" (64 bits), "text" or "bool".
        indexed: whether it is a level of the metadata graph, so that queries can use it.
        standard_name: of the CF conventions, such as "air_temperature".
        description: a few words for people.
        flags: of an int feature, the meaning of each value that is a flag: a word without blanks,
            by which conditions can name the value, too.

    Example:
        >>> qc = galileo.Feature("qc", type="int", flags={1: "good", 4: "bad"})
        >>> qc.flags[4]
        'bad'
    """

    name: str
    unit: str = ""
    type: FeatureType = "float"
    indexed: bool = True
    standard_name: str = ""
    description: str = ""
    flags: Mapping[int, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not FEATURE_NAME.fullmatch(self.name):
            raise InvalidSchema(
                f"expected a feature name of letters, digits and underscores, got {self.name!r}",
                expected="feature_name",
            )
        if self.name.lower() in RESERVED:
            raise InvalidSchema(
                f"the feature name {self.name!r} is taken by Galileo; use another",
                expected="free_name",
                feature=self.name,
            )
        for name, most in TEXTS_MAX.items():
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > most or not text.isprintable():
                raise InvalidSchema(
                    f"expected the {name} of feature {self.name!r} as a text of at most {most:,} "
                    f"characters, without line breaks, got {text!r:.{most + 2}}",
                    expected=name,
                    feature=self.name,
                    bound=most,
                )
        if self.type not in ARROW_TYPES:
            raise InvalidSchema(
                f"expected the type float, float32, int, text or bool for feature {self.name!r}, "
                f"got {self.type!r}",
                expected="feature_type",
                feature=self.name,
            )
        object.__setattr__(self, "flags", self._checked_flags())

    def _checked_flags(self) -> dict[int, str]:
        """A copy of the flags, by value.

        Raises:
            InvalidFlags: a value has no meaning, or not one of its own.
        """

        def refuse(expected: str, got: object) -> NoReturn:
            raise InvalidFlags(
                f"expected {expected} for feature {self.name!r}, got {got!r:.200}",
                expected="flags",
                feature=self.name,
            )

        if not isinstance(self.flags, Mapping):
            refuse("flags as a dict of values and meanings, such as {1: 'good'},", self.flags)
        if self.flags and self.type != "int":
            refuse("the type int of a feature with flags", self.type)
        if len(self.flags) > FLAGS_MAX:
            refuse(f"at most {FLAGS_MAX} flags", len(self.flags))
        for value, meaning in self.flags.items():
            if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
                refuse("whole numbers of 64 bits as the values of flags", value)
            if not isinstance(meaning, str) or not MEANING.fullmatch(meaning):
                words = f"a meaning of the flag {value}, a word of letters, digits and _ . @ + -,"
                refuse(words, meaning)
        meanings = [*self.flags.values()]
        if len({*meanings}) < len(meanings):
            refuse("another meaning for each flag", meanings)
        return dict(sorted(self.flags.items()))

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of its column."""
        return ARROW_TYPES[self.type]


@lru_cache(ARROW_SCHEMAS_KEPT)
def _observation_schema(features: tuple[Feature, ...]) -> pa.Schema:
    place = [
        pa.field("latitude", pa.float64(), nullable=False),
        pa.field("longitude", pa.float64(), nullable=False),
        pa.field("time", TIME_TYPE, nullable=False),
    ]
    return pa.schema([*place, *[pa.field(one.name, one.arrow_type) for one in features]])


@lru_cache(ARROW_SCHEMAS_KEPT)
def _version_schema(features: tuple[Feature, ...]) -> pa.Schema:
    return _observation_schema(features).append(VERSION_SCHEMA.field(DELETED))


@lru_cache(ARROW_SCHEMAS_KEPT)
def _graph_schema(levels: _Levels) -> pa.Schema:
    return pa.schema(
        [
            pa.field("cell", pa.uint64(), nullable=False),
            pa.field("bucket", TIME_TYPE, nullable=False),
            *[pa.field(name, ARROW_TYPES[kind]) for name, kind in levels],
            pa.field("row", pa.int32(), nullable=False),
            pa.field("rows", pa.int32(), nullable=False),
        ]
    )


@lru_cache(ARROW_SCHEMAS_KEPT)
def _keyed_path_schema(levels: _Levels) -> pa.Schema:
    return pa.schema([*_graph_schema(levels), *VERSION_SCHEMA])


@lru_cache(ARROW_SCHEMAS_KEPT)
def _label_schema(levels: _Levels) -> pa.Schema:
    place = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
    return pa.schema([*_graph_schema(levels), *place])


@dataclass(frozen=True, slots=True, init=False)
class StoredSchema:
    """What nodes store of a dataset or a table: the columns of a commit.

    Attributes:
        name: `[a-z0-9][a-z0-9_.-]{0,63}`; datasets and tables share their names.
        generation: how many of this name were dropped before this one; the cluster sets it at the
            creation.
        added: how many features, the last ones, were added after the creation.
    """

    name: str
    generation: int
    added: int

    @property
    def key(self) -> str:
        """The identity of the dataset: its name, and from generation 1 on "name@generation".

        No two datasets ever have the same key, also where one got the name of another that was
        dropped. Everything that is stored or sent about a dataset names it by its key.

        Example:
            >>> client.schema("weather").key
            'weather'
        """
        return dataset_key(self.name, self.generation)

    def of_generation(self, generation: int) -> Self:
        """The same schema for another generation of its dataset.

        Example:
            >>> client.schema("weather").of_generation(2).key
            'weather@2'
        """
        return self if generation == self.generation else self._with(generation=generation)

    @property
    def is_keyed(self) -> bool:
        """Whether rows replace and delete those with the same key."""
        return False

    @property
    def observation_schema(self) -> pa.Schema:
        """The columns of the rows of a commit."""
        raise NotImplementedError

    @property
    def version_schema(self) -> pa.Schema:
        """The columns of rows that are sent to be stored, and of changes: if rows replace each
        other, whether a row deletes its key is one of them.
        """
        return self.observation_schema

    @property
    def key_schema(self) -> pa.Schema:
        """The columns by which rows are sought that replace and delete each other."""
        raise NotImplementedError

    @property
    def path_schema(self) -> pa.Schema:
        """The columns by which a commit is indexed."""
        raise NotImplementedError

    def narrowed(self, added: int) -> Self:
        """The schema as it was when so many features had been added; only datasets have some.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> shelters.narrowed(0) == shelters
            True
        """
        if added:
            kind = type(self).__name__.lower()
            raise InvalidSchema(f"expected no added columns of {kind} {self.name!r}, got {added}")
        return self

    def extends(self, other: StoredSchema) -> bool:
        """Whether this is the other schema, perhaps with features added.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> shelters.extends(shelters)
            True
        """
        return self == other

    def newest_us(self, paths: pa.RecordBatch) -> int:
        """The age of commits for retention: the end of their newest time, microseconds since 1970.

        `TIME_MIN_US` if they have no time.

        Example:
            >>> import pyarrow as pa
            >>> shelters = galileo.Table("shelters", {"id": "text"}, key="id")
            >>> nothing = pa.RecordBatch.from_pylist([], schema=shelters.path_schema)
            >>> shelters.newest_us(nothing) < 0
            True
        """
        return TIME_MIN_US

    def is_wanted(self, wanted: StoredSchema) -> bool:
        """Whether this is what a call wants to create, in whatever generation.

        Example:
            >>> weather = client.schema("weather")
            >>> weather.is_wanted(weather)
            True
        """
        return self.of_generation(wanted.generation) == wanted

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        raise NotImplementedError

    def to_json(self) -> str:
        """As JSON text.

        Example:
            >>> client.schema("weather").to_json()[:12]
            '{"features":'
        """
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def _with(self, **changes: Any) -> Self:
        """The same schema with other attributes; not checked."""
        other = object.__new__(type(self))
        for name in (one.name for one in fields(self)):
            object.__setattr__(other, name, changes.get(name, getattr(self, name)))
        return other


@dataclass(frozen=True, slots=True, init=False)
class Schema(StoredSchema):
    """The schema of a dataset; once the dataset exists, it can only get more features.

    In a *keyed* dataset, an observation replaces the one with the same key: the cell and the time
    bucket of its block, and the values of the features of `key`.

    Args:
        name: the dataset's name.
        features: of the dataset.
        geohash_precision: characters of a block's cell.
        time_bucket: width of a block in time.
        key: one to eight indexed features of the types int, text or bool; none: observations are
            never replaced. Null is a value of a key, too.

    Attributes:
        name: the dataset's name, `[a-z0-9][a-z0-9_.-]{0,63}`.
        features: in the order of the metadata graph's levels (paper, III.B).
        geohash_precision: characters of a block's cell, 1 to 12.
        time_bucket_us: width of a block in time, microseconds.
        generation: how many datasets of this name were dropped before this one; the cluster sets
            it when it creates the dataset.
        added: how many of the features, the last ones, were added after the dataset was created.
        key_features: the names of the features of the key; empty in a dataset without a key.
        range_epoch: of the ranges that place the blocks of a keyed dataset for good, since all
            versions of a key have to be in one partition; the cluster sets it at the creation.

    Example:
        >>> temperature = galileo.Feature("temperature", unit="K")
        >>> note = galileo.Feature("note", type="text", indexed=False)
        >>> schema = galileo.Schema("air", [temperature, note], time_bucket="6h")
        >>> [feature.name for feature in schema.indexed]
        ['temperature']
    """

    features: tuple[Feature, ...]
    geohash_precision: int
    time_bucket_us: int
    key_features: tuple[str, ...]
    range_epoch: int

    def __init__(
        self,
        name: str,
        features: Iterable[Feature],
        *,
        geohash_precision: int = 5,
        time_bucket: Duration = "1h",
        key: str | Sequence[str] = (),
    ) -> None:
        object.__setattr__(self, "name", dataset_name(name))
        object.__setattr__(self, "features", _features(features))
        object.__setattr__(self, "geohash_precision", geohash_precision)
        object.__setattr__(self, "time_bucket_us", _bucket_us(time_bucket))
        object.__setattr__(self, "generation", 0)
        object.__setattr__(self, "added", 0)
        object.__setattr__(self, "key_features", (key,) if isinstance(key, str) else tuple(key))
        object.__setattr__(self, "range_epoch", 0)
        self._check()

    def _check(self) -> None:
        names = [feature.name for feature in self.features]
        if not 1 <= len(names) <= FEATURES_MAX:
            raise InvalidSchema(
                f"expected 1 to {FEATURES_MAX} features, got {len(names)}",
                expected="features",
                bound=FEATURES_MAX,
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidSchema(
                f"feature {twice[0]!r} is given twice; expected each once",
                expected="unique",
                feature=twice[0],
            )
        if type(self.geohash_precision) is not int or not (
            1 <= self.geohash_precision <= PRECISION_MAX
        ):
            raise InvalidSchema(
                f"expected a geohash_precision from 1 to {PRECISION_MAX}, "
                f"got {self.geohash_precision!r}",
                expected="precision",
                bound=PRECISION_MAX,
            )
        if self.key_features:
            self._check_key()

    def _check_key(self) -> None:
        key = self.key_features
        if len(key) > KEY_FEATURES_MAX or len({*key}) < len(key):
            raise InvalidSchema(
                f"expected a key of 1 to {KEY_FEATURES_MAX} different features, got "
                f"{', '.join(map(str, key))}",
                expected="key",
                bound=KEY_FEATURES_MAX,
            )
        for name in key:
            feature = self.feature(name) if isinstance(name, str) else None
            if feature is None:
                raise InvalidSchema(
                    f"expected a key of features of dataset {self.name!r} "
                    f"({', '.join(one.name for one in self.features)}), got {name!r}",
                    expected="key",
                )
            if feature.type not in KEY_TYPES or not feature.indexed:
                kind = feature.type if feature.indexed else f"{feature.type}, which is not indexed"
                raise InvalidSchema(
                    f"expected a key of indexed features of the types {', '.join(KEY_TYPES)}, got "
                    f"feature {name!r} of type {kind}",
                    expected="key_type",
                    feature=name,
                )
        if self.feature(DELETED) is not None:
            raise InvalidSchema(
                f"the feature name {DELETED!r} is taken in keyed datasets; use another",
                expected="free_name",
                feature=DELETED,
            )

    @property
    def is_keyed(self) -> bool:
        """Whether observations replace those with the same key."""
        return bool(self.key_features)

    def placed_by(self, range_epoch: int) -> Schema:
        """The same schema, whose blocks the ranges of an epoch place, if the dataset is keyed.

        Example:
            >>> station = galileo.Feature("station", type="text")
            >>> galileo.Schema("buoys", [station], key="station").placed_by(3).range_epoch
            3
        """
        return self._with(range_epoch=range_epoch) if self.is_keyed else self

    def with_features(self, features: Iterable[Feature]) -> Self:
        """The same schema with more features behind its own.

        Raises:
            InvalidSchema: there are none, a name is taken, or there are too many.

        Example:
            >>> gust = galileo.Feature("gust", unit="m/s")
            >>> wider = client.schema("weather").with_features([gust])
            >>> wider.features[-1].name, wider.added
            ('gust', 1)
        """
        new = _features(features)
        if not new:
            raise InvalidSchema("expected features to add, got none", expected="features")
        taken = [feature.name for feature in new if self.feature(feature.name) is not None]
        if taken:
            raise InvalidSchema(
                f"dataset {self.name!r} has a feature {taken[0]!r} already; a feature never "
                "changes, so choose another name",
                expected="free_name",
                feature=taken[0],
            )
        wider = self._with(features=(*self.features, *new), added=self.added + len(new))
        wider._check()
        return wider

    def narrowed(self, added: int) -> Self:
        """The schema as it was when so many features had been added.

        Raises:
            InvalidSchema: there are fewer.

        Example:
            >>> client.schema("weather").narrowed(0).added
            0
        """
        if added == self.added:
            return self
        if not 0 <= added < self.added:
            raise InvalidSchema(
                f"expected 0 to {self.added} added features of dataset {self.name!r}, got {added}",
                expected="added",
                bound=self.added,
            )
        return self._with(features=self.features[: added - self.added], added=added)

    def narrowed_to(self, names: Iterable[str]) -> Schema:
        """The schema without the last added features, as far as none of them is named.

        Example:
            >>> client.schema("weather").narrowed_to(["station"]).added
            0
        """
        known = set(names)
        added = self.features[len(self.features) - self.added :]
        named = (n for n, feature in enumerate(added, start=1) if feature.name in known)
        return self.narrowed(max(named, default=0))

    def extends(self, other: StoredSchema) -> bool:
        """Whether this is the other schema, perhaps with features added.

        Example:
            >>> client.schema("weather").extends(client.schema("weather"))
            True
        """
        return other.added <= self.added and self.narrowed(other.added) == other

    @property
    def indexed(self) -> tuple[Feature, ...]:
        """The features that queries can use."""
        return tuple(feature for feature in self.features if feature.indexed)

    @property
    def _levels(self) -> _Levels:
        return tuple((feature.name, feature.type) for feature in self.features if feature.indexed)

    def feature(self, name: str) -> Feature | None:
        """The feature of that name; None where there is none.

        Example:
            >>> client.schema("weather").feature("temperature").unit
            'K'
        """
        return next((feature for feature in self.features if feature.name == name), None)

    def nearest(self, name: str) -> str | None:
        """The feature name most like `name`, for messages about a wrong one.

        Example:
            >>> client.schema("weather").nearest("temprature")
            'temperature'
        """
        return nearest_name(name, [feature.name for feature in self.features])

    @property
    def observation_schema(self) -> pa.Schema:
        """latitude, longitude, time, then every feature; only features may be null."""
        return _observation_schema(self.features)

    @property
    def version_schema(self) -> pa.Schema:
        """`observation_schema`; in a keyed dataset, whether a row deletes its key is behind it."""
        return _version_schema(self.features) if self.is_keyed else self.observation_schema

    @property
    def key_schema(self) -> pa.Schema:
        """`PLACED_KEY_SCHEMA`, of a keyed dataset."""
        return PLACED_KEY_SCHEMA

    @property
    def path_schema(self) -> pa.Schema:
        """`graph_schema`; that of a keyed dataset ends with `VERSION_SCHEMA`."""
        levels = self._levels
        return _keyed_path_schema(levels) if self.is_keyed else _graph_schema(levels)

    @property
    def graph_schema(self) -> pa.Schema:
        """cell, bucket (start), the indexed features, then row and rows.

        `row` is the first of `rows` observations of this path within its commit.
        """
        return _graph_schema(self._levels)

    @property
    def label_schema(self) -> pa.Schema:
        """`graph_schema`, then where the block part is: partition and commit sequence."""
        return _label_schema(self._levels)

    def newest_us(self, paths: pa.RecordBatch) -> int:
        """The end of the newest time bucket of commits, microseconds since 1970.

        Example:
            >>> import pyarrow as pa
            >>> weather = galileo.Schema("weather", [galileo.Feature("temperature")])
            >>> first_hour = pa.array([0], pa.timestamp("us", "UTC"))
            >>> weather.newest_us(pa.record_batch({"bucket": first_hour}))
            3600000000
        """
        if paths.num_rows == 0:  # These are seals alone.
            return TIME_MIN_US
        return latest_us(paths.column("bucket")) + self.time_bucket_us

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which `from_dict` reads.

        Example:
            >>> client.schema("weather").to_dict()["time_bucket_us"]
            3600000000
        """
        raw = {
            "name": self.name,
            "features": [_feature_to_dict(feature) for feature in self.features],
            "geohash_precision": self.geohash_precision,
            "time_bucket_us": self.time_bucket_us,
        }
        if self.is_keyed:
            raw["key"] = list(self.key_features)
        counts = {name: getattr(self, name) for name in ("generation", "added", "range_epoch")}
        return raw | {name: count for name, count in counts.items() if count}

    def is_wanted(self, wanted: StoredSchema) -> bool:
        """As of `StoredSchema`; the cluster has chosen the ranges.

        Example:
            >>> weather = client.schema("weather")
            >>> weather.is_wanted(weather)
            True
        """
        if isinstance(wanted, Schema):
            wanted = wanted._with(range_epoch=self.range_epoch)
        return self.of_generation(wanted.generation) == wanted

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Schema:
        """The inverse of `to_dict`.

        Example:
            >>> galileo.Schema.from_dict(client.schema("weather").to_dict()).name
            'weather'
        """
        try:
            name, features, added = raw["name"], raw["features"], int(raw.get("added", 0))
            if not 0 <= added < max(len(features), 1):
                raise ValueError(f"{added} of {len(features)} features cannot be added ones")
            schema = Schema(
                name,
                _features_of(features),
                geohash_precision=int(raw["geohash_precision"]),
                time_bucket=int(raw["time_bucket_us"]) / MICROS,
                key=raw.get("key", ()),
            )
            counts = {name: int(raw.get(name, 0)) for name in ("generation", "range_epoch")}
            return schema._with(added=added, **counts)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidSchema(
                f"expected a schema as `Schema.to_dict` gives it: {reason_of(error)}",
                expected="schema",
            ) from error

    @staticmethod
    def from_json(text: str) -> Schema:
        """The inverse of `to_json`.

        Example:
            >>> galileo.Schema.from_json(client.schema("weather").to_json()).name
            'weather'
        """
        return Schema.from_dict(read_json(text, "schema"))


def has_columns(schema: Schema, names: Iterable[str]) -> bool:
    """Whether the observations of a schema have columns of all these names."""
    return {*schema.version_schema.names}.issuperset(names)


def features_to_json(features: Iterable[Feature]) -> str:
    """Features as JSON text, as in that of a schema."""
    return json.dumps([_feature_to_dict(feature) for feature in features])


def features_from_json(text: str) -> tuple[Feature, ...]:
    """The inverse of `features_to_json`.

    Raises:
        InvalidSchema: the text is no list of features, or one of them is invalid.
    """
    try:
        return _features_of(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidSchema(
            f"expected a list of features in JSON: {reason_of(error)}", expected="json"
        ) from error


def _features_of(raw: Sequence[Any]) -> tuple[Feature, ...]:
    """Features of JSON values; raises ValueError before it looks at more than there can be."""
    if len(raw) > FEATURES_MAX:
        raise ValueError(f"expected at most {FEATURES_MAX} features, got {len(raw):,}")
    return tuple(map(_feature_of, raw))


def _feature_of(raw: dict[str, Any]) -> Feature:
    """The feature of JSON values, in which the values of flags are texts."""
    flags = dict({**raw}.get("flags", {}))
    return Feature(**{**raw, "flags": {int(value): flags[value] for value in flags}})


def _feature_to_dict(feature: Feature) -> dict[str, Any]:
    """A feature as JSON values; empty descriptions are left out."""
    raw: dict[str, Any] = {
        "name": feature.name,
        "unit": feature.unit,
        "type": feature.type,
        "indexed": feature.indexed,
    }
    about = {name: getattr(feature, name) for name in ("standard_name", "description")}
    about["flags"] = {str(value): meaning for value, meaning in feature.flags.items()}
    return raw | {name: value for name, value in about.items() if value}


def widen(batch: Rows, schema: pa.Schema) -> Rows:
    """Rows of an earlier schema of a dataset, with null in the features that they lack.

    The columns that it has are not copied.

    Args:
        batch: its columns are some of `schema`, in their order.
        schema: of observations or paths.
    """
    if batch.num_columns == len(schema):
        return batch
    known = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [
        known[field.name] if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return type(batch).from_arrays(columns, schema=schema)


def dataset_name(name: object) -> str:
    """The name, if it is a valid dataset name.

    Raises:
        InvalidSchema: it is not.
    """
    if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name):
        raise InvalidSchema(
            f"expected a dataset name of a-z, 0-9, '_', '.', '-' (at most 64), got {name!r}",
            expected="dataset_name",
        )
    return name


def dataset_key(name: str, generation: int) -> str:
    """See `Schema.key`."""
    return f"{name}{_OF_GENERATION}{generation}" if generation else name


def split_key(key: str) -> tuple[str, int]:
    """The name and the generation of the dataset with this key.

    Raises:
        InputError: it is not a key.
    """
    name, at, generation = key.partition(_OF_GENERATION)
    if at and not (generation.isascii() and generation.isdecimal()):
        raise InputError(f"expected the key of a dataset, such as 'weather@2', got {key!r}")
    return name, int(generation or 0)


def is_dropped(key: str, generations: Mapping[str, int]) -> bool:
    """Whether the dataset with this key was dropped.

    Args:
        key: of the dataset.
        generations: how many datasets of each name were dropped, where there were some.
    """
    name, generation = split_key(key)
    return generation < generations.get(name, 0)


def name_of_key(key: str) -> str:
    """The name of the dataset with this key."""
    return key.partition(_OF_GENERATION)[0]


def nearest_name(name: str, names: Sequence[str]) -> str | None:
    """The most similar of `names` to a misspelt or shortened one; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=NEARNESS_MIN)
    if not close and len(name) >= SHORTENED_MIN:
        close = [candidate for candidate in by_lower if candidate.startswith(name.lower())][:1]
    return by_lower[close[0]] if close else None


def unknown_dataset(name: str, names: Sequence[str]) -> UnknownDataset:
    """The error about an unknown dataset; it suggests the nearest of `names`."""
    words, close = absence("dataset", name, names)
    return UnknownDataset(words, dataset=name, nearest=close, remedy="create_dataset")


def unknown_table(name: str, names: Sequence[str]) -> UnknownDataset:
    """The error about an unknown table; it suggests the nearest of `names`."""
    words, close = absence("table", name, names)
    return UnknownDataset(words, dataset=name, nearest=close)


def unknown_name(name: str, names: Sequence[str]) -> UnknownDataset:
    """The error about a name that neither a dataset nor a table has; it suggests the nearest."""
    names = [known for known in names if not known.startswith(INTERNAL_PREFIX)]
    close = nearest_name(name, names)
    hint = f"; did you mean {close!r}?" if close else ""
    words = f"no dataset and no table has the name {name!r}{hint}"
    return UnknownDataset(words, dataset=name, nearest=close)


def unknown_channel(name: str, names: Sequence[str]) -> UnknownDataset:
    """The error about an unknown channel; it suggests the nearest of `names`."""
    words, close = absence("channel", name, names)
    return UnknownDataset(words, dataset=name, nearest=close)


def absence(kind: str, name: str, names: Sequence[str]) -> tuple[str, str | None]:
    """The message that there is no such thing, and the nearest of `names`.

    Args:
        kind: of the thing, such as "dataset".
        name: that it does not have.
        names: of those that there are, of which the message lists some.
    """
    names = [known for known in names if not known.startswith(INTERNAL_PREFIX)]
    close = nearest_name(name, names)
    hint = f"; did you mean {close!r}?" if close else "."
    known = ", ".join(names[:NAMED_MAX]) or "none yet"
    return f"{kind} {name!r} does not exist{hint} {kind.title()}s: {known}", close


_READ_BY = {
    "dataset": "query and select read datasets",
    "table": "table and changes read tables",
    "channel": "follow reads channels",
}


def other_kind(schema: StoredSchema, expected: str) -> InputError:
    """The error of a call for a "dataset", "table" or "channel" that names another kind."""
    kind = "dataset" if isinstance(schema, Schema) else type(schema).__name__.lower()
    return InputError(
        f"expected a {expected}, got the {kind} {schema.name!r}; {_READ_BY[kind]}",
        expected=expected,
    )


def not_keyed(schema: StoredSchema) -> InputError:
    """The error of a call that replaces or deletes rows of a dataset without a key."""
    return InputError(
        f"expected a table or a keyed dataset, got the dataset {schema.name!r}, which has no key; "
        "create one with galileo.Schema(..., key=[...]), or delete observations by a condition",
        expected="key",
        dataset=schema.name,
    )


def dropped_dataset(name: str, *, is_again: bool) -> UnknownDataset:
    """The error about a dropped dataset; `is_again`: a new one has the same name."""
    if is_again:
        return UnknownDataset(
            f"dataset {name!r} was dropped and created again; what refers to the dropped one, such "
            "as its labels, is of no use any more. Repeat the request for the new one",
            dropped=name,
        )
    return UnknownDataset(f"dataset {name!r} was dropped", dropped=name, remedy="create_dataset")


def read_json(text: str, kind: str) -> Any:
    """The values of a schema in JSON.

    Args:
        text: of it.
        kind: what it is, for the message.

    Raises:
        InvalidSchema: the text is no JSON.
    """
    try:
        return finite_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"expected a {kind} in JSON: {error}", expected="json") from error


def finite_json(text: str | bytes) -> Any:
    """The values of JSON as in RFC 8259: numbers are finite.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"expected finite numbers, got {text:.40}")
    return value


def existing_dataset(schema: StoredSchema, *, same: bool) -> DatasetExists:
    """The error about a name that is taken; `same`: by the schema that was wanted."""
    if not isinstance(schema, Schema):
        how = " as it is wanted; go on with it" if same else "; choose another name"
        kind = type(schema).__name__.lower()
        return DatasetExists(f"a {kind} {schema.name!r} exists already{how}", same=same)
    names = [feature.name for feature in schema.features]
    how = (
        "with the same schema; go on with it"
        if same
        else f"with another schema, of the features {listed(names)}; choose another name"
    )
    return DatasetExists(f"dataset {schema.name!r} exists already {how}", same=same)


def _features(value: Any) -> tuple[Feature, ...]:
    features = () if isinstance(value, Feature) else tuple(value)
    if isinstance(value, Feature) or not all(isinstance(feature, Feature) for feature in features):
        raise InvalidSchema(
            "expected a list of features, such as [galileo.Feature('temperature', unit='K')], "
            f"got {value!r}",
            expected="features",
        )
    return features


def _bucket_us(time_bucket: Duration) -> int:
    width_s = seconds(time_bucket)
    if not TIME_BUCKET_MIN_S <= width_s <= TIME_BUCKET_MAX_S:
        raise InvalidSchema(
            f"expected a time_bucket from 1s to 366d, got {time_bucket!r}", expected="time_bucket"
        )
    return round(width_s * MICROS)
