"""The calls of `AsyncClient` that explore: the graphs answer, and no label crosses the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from galileo.client import analytics
from galileo.client.analytics import CHILDREN, AnalyticsAnswer, Result, Tree
from galileo.client.analytics_results import (
    Aggregates,
    Children,
    DatasetVersion,
    Estimate,
    FeatureSummary,
    LatestResult,
    NearestResult,
    QueryExplanation,
    Vertex,
)
from galileo.client.arguments import dataset_name
from galileo.client.calls import Calls
from galileo.client.descriptions import DatasetDescription, description_of
from galileo.model.feature_metadata import described
from galileo.model.grouping import Grouping, Key, parse_key
from galileo.query import questions
from galileo.query.builder import QueryLike, query_text
from galileo.query.operands import DATETIME, GEOHASH
from galileo.query.questions import LatestKey, Question


class AsyncAnalytics(Calls):
    """A partial answer names the partitions that are `missing`; wrong input is an `InputError`.

    With `require_complete` a partial answer is asked for again as long as the client is patient,
    and then raises `IncompleteAnswer`.
    """

    async def _analyse(
        self,
        dataset: str,
        query: QueryLike,
        question: Question,
        decode: Callable[[AnalyticsAnswer], Result],
        *,
        require_complete: bool,
    ) -> Result:
        """The result of a question; arguments as `analytics.analyse`."""
        return await analytics.analyse(
            self._caller,
            dataset_name(dataset),
            query_text(query),
            question,
            decode,
            require_complete=require_complete,
        )

    async def explain(
        self, dataset: str, query: QueryLike = "", *, require_complete: bool = False
    ) -> QueryExplanation:
        """How a query is answered, found by answering it: whom it asks, what they look at.

        Example:
            >>> explanation = await client.explain("weather", "temperature > 290")
            >>> explanation.found
            2
        """
        return await self._analyse(
            dataset,
            query,
            questions.Explain(),
            lambda answer: analytics.explanation_of(answer, dataset),
            require_complete=require_complete,
        )

    async def describe(self, dataset: str, *, require_complete: bool = False) -> DatasetDescription:
        """What a dataset holds: observations, bytes, extent, and statistics of each feature.

        It comes from the metadata graphs; no observation is read. Place and time are those of
        blocks: all of a cell, all of a time bucket. Each node keeps what it knows of the sealed
        runs of its graph, so a call costs the up to 65,536 paths that came last, and each other
        path once, after a node has started or has merged its runs.

        Args:
            dataset: its name.
            require_complete: whether a partial answer is an error.

        Raises:
            UnknownDataset: there is none of that name.

        Example:
            >>> known = await client.describe("weather")
            >>> known.observations, known.feature("temperature").maximum
            (4, 292.5)
        """
        schema = await self._schema(dataset)
        return await self._analyse(
            schema.key,
            "",
            questions.Describe(),
            lambda answer: description_of(answer, schema),
            require_complete=require_complete,
        )

    async def nearest(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        latitude: float,
        longitude: float,
        k: int = 10,
        within_m: float | None = None,
        require_complete: bool = False,
    ) -> NearestResult:
        """The k observations nearest to a point, of those that match the query exactly.

        Distances are those of DWITHIN. Of observations equally far away the earlier come first,
        then those farther south, farther west, and with lesser feature values in schema order,
        missing ones last.

        Args:
            dataset: its name.
            query: CQL2.
            latitude: degrees, -90 to 90.
            longitude: degrees, -180 to 180.
            k: how many at most, up to 100,000.
            within_m: none farther away than so many metres, if given.
            require_complete: whether a partial answer is an error.

        Example:
            >>> nearest = await client.nearest("weather", latitude=52, longitude=13, k=1)
            >>> nearest.to_pandas()["station"].to_list()
            ['EDDB']
        """
        question = analytics.nearest_question(
            latitude=latitude, longitude=longitude, k=k, within_m=within_m
        )
        schema = await self._schema(dataset)
        return await self._analyse(
            dataset,
            query,
            question,
            lambda answer: NearestResult(described(answer.rows, schema.features), **answer.about),
            require_complete=require_complete,
        )

    async def summarise(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        feature: str,
        bins: int | Sequence[float] | None = None,
        require_complete: bool = False,
    ) -> FeatureSummary:
        """Statistics of a feature over the observations under the paths that match.

        They are counted in the graphs, by what labels say: exact for conditions on features; a
        block at the edge of a region or an interval counts as a whole.

        Args:
            dataset: its name.
            query: CQL2.
            feature: indexed, of type float, int or bool; a bool counts as 0 and 1.
            bins: of a histogram: so many of equal width between the extremes, or their edges.
            require_complete: whether a partial answer is an error.

        Example:
            >>> summary = await client.summarise("weather", feature="temperature")
            >>> summary.mean
            287.625
        """
        return await self._analyse(
            dataset,
            query,
            analytics.summary_question(feature, bins),
            lambda answer: analytics.summary_of(answer, feature),
            require_complete=require_complete,
        )

    async def aggregate(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        by: Sequence[Key | str] | Key | str = (),
        statistics: Mapping[str, str | Sequence[str]] | None = None,
        require_complete: bool = False,
    ) -> Aggregates:
        """Counts and statistics of groups of the observations that match exactly.

        Each owner groups its observations, and the node that is asked merges the groups. The owners
        answer from their metadata graphs if cells are no smaller than those of the dataset, windows
        are multiples of its time buckets, all features are indexed, and no statistic is "first" or
        "last"; but they read the observations of blocks through which a region or an interval cuts.
        Otherwise they read all observations that match.

        Percentiles are interpolated as by `numpy.quantile`. They are exact in a group with at most
        10,000 different values; `Aggregates.rank_error` bounds the error in larger ones.

        Args:
            dataset: its name.
            query: CQL2.
            by: keys: `galileo.cell(5)`, `galileo.window("1h")` and names of features, or texts
                such as "cell:5", "window:1h" and "window:1mo"; none for one group of all
                observations.
            statistics: of features, such as {"temperature": ["mean", "p90"]}: "count" (of values),
                "sum", "min", "max", "mean", "std" (of a sample; null of one value), "median",
                percentiles such as "p90" and "p2.5", and the values "first" and "last" in time: of
                several at the first time the least, of several at the last time the greatest. Those
                of a bool count it as 0 and 1. A text feature has "count", "first" and "last".
            require_complete: whether a partial answer is an error.

        Raises:
            InputError: the dataset has no such feature, there are more than 1,000,000 groups, or
                percentiles of more than 33,554,432 values in groups of at most 10,000.

        Example:
            >>> wanted = {"temperature": "mean"}
            >>> means = await client.aggregate("weather", by=["station"], statistics=wanted)
            >>> means.to_pandas()["temperature_mean"].to_list()
            [279.0, 292.5, 289.5]
        """
        return await self._analyse(
            dataset,
            query,
            questions.Aggregate(Grouping.of(by, statistics)),
            analytics.aggregates_of,
            require_complete=require_complete,
        )

    async def latest(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        by: Key | str,
        require_complete: bool = False,
    ) -> LatestResult:
        """The newest observation of each cell or of each value of a feature, of those that match.

        Each owner takes its newest observations, and the node that is asked those of all. Where
        paths determine the cell or value (indexed features, cells no smaller than those of the
        dataset), an owner reads only paths of the newest time bucket in which an observation
        certainly matches; otherwise it reads all observations that match.

        Of observations with the same time the one farther south is taken, then the one farther
        west, then that with the lesser values of features in schema order, missing ones last.

        Args:
            dataset: its name.
            query: CQL2.
            by: `galileo.cell(5)` or the text "cell:5", or the name of a feature. Observations
                without a value of that feature have a newest one, too.
            require_complete: whether a partial answer is an error.

        Raises:
            InputError: the dataset has no such feature, or there are more than 100,000 values.

        Example:
            >>> newest = await client.latest("weather", by="station")
            >>> newest.to_pandas()["temperature"].to_list()
            [279.0, 292.5, 291.0]
        """
        schema = await self._schema(dataset)
        return await self._analyse(
            dataset,
            query,
            questions.Latest(cast(LatestKey, parse_key(by))),  # The node refuses a window.
            lambda answer: LatestResult(described(answer.rows, schema.features), **answer.about),
            require_complete=require_complete,
        )

    async def version(self, dataset: str, *, require_complete: bool = False) -> DatasetVersion:
        """Which commits of a dataset readers see: while these stay the same, so do all answers.

        The owners of partitions answer from memory, so it costs a message to each of them. Caches
        of answers compare versions; `Aggregates.partitions` has the partitions that matter to an
        answer.

        Args:
            dataset: its name.
            require_complete: whether it is an error that an owner could not be asked.

        Raises:
            UnknownDataset: there is none of that name.

        Example:
            >>> before = await client.version("weather")
            >>> before == await client.version("weather")
            True
        """
        return await analytics.version(
            self._caller, dataset_name(dataset), require_complete=require_complete
        )

    async def children(
        self,
        dataset: str,
        vertex: str | Sequence[Any] = "",
        *,
        order: Sequence[str] | None = None,
        limit: int = CHILDREN,
        after: Any = None,
        require_complete: bool = False,
    ) -> Children:
        """The vertices below one of the metadata graph, with the paths and observations of each.

        Args:
            dataset: its name.
            vertex: its values from the root down, or its text such as "9xjqb/2012-03-01T06:00:00Z";
                empty for the root.
            order: of the levels "geohash", "datetime" and indexed features, all or some.
            limit: children of this page, up to 100,000.
            after: the last value of the page before (`Children.last`).
            require_complete: whether a partial answer is an error.

        Example:
            >>> page = await client.children("weather", order=["station"])
            >>> page.texts().to_pylist()
            ['EDDB', 'KCYS', 'KDEN']
        """
        schema = await self._schema_with(dataset, {*(order or ())} - {GEOHASH, DATETIME})
        tree = Tree.of(self._caller, schema, order, require_complete=require_complete)
        return await tree.children(tree.values(vertex), limit=limit, after=after)

    async def tree(
        self,
        dataset: str,
        vertex: str | Sequence[Any] = "",
        *,
        order: Sequence[str] | None = None,
        depth: int | None = None,
        require_complete: bool = False,
    ) -> AsyncIterator[Vertex]:
        """Walks the vertices below one, each before its own children, asking as it goes.

        Args:
            dataset: its name.
            vertex: as in `children`.
            order: likewise.
            depth: levels below the vertex; None for all. Each vertex above the last level is
                one call.
            require_complete: whether a partial answer is an error; else a vertex names what is
                `missing` below it.

        Example:
            >>> async for vertex in client.tree("weather", order=["station"]):
            ...     print(vertex.value, vertex.observations)
            EDDB 1
            KCYS 1
            KDEN 2
        """
        schema = await self._schema_with(dataset, {*(order or ())} - {GEOHASH, DATETIME})
        tree = Tree.of(self._caller, schema, order, require_complete=require_complete)
        async with aclosing(tree.walk(tree.values(vertex), depth=depth)) as vertices:
            async for below in vertices:
                yield below

    async def estimate(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        feature: str | None = None,
        quantiles: Sequence[float] = (),
        require_complete: bool = False,
    ) -> Estimate:
        """Bounds on the number of matching paths, from what one node knows of all.

        Args:
            dataset: its name.
            query: CQL2.
            feature: whose quantiles are wanted; indexed, with numbers.
            quantiles: shares from 0 to 1, such as 0.5 for the median.
            require_complete: whether it is an error that commits are not counted yet.

        Example:
            >>> estimate = await client.estimate("weather", "temperature > 290")
            >>> estimate.low <= 2 <= estimate.high
            True
        """
        return await analytics.estimate(
            self._caller,
            dataset_name(dataset),
            query_text(query),
            feature=feature,
            quantiles=quantiles,
            require_complete=require_complete,
        )
