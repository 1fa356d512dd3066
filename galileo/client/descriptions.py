"""What a dataset holds, as its metadata says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galileo.client import completeness, notebook_repr
from galileo.client.analytics import analytics_of
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.schema import Feature, Schema
from galileo.model.windows import instant
from galileo.optional_imports import library
from galileo.wire.caller import Caller, Connection
from galileo.wire.codec import cursor_from_pb, number_from_pb
from galileo.wire.v1 import analytics_pb2

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """What a dataset holds of one feature.

    Of a feature that is not indexed nothing is known but its name, unit and type.

    Attributes:
        name, unit, type, indexed: as in the schema.
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


async def describe(caller: Caller, schema: Schema, *, require_complete: bool) -> DatasetDescription:
    """See `AsyncClient.describe`."""
    request = analytics_pb2.DescribeRequest(dataset=schema.key)

    async def attempt(node: Connection) -> DatasetDescription:
        return _description(await analytics_of(node, "Describe", request), schema)

    return await completeness.call(caller, attempt, require_complete=require_complete)


def _description(reply: analytics_pb2.DescribeReply, schema: Schema) -> DatasetDescription:
    values = {value.name: value for value in reply.features}
    extent = reply.extent if reply.HasField("extent") else None
    return DatasetDescription(
        schema=schema,
        observations=reply.observations,
        paths=reply.paths,
        bytes=reply.bytes,
        bbox=(extent.west, extent.south, extent.east, extent.north) if extent else None,
        start=instant(extent.start_us) if extent else None,
        end=instant(extent.end_us) if extent else None,
        features=tuple(
            _feature(feature, values.get(feature.name), reply.observations)
            for feature in schema.features
        ),
        frontier=cursor_from_pb(reply.frontier),
        missing=tuple(reply.missing),
    )


def _feature(
    feature: Feature, value: analytics_pb2.FeatureStatistics | None, observations: int
) -> FeatureDescription:
    named = (feature.name, feature.unit, feature.type, feature.indexed)
    if value is None:
        return FeatureDescription(*named)
    count = observations - value.nulls
    if feature.type == "text":
        by_count = sorted(value.values, key=lambda counted: (-counted.observations, counted.value))
        return FeatureDescription(
            *named,
            count=count,
            nulls=value.nulls,
            distinct=None if value.many_values else len(by_count),
            values={counted.value: counted.observations for counted in by_count},
        )
    return FeatureDescription(
        *named,
        count=count,
        nulls=value.nulls,
        minimum=number_from_pb(value.minimum),
        maximum=number_from_pb(value.maximum),
        mean=value.total / count if count else None,
    )
