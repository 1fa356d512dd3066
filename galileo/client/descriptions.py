"""What a dataset holds, as its metadata says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galileo.client import notebook_repr
from galileo.client.analytics import AnalyticsAnswer
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.schema import Feature, Schema
from galileo.model.windows import instant
from galileo.optional_imports import library

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """What a dataset holds of one feature.

    Of a feature that is not indexed nothing is known but what the schema says.

    Attributes:
        name, unit, type, indexed, standard_name, description, flags: as in the schema.
        count: observations with a value.
        nulls: observations without one.
        minimum: the least value, of a bool 0 or 1; None for texts, and where there is no value.
        maximum: the greatest value; likewise.
        mean: over the observations that have a value; likewise.
        distinct: number of different texts; None for other types, and where there are more than
            1,000.
        values: of a text feature its values with their observations, the most frequent first;
            empty where `distinct` is None.
    """

    name: str
    unit: str
    type: str
    indexed: bool
    count: int | None = None
    nulls: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    distinct: int | None = None
    values: Mapping[str, int] = field(default_factory=dict)
    standard_name: str = ""
    description: str = ""
    flags: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DatasetDescription:
    """What a dataset holds, without what retention has dropped.

    Attributes:
        schema: of the dataset.
        observations: that are stored.
        paths: of the metadata graph; that many labels has the query of everything.
        bytes: of the files of all nodes.
        bbox: (west, south, east, north) in degrees, of the cells that hold observations; None
            where nothing is stored.
        start: of the first time bucket, UTC; None likewise.
        end: of the last time bucket, exclusive.
        features: in the order of the schema.
        frontier: up to which commit of each partition the description speaks, at least.
        missing: partitions that could not be asked.
    """

    schema: Schema
    observations: int
    paths: int
    bytes: int
    bbox: tuple[float, float, float, float] | None
    start: dt.datetime | None
    end: dt.datetime | None
    features: tuple[FeatureDescription, ...]
    frontier: Cursor = EMPTY_CURSOR
    missing: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every node answered."""
        return not self.missing

    def feature(self, name: str) -> FeatureDescription:
        """The description of one feature.

        Raises:
            KeyError: the dataset has no feature of this name.

        Example:
            >>> client.describe("weather").feature("station").values["KDEN"]
            2
        """
        return {feature.name: feature for feature in self.features}[name]

    def to_pandas(self) -> pd.DataFrame:
        """One row for each feature, without the values of texts.

        Example:
            >>> client.describe("weather").to_pandas()["name"].to_list()
            ['temperature', 'station']
        """
        frame: pd.DataFrame = library("pandas", purpose="to_pandas()").DataFrame(self._rows())
        return frame

    def _rows(self) -> list[dict[str, Any]]:
        names = [name for name in FeatureDescription.__slots__ if name != "values"]
        return [{n: getattr(feature, n) for n in names} for feature in self.features]

    def __repr__(self) -> str:
        lacks = f", partitions {list(self.missing)} missing" if self.missing else ""
        return (
            f"<DatasetDescription {self.schema.name}: {self.observations:,} observations of "
            f"{len(self.features)} features{lacks}>"
        )

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {
            "paths": self.paths,
            "bytes": self.bytes,
            "bbox": self.bbox,
            "start": self.start,
            "end": self.end,
            "partitions missing:": self.missing or None,
        }
        title = f"{self.schema.name}: {self.observations:,} observations"
        return notebook_repr.card(title, facts, rows=self._rows())


def description_of(answer: AnalyticsAnswer, schema: Schema) -> DatasetDescription:
    """See `AsyncClient.describe`."""
    facts, extent = answer.facts, answer.facts["extent"]
    return DatasetDescription(
        schema=schema,
        observations=facts["observations"],
        paths=facts["paths"],
        bytes=facts["bytes"],
        bbox=tuple(extent[side] for side in ("west", "south", "east", "north")) if extent else None,
        start=instant(extent["start_us"]) if extent else None,
        end=instant(extent["end_us"]) if extent else None,
        features=tuple(_feature(feature, facts) for feature in schema.features),
        frontier=answer.frontier,
        missing=answer.missing,
    )


def _feature(feature: Feature, facts: Mapping[str, Any]) -> FeatureDescription:
    names = ("name", "unit", "type", "indexed", "standard_name", "description", "flags")
    named = {name: getattr(feature, name) for name in names}
    if (texts := facts["texts"].get(feature.name)) is not None:
        counts = sorted(texts["counts"].items(), key=lambda counted: (-counted[1], counted[0]))
        return FeatureDescription(
            **named,
            count=facts["observations"] - texts["nulls"],
            nulls=texts["nulls"],
            distinct=None if texts["has_more"] else len(counts),
            values=dict(counts),
        )
    if (numbers := facts["numbers"].get(feature.name)) is not None:
        return FeatureDescription(
            **named,
            count=facts["observations"] - numbers["missing"],
            nulls=numbers["missing"],
            minimum=numbers["minimum"],
            maximum=numbers["maximum"],
            mean=numbers["mean"],
        )
    return FeatureDescription(**named)
