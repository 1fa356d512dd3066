"""What exploring a dataset gives: values that say what they are about and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from galileo.client import notebook_repr
from galileo.client.graph_path import value_texts
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.schema import Schema
from galileo.model.versions import PartitionVersion
from galileo.optional_imports import to_pandas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class ConditionStep:
    """One condition of a query at one node: CQL2 JSON, paths tested, paths that passed."""

    condition: str
    tested: int
    passed: int


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """What one node did for a query.

    Attributes:
        node: its name.
        group: of the node.
        partitions: that it was asked about.
        error: why it did not answer, with everything below then 0; None where it did.
        seconds: until its answer was there, the network included.
        runs: sorted runs of its metadata graph, and the head.
        runs_pruned: of them left out, since they hold no commit that was asked for.
        zones: stretches of the other runs that have bounds of their own.
        zones_scanned: of them not ruled out by these bounds.
        paths: in its graph.
        paths_examined: that neither bounds nor the binary search for cells ruled out.
        cells_tested: paths whose cell or time was compared.
        found: paths that match.
        plan_s: seconds for ruling out.
        sift_s: seconds for testing conditions.
        gather_s: seconds for making labels.
        steps: conditions in the order of how many paths they were tested on.
    """

    node: str
    group: str
    partitions: tuple[int, ...]
    error: str | None = None
    seconds: float = 0.0
    runs: int = 0
    runs_pruned: int = 0
    zones: int = 0
    zones_scanned: int = 0
    paths: int = 0
    paths_examined: int = 0
    cells_tested: int = 0
    found: int = 0
    plan_s: float = 0.0
    sift_s: float = 0.0
    gather_s: float = 0.0
    steps: tuple[ConditionStep, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryExplanation:
    """How a query is answered.

    Attributes:
        dataset: its name.
        query: canonical CQL2 JSON.
        groups: that can hold a match, by placement.
        partitions: likewise.
        pruned: partitions in which the feature graph rules a match out, up to which commit; only
            what was committed later is looked at.
        nodes: what each node did that was asked.
        plan_s: seconds for finding out whom to ask.
        total_s: seconds for everything, at the node that was asked.
    """

    dataset: str
    query: str
    groups: tuple[str, ...]
    partitions: tuple[int, ...]
    pruned: Cursor
    nodes: tuple[NodeExplanation, ...]
    plan_s: float
    total_s: float

    @property
    def found(self) -> int:
        """Paths that match."""
        return sum(node.found for node in self.nodes)

    @property
    def missing(self) -> tuple[int, ...]:
        """Partitions of nodes that did not answer."""
        return tuple(sorted(p for node in self.nodes if node.error for p in node.partitions))

    @property
    def complete(self) -> bool:
        """Whether every node that had to be asked answered."""
        return not self.missing

    def to_arrow(self) -> pa.Table:
        """One row per node, without its conditions.

        Example:
            >>> client.explain("weather").to_arrow().num_rows
            3
        """
        names = [name for name in NodeExplanation.__slots__ if name not in ("steps", "partitions")]
        columns = {name: [getattr(node, name) for node in self.nodes] for name in names}
        return pa.table(columns | {"partitions": [len(node.partitions) for node in self.nodes]})

    def _repr_html_(self) -> str:
        facts = {"groups": self.groups, "milliseconds": 1e3 * self.total_s, "missing": self.missing}
        title = f"{self.dataset}: {self.found:,} paths found"
        return notebook_repr.card(title, facts, rows=self.to_arrow().to_pylist())

    def __repr__(self) -> str:
        return (
            f"<QueryExplanation {self.dataset}: {self.found:,} paths found by "
            f"{len(self.nodes)} nodes of {len(self.groups)} groups, {len(self.pruned)} of "
            f"{len(self.partitions)} partitions pruned, {1e3 * self.total_s:.1f} ms>"
        )


@dataclass(frozen=True, slots=True, eq=False)
class NearestResult:
    """The observations nearest to a point.

    Attributes:
        table: observations, nearest first, and their distance in metres in a last column,
            `distance_m`.
        query: canonical CQL2 JSON, which they match.
        frontier: up to which commit of each partition the answer speaks.
        missing: partitions that could not be asked; there may be nearer ones in them.
    """

    table: pa.Table
    query: str
    frontier: Cursor
    missing: tuple[int, ...]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a nearer observation was asked."""
        return not self.missing

    def to_arrow(self) -> pa.Table:
        """The observations, nearest first, with a column `distance_m`.

        Example:
            >>> client.nearest("weather", latitude=40, longitude=-105, k=2).to_arrow().num_rows
            2
        """
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> nearest = client.nearest("weather", latitude=40, longitude=-105, k=1)
            >>> nearest.to_pandas()["distance_m"].to_list()
            [0.0]
        """
        return to_pandas(self.table)

    def _repr_html_(self) -> str:
        rows = self.table.slice(0, notebook_repr.ROWS_SHOWN).to_pylist()
        title = f"Nearest {len(self):,} observations"
        return notebook_repr.card(title, {"missing": self.missing}, rows=rows, of=len(self))

    def __repr__(self) -> str:
        distances = self.table.column(self.table.num_columns - 1)
        reach = f" within {distances[-1].as_py():,.1f} m" if len(self) else ""
        return f"<NearestResult: {len(self):,} observations{reach}{_state(self.missing)}>"


@dataclass(frozen=True, slots=True, eq=False)
class LatestResult:
    """The newest observation of each cell or value, ascending by these, null last.

    Attributes:
        table: observations; of cells, `geohash` is the first column.
        query: canonical CQL2 JSON, which they match.
        frontier: up to which commit of each partition the answer speaks.
        missing: partitions that could not be asked; there may be newer ones in them.
    """

    table: pa.Table
    query: str
    frontier: Cursor
    missing: tuple[int, ...]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a newer observation was asked."""
        return not self.missing

    def to_arrow(self) -> pa.Table:
        """The observations.

        Example:
            >>> client.latest("weather", by="cell:1").to_arrow()["geohash"].to_pylist()
            ['9', 'u']
        """
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> newest = client.latest("weather", "temperature < 290", by="station")
            >>> newest.to_pandas()["station"].to_list()
            ['EDDB', 'KDEN']
        """
        return to_pandas(self.table)

    def _repr_html_(self) -> str:
        rows = self.table.slice(0, notebook_repr.ROWS_SHOWN).to_pylist()
        title = f"Newest {len(self):,} observations"
        return notebook_repr.card(title, {"missing": self.missing}, rows=rows, of=len(self))

    def __repr__(self) -> str:
        return f"<LatestResult: {len(self):,} observations{_state(self.missing)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Groups of the observations that match, ascending by their keys, null last.

    Attributes:
        table: a column for each key (`geohash`, `cell`, `time` or a feature), `observations`, and
            a column for each statistic of a feature, such as `temperature_mean`.
        query: canonical CQL2 JSON.
        frontier: up to which commit of each partition the answer speaks.
        missing: partitions that could not be asked; their observations are in no group.
        partitions: that could hold a match. Only what happens to these can change the answer.
        ranges: as in `DatasetVersion`, of the time of the answer.
        rank_error: 0.0 if all percentiles are exact. Else the rank of a percentile of a group with
            more than 10,000 different values differs by at most this share of its values, with
            99 % confidence.
    """

    table: pa.Table
    query: str
    frontier: Cursor
    missing: tuple[int, ...]
    partitions: tuple[int, ...] = ()
    ranges: int = 0
    rank_error: float = 0.0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a match was asked."""
        return not self.missing

    def to_arrow(self) -> pa.Table:
        """The groups.

        Example:
            >>> stations = client.aggregate("weather", by=["station"])
            >>> stations.to_arrow()["observations"].to_pylist()
            [1, 1, 2]
        """
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> largest = {"temperature": "max"}
            >>> warmest = client.aggregate("weather", by=["station"], statistics=largest)
            >>> warmest.to_pandas()["temperature_max"].to_list()
            [279.0, 292.5, 291.0]
        """
        return to_pandas(self.table)

    def _repr_html_(self) -> str:
        rows = self.table.slice(0, notebook_repr.ROWS_SHOWN).to_pylist()
        return notebook_repr.card(
            f"{len(self):,} groups", {"missing": self.missing}, rows=rows, of=len(self)
        )

    def __repr__(self) -> str:
        columns = ", ".join(self.table.column_names)
        return f"<Aggregates: {len(self):,} groups with {columns}{_state(self.missing)}>"


@dataclass(frozen=True, slots=True)
class FeatureSummary:
    """Statistics of a feature over the observations under the paths that match.

    Attributes:
        feature: its name.
        query: canonical CQL2 JSON.
        paths: that match.
        observations: under them.
        nulls: of them without a value.
        minimum: None where no observation has a value.
        maximum: likewise.
        total: sum of all values.
        edges: of the histogram's bins, ascending, one more than there are bins; or none.
        counts: observations in each bin, which holds its lower edge, the last one both.
        frontier: up to which commit of each partition the statistics speak.
        missing: partitions that could not be asked.
    """

    feature: str
    query: str
    paths: int
    observations: int
    nulls: int
    minimum: float | None
    maximum: float | None
    total: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    frontier: Cursor
    missing: tuple[int, ...]

    @property
    def mean(self) -> float | None:
        """Over the observations that have a value; None where none has."""
        valued = self.observations - self.nulls
        return self.total / valued if valued else None

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a match was asked."""
        return not self.missing

    def _repr_html_(self) -> str:
        names = ("paths", "observations", "nulls", "minimum", "mean", "maximum", "missing")
        facts = {name: getattr(self, name) for name in names}
        return notebook_repr.card(
            f"Summary of {self.feature}", facts, rows=self.to_arrow().to_pylist()
        )

    def to_arrow(self) -> pa.Table:
        """The histogram: columns `low`, `high`, `observations`.

        Example:
            >>> summary = client.summarise("weather", feature="temperature", bins=2)
            >>> summary.to_arrow()["observations"].to_pylist()
            [1, 3]
        """
        low, high = pa.array(self.edges[:-1], pa.float64()), pa.array(self.edges[1:], pa.float64())
        counts = pa.array(self.counts, pa.int64())
        return pa.table({"low": low, "high": high, "observations": counts})

    def __repr__(self) -> str:
        values = "" if self.mean is None else f" from {self.minimum:g} to {self.maximum:g}"
        return (
            f"<FeatureSummary {self.feature}: {self.observations:,} observations{values}, "
            f"{self.nulls:,} without a value{_state(self.missing)}>"
        )


@dataclass(frozen=True, slots=True)
class Vertex:
    """A vertex of the metadata graph, in some order of its levels.

    Attributes:
        path: values of the levels from the root down to this one.
        level: of the last value.
        paths: that pass through it.
        observations: under them.
        text: the path as a text that `children` and `tree` take.
        missing: partitions that are not counted, since their nodes could not be asked.
    """

    path: tuple[Any, ...]
    level: str
    paths: int
    observations: int
    text: str
    missing: tuple[int, ...] = ()

    @property
    def value(self) -> Any:
        """Of its own level, the last of its path."""
        return self.path[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """The vertices below one, or a page of them.

    Attributes:
        schema: of the dataset.
        order: of the levels.
        prefix: values from the root to the vertex above.
        table: columns `value`, `paths`, `observations`, ascending by value with null last.
        more: whether there are more behind the last; ask with `after` for them.
        missing: partitions that could not be asked.
        above: the vertex above, as a text.
    """

    schema: Schema
    order: tuple[str, ...]
    prefix: tuple[Any, ...]
    table: pa.Table
    more: bool
    missing: tuple[int, ...]
    above: str = ""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def level(self) -> str:
        """The level of the children, such as "geohash" or a feature's name."""
        return self.order[len(self.prefix)]

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a child was asked."""
        return not self.missing

    @property
    def last(self) -> Any:
        """The value that the next page begins after."""
        return self.table.column("value")[-1].as_py() if len(self) else None

    def texts(self) -> pa.Array:
        """The children as texts that `children` and `tree` take.

        Example:
            >>> client.children("weather", order=["station"]).texts().to_pylist()
            ['EDDB', 'KCYS', 'KDEN']
        """
        values = self.table.column("value").combine_chunks()
        texts = value_texts(values, self.schema, level=self.level)
        return pc.binary_join_element_wise(self.above, texts, "/") if self.prefix else texts

    def vertices(self) -> Iterator[Vertex]:
        """The children one by one.

        Example:
            >>> page = client.children("weather", order=["station"])
            >>> [vertex.value for vertex in page.vertices()]
            ['EDDB', 'KCYS', 'KDEN']
        """
        columns = [self.table.column(name).to_pylist() for name in self.table.column_names]
        for value, paths, observations, text in zip(
            *columns, self.texts().to_pylist(), strict=True
        ):
            path = (*self.prefix, value)
            yield Vertex(path, self.level, paths, observations, text, self.missing)

    def to_arrow(self) -> pa.Table:
        """The table with the children's texts in a first column, `vertex`.

        Example:
            >>> client.children("weather", order=["station"]).to_arrow()["observations"].to_pylist()
            [1, 1, 2]
        """
        return self.table.add_column(0, "vertex", self.texts())

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> len(client.children("weather", order=["station"]).to_pandas())
            3
        """
        return to_pandas(self.to_arrow())

    def _repr_html_(self) -> str:
        rows = self.to_arrow().slice(0, notebook_repr.ROWS_SHOWN).to_pylist()
        facts = {"below": self.above, "missing": self.missing, "more": self.more}
        return notebook_repr.card(
            f"{len(self):,} of level {self.level}", facts, rows=rows, of=len(self)
        )

    def __repr__(self) -> str:
        more = " and more" if self.more else ""
        return f"<Children: {len(self):,} of level {self.level}{more}{_state(self.missing)}>"


@dataclass(frozen=True, slots=True)
class Quantile:
    """Where a share of the matching paths that have a value ends; certainly in [low, high]."""

    share: float
    low: float
    high: float
    value: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the feature graph of one node says of a query.

    Attributes:
        query: canonical CQL2 JSON.
        low: at least so many paths match.
        high: at most so many.
        feature: whose quantiles these are, or none.
        quantiles: over the matching paths that have a value; none where nothing can match.
        frontier: the bounds hold for everything up to here.
        behind: commits that are known to be there beyond it.
        missing: partitions of nodes that the one asked has not heard from since it started.
        node: that was asked.
    """

    query: str
    low: int
    high: int
    feature: str | None
    quantiles: tuple[Quantile, ...]
    frontier: Cursor = EMPTY_CURSOR
    behind: int = 0
    missing: tuple[int, ...] = ()
    node: str = ""

    @property
    def count(self) -> float:
        """In the middle of the bounds."""
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """How far the number of matching paths can be from `count`."""
        return (self.high - self.low) / 2

    @property
    def complete(self) -> bool:
        """Whether the bounds speak of every commit that the node knows of."""
        return not self.missing and self.behind == 0

    def _repr_html_(self) -> str:
        names = ("share", "low", "value", "high")
        rows = [{name: getattr(quantile, name) for name in names} for quantile in self.quantiles]
        facts = {"quantiles of": self.feature, "commits behind": self.behind or None}
        return notebook_repr.card(f"{self.low:,} to {self.high:,} paths", facts, rows=rows)

    def __repr__(self) -> str:
        return f"<Estimate: {self.low:,} to {self.high:,} paths{_state(self.missing)}>"


def _state(missing: tuple[int, ...]) -> str:
    return f", partitions {list(missing)} missing" if missing else ""


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """What readers see of a dataset: while it stays the same, so do all answers.

    Attributes:
        schema: of the dataset that has the name now.
        partitions: the version of each partition that can have rows and whose owner answered.
        ranges: a number that changes with the rule by which observations are placed, and so the
            partitions in which a region is looked for.
        missing: partitions whose owner could not be asked.
    """

    schema: Schema
    partitions: Mapping[int, PartitionVersion]
    ranges: int
    missing: tuple[int, ...]

    @property
    def cursor(self) -> Cursor:
        """The last commit of each partition, up to which readers see the dataset."""
        return Cursor({partition: version.last for partition, version in self.partitions.items()})

    @property
    def complete(self) -> bool:
        """Whether every owner answered."""
        return not self.missing
