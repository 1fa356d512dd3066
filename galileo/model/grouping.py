"""What observations are grouped by, and which statistics each group has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError
from galileo.geo.geohash import PRECISION_MAX
from galileo.model.schema import Feature, Schema
from galileo.model.times import DAY_US, MICROS, Duration, first_window_us, seconds
from galileo.model.windows import SIZE_MAX_US


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic of the values of a feature in a group.

    Attributes:
        help: what it is, as a sentence.
        parts: what is merged for it besides the number of values, by `graph.groups.PARTS`.
        share: of a percentile, from 0 to 1; None: it is none.
        values_min: in a group with fewer values it is null.
    """

    help: str
    parts: tuple[str, ...] = ()
    share: float | None = None
    values_min: int = 1


STATISTICS: Mapping[str, Statistic] = MappingProxyType(
    {
        "count": Statistic("Count the values of a feature."),
        "sum": Statistic("Sum of a feature.", ("total",)),
        "min": Statistic("Least value of a feature.", ("low",)),
        "max": Statistic("Greatest value of a feature.", ("high",)),
        "mean": Statistic("Mean of a feature.", ("total",)),
        "std": Statistic("Sample standard deviation of a feature.", ("spread",), values_min=2),
        "median": Statistic("Median of a feature.", share=0.5),
        "first": Statistic("Value of a feature at the first time.", ("first",)),
        "last": Statistic("Value of a feature at the last time.", ("last",)),
    }
)
"""By name, besides percentiles such as p90; `graph.group_merger` computes them."""
OF_TEXTS = frozenset({"count", "first", "last"})
"""Statistics that texts have."""
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?|100)", re.ASCII)


def known(name: str) -> Statistic:
    """The statistic of a name. Raises KeyError."""
    if match := _PERCENTILE.fullmatch(name):
        return Statistic("Percentile of a feature.", share=float(match[1]) / 100)
    return STATISTICS[name]


BITS_MAX = 5 * PRECISION_MAX
KEYS_MAX = 8
"""Keys of one grouping."""
MEASURES_MAX = 64
"""Features of which one answer has statistics."""
STATISTICS_MAX = 512
"""Statistics of one answer, of all features together."""
OBSERVATIONS = "observations"
_MONTHS_BEFORE_1970 = 12 * 1970
_MONTHS_MAX = 1_200
_CALENDAR = re.compile(
    r"\s*(?P<count>\d{1,5})\s*(?P<unit>mo(?:nths?)?|y(?:ears?|rs?)?)\s*(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CellKey:
    """Groups by geohash cells; `bits` counts those of the geohash, five for each character."""

    bits: int

    @property
    def column(self) -> str:
        """Geohashes as texts, or the first bits as a number if no text has so many."""
        return "cell" if self.bits % 5 else "geohash"

    def __str__(self) -> str:
        return f"bits:{self.bits}" if self.bits % 5 else f"cell:{self.bits // 5}"


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Groups by time windows that follow each other, in UTC.

    Windows of one width begin at multiples of it after 1970-01-01; of whole weeks, after Monday
    1969-12-29. Windows of months begin at multiples of them after January of the year 0.

    Attributes:
        width_us: of each window; 0: `months` are given.
        months: of each window; 12 are a year.
    """

    width_us: int = 0
    months: int = 0

    @property
    def column(self) -> str:
        return "time"

    def __str__(self) -> str:
        if self.months:
            years, months = divmod(self.months, 12)
            return f"window:{self.months}mo" if months else f"window:{years}y"
        return f"window:{self.width_us / MICROS:.6f}".rstrip("0").rstrip(".") + "s"

    def numbers(self, times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the window of each time, in their order."""
        if self.months:
            return (_months(times_us // DAY_US) + _MONTHS_BEFORE_1970) // self.months
        return (times_us - first_window_us(self.width_us)) // self.width_us

    def begins(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """When windows begin, in microseconds."""
        if self.months:
            months = (numbers * self.months - _MONTHS_BEFORE_1970).astype("datetime64[M]")
            return months.astype("datetime64[D]").astype(np.int64) * DAY_US
        return numbers * self.width_us + first_window_us(self.width_us)

    def holds_whole(self, bucket_us: int) -> bool:
        """Whether no time bucket of that width lies in two windows."""
        if self.months:
            return DAY_US % bucket_us == 0
        return self.width_us % bucket_us == 0 and first_window_us(self.width_us) % bucket_us == 0


def _months(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The month of each day, both counted from January 1970."""
    if not len(days):
        return days
    low, high = int(days.min()), int(days.max())
    if high - low > len(days):
        return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    each = np.arange(low, high + 1).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return each.take(days - low)


@dataclass(frozen=True, slots=True)
class FeatureKey:
    """Groups by the values of a feature; observations without a value are a group, too."""

    name: str

    @property
    def column(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


Key: TypeAlias = CellKey | WindowKey | FeatureKey


def cell(precision: int | None = None, *, bits: int | None = None) -> CellKey:
    """A key of `aggregate`: the geohash cell of an observation.

    Args:
        precision: characters of the cell, 1 to 12.
        bits: of the cell, 1 to 60, in place of a precision. A bit halves the cells.

    Raises:
        InputError: neither or both are given, or out of range.

    Example:
        >>> client.aggregate("weather", by=[galileo.cell(1)]).to_pandas()["geohash"].to_list()
        ['9', 'u']
    """
    if (precision is None) == (bits is None):
        raise InputError(
            "expected a precision or a number of bits of cells, such as cell(5)", parameter="by"
        )
    if precision is not None:
        return CellKey(5 * _whole(precision, PRECISION_MAX, "a geohash precision"))
    return CellKey(_whole(bits, BITS_MAX, "a number of bits of a geohash cell"))


def window(width: Duration) -> WindowKey:
    """A key of `aggregate`: the time window of an observation.

    Windows follow each other without gaps, in UTC. Windows of months and years begin with a
    calendar month, and windows of whole weeks begin on a Monday. All other windows begin at whole
    multiples of their width after 1970-01-01T00:00:00Z.

    Args:
        width: such as "15m", "1h", "1d", "1w", "1mo", "3mo" or "1y", a number of seconds, or a
            timedelta.

    Raises:
        InputError: it is not a duration of a microsecond to a hundred years.

    Example:
        >>> hourly = client.aggregate("weather", by=[galileo.window("1h")])
        >>> hourly.to_pandas()["observations"].to_list()
        [1, 1, 2]
    """
    calendar = _CALENDAR.fullmatch(width) if isinstance(width, str) else None
    if calendar is None:
        key = WindowKey(round(seconds(width) * MICROS))
    elif calendar["rest"]:
        raise InputError(
            "expected windows of whole months or years, such as 1mo, 3mo or 1y, which begin with a "
            f"month in UTC and have no offset, got {width!r:.200}",
            parameter="by",
            expected="calendar_window",
        )
    else:
        key = WindowKey(months=int(calendar["count"]) * (12 if calendar["unit"][0] == "y" else 1))
    _check_width(key)
    return key


def _check_width(key: WindowKey) -> None:
    is_calendar = key.width_us == 0 and 1 <= key.months <= _MONTHS_MAX
    if not is_calendar and (key.months or not 1 <= key.width_us <= SIZE_MAX_US):
        raise InputError(
            "expected windows of a microsecond to a hundred years, got "
            f"{key.months or key.width_us:,} {'months' if key.months else 'microseconds'}",
            parameter="by",
        )


def _whole(value: object, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise InputError(f"expected {what} from 1 to {most}, got {value!r}", parameter="by")
    return int(value)


def parse_key(key: Key | str) -> Key:
    """The key of a text: "cell:5", "bits:14", "window:1h" or the name of a feature.

    Raises:
        InputError: it is no such text.
    """
    if isinstance(key, CellKey | WindowKey | FeatureKey):
        return key
    if not isinstance(key, str):
        raise InputError(
            f"expected a key such as galileo.cell(5), galileo.window('1h') or the name of a "
            f"feature, got {key!r}",
            parameter="by",
        )
    kind, colon, value = key.partition(":")
    if not colon:
        return FeatureKey(key)
    if kind == "window":
        return window(value)
    if kind in ("cell", "bits") and value.isascii() and value.isdigit() and len(value) < 10:
        return cell(int(value)) if kind == "cell" else cell(bits=int(value))
    raise InputError(
        f"expected a key such as cell:5, bits:14, window:1h or the name of a feature, got {key!r}",
        parameter="by",
    )


@dataclass(frozen=True, slots=True)
class Grouping:
    """Keys, and the statistics of features.

    Attributes:
        keys: by which observations are grouped; none: all are one group.
        statistics: of each feature, its statistics in the order of the answer.
    """

    keys: tuple[Key, ...]
    statistics: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(
        cls,
        by: Sequence[Key | str] | Key | str,
        statistics: Mapping[str, str | Sequence[str]] | None = None,
    ) -> Grouping:
        """The grouping of a call's arguments; a single key or statistic needs no list.

        Raises:
            InputError: an argument has the wrong type.
        """
        each = [by] if isinstance(by, str | CellKey | WindowKey | FeatureKey) else by
        keys = tuple(parse_key(key) for key in each)
        named = {} if statistics is None else statistics
        if not isinstance(named, Mapping):
            raise InputError(
                "expected statistics of features, such as {'temperature': ['mean', 'max']}, got "
                f"{statistics!r}",
                parameter="statistics",
            )
        wanted = ((n, (s,) if isinstance(s, str) else tuple(s)) for n, s in named.items())
        return cls(keys, tuple(wanted))

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it reads, each once."""
        keys = (key.name for key in self.keys if isinstance(key, FeatureKey))
        return tuple(dict.fromkeys((*keys, *(name for name, _ in self.statistics))))

    def check(self, schema: Schema) -> None:
        """Raises `InputError` unless the dataset has these keys and statistics."""
        count = sum(len(names) for _, names in self.statistics)
        check_counts(keys=len(self.keys), features=len(self.statistics), statistics=count)
        kinds = [key.column if isinstance(key, FeatureKey) else type(key) for key in self.keys]
        if len(set(kinds)) < len(kinds):
            raise InputError(
                "expected one key of cells, one of windows, and each feature once, got "
                f"{', '.join(map(str, self.keys))}",
                parameter="by",
            )
        for key in self.keys:
            _check_key(key, schema)
        for name, statistics in self.statistics:
            _check_statistics(_feature(schema, name), statistics)

    def is_in_graph(self, schema: Schema) -> bool:
        """Whether paths determine the groups of their observations."""
        indexed = {feature.name for feature in schema.indexed}
        is_known = indexed.issuperset(self.features) and not self.needs_times
        return is_known and all(_is_coarse(key, schema) for key in self.keys)

    @property
    def needs_times(self) -> bool:
        """Whether a statistic is one of times of observations."""
        return any({"first", "last"}.intersection(names) for _, names in self.statistics)

    def columns(self, schema: Schema) -> tuple[str, ...]:
        """The columns of observations that it reads, in the order of the dataset."""
        needed = {*self.features, *(["time"] if self.needs_times else [])}
        for key in self.keys:
            if isinstance(key, CellKey):
                needed |= {"latitude", "longitude"}
            elif isinstance(key, WindowKey):
                needed.add("time")
        return tuple(name for name in schema.observation_schema.names if name in needed) or (
            "time",
        )

    def names(self) -> tuple[str, ...]:
        """The columns of an answer, each of a name of its own."""
        names: list[str] = []
        measured = (f"{name}_{s}" for name, statistics in self.statistics for s in statistics)
        for name in (*(key.column for key in self.keys), OBSERVATIONS, *measured):
            while name in names:
                name += "_"
            names.append(name)
        return tuple(names)


def parts_of(statistics: Sequence[str]) -> tuple[str, ...]:
    """The parts that some statistics need, each once."""
    parts = (part for name in statistics for part in known(name).parts)
    return tuple(sorted({*parts}))


def _is_coarse(key: Key, schema: Schema) -> bool:
    if isinstance(key, CellKey):
        return key.bits <= 5 * schema.geohash_precision
    return isinstance(key, FeatureKey) or key.holds_whole(schema.time_bucket_us)


def _check_key(key: Key, schema: Schema) -> None:
    if isinstance(key, FeatureKey):
        _feature(schema, key.name)
    elif isinstance(key, CellKey):
        _whole(key.bits, BITS_MAX, "a number of bits of a geohash cell")
    else:
        _check_width(key)


def _feature(schema: Schema, name: str) -> Feature:
    feature = schema.feature(name)
    if feature is None:
        known = ", ".join(feature.name for feature in schema.features)
        raise InputError(
            f"expected a feature of dataset {schema.name!r} ({known or 'it has none'}), got "
            f"{name!r}",
            expected="feature",
            feature=name,
        )
    return feature


def _check_statistics(feature: Feature, statistics: Sequence[str]) -> None:
    numeric = [name for name in statistics if name not in OF_TEXTS and _is_known(name)]
    if feature.type == "text" and numeric:
        raise InputError(
            f"expected a feature with numbers for {numeric[0]}, got {feature.name!r}, which has "
            "texts; of texts there are count, first and last",
            expected="numeric_feature",
            feature=feature.name,
            statistic=numeric[0],
        )
    if (
        not statistics
        or not all(map(_is_known, statistics))
        or len(set(statistics)) < len(statistics)
    ):
        raise InputError(
            f"expected statistics of feature {feature.name!r}, each once, of "
            f"{', '.join(STATISTICS)} and percentiles such as p90; got "
            f"{', '.join(map(str, statistics)) or 'none'}",
            expected="statistics",
            feature=feature.name,
        )


def _is_known(name: str) -> bool:
    return isinstance(name, str) and (name in STATISTICS or bool(_PERCENTILE.fullmatch(name)))


def check_counts(*, keys: int, features: int, statistics: int) -> None:
    """Raises `InputError` if a grouping would have too many keys, features or statistics."""
    if statistics > STATISTICS_MAX:
        raise InputError(
            f"expected at most {STATISTICS_MAX} statistics, got {statistics:,}",
            parameter="statistics",
            bound=STATISTICS_MAX,
        )
    if keys > KEYS_MAX or features > MEASURES_MAX:
        raise InputError(
            f"expected at most {KEYS_MAX} keys and statistics of {MEASURES_MAX} features, got "
            f"{keys} and {features}",
            parameter="by",
            bound=KEYS_MAX,
        )
