"""Questions about a dataset that its metadata graphs answer, without labels.

Each is asked about the observations or paths that match a query. `galileo.node.analyses` has their
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from galileo.model.grouping import CellKey, FeatureKey, Grouping
from galileo.query.operands import DATETIME, GEOHASH


class Asked:
    """A question."""

    __slots__ = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it names."""
        return ()


@dataclass(frozen=True, slots=True)
class Aggregate(Asked):
    """Statistics of groups of the observations that match exactly."""

    grouping: Grouping

    @property
    def features(self) -> tuple[str, ...]:
        return self.grouping.features


LatestKey: TypeAlias = CellKey | FeatureKey
"""By what the newest observations are taken."""


@dataclass(frozen=True, slots=True)
class Latest(Asked):
    """The newest matching observation of each cell, or of each value of a feature."""

    key: LatestKey

    @property
    def features(self) -> tuple[str, ...]:
        return (self.key.name,) if isinstance(self.key, FeatureKey) else ()


@dataclass(frozen=True, slots=True)
class FindNearest(Asked):
    """The matching observations nearest to a point.

    Attributes:
        latitude, longitude: of the point, degrees.
        count: most observations.
        within_m: greatest distance, metres; None for any.
    """

    latitude: float
    longitude: float
    count: int
    within_m: float | None


@dataclass(frozen=True, slots=True)
class Summarise(Asked):
    """Statistics of an indexed feature over the observations under the paths that match.

    Attributes:
        feature: its name.
        bins: of a histogram: so many of equal width between the extremes; None for none.
        edges: of the bins, in place of their number.
    """

    feature: str
    bins: int | None = None
    edges: tuple[float, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature,)


@dataclass(frozen=True, slots=True)
class Describe(Asked):
    """Statistics of the whole dataset, and of each indexed feature."""


@dataclass(frozen=True, slots=True)
class ListChildren(Asked):
    """A page of the vertices below one of the metadata graph.

    Attributes:
        prefix_json: values from the root to the vertex, as `value_json` writes them.
        order: of the levels; empty: as the graph has them.
        limit: children of the page; 0: as the node likes.
        after_json: the last value of the page before; empty for the first.
    """

    prefix_json: str = ""
    order: tuple[str, ...] = ()
    limit: int = 0
    after_json: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(level for level in self.order if level not in (GEOHASH, DATETIME))


@dataclass(frozen=True, slots=True)
class Explain(Asked):
    """How the query is answered: which nodes are asked, what each rules out and looks at."""


@dataclass(frozen=True, slots=True)
class Version(Asked):
    """Which commits readers see: while these stay the same, so do answers."""


Question: TypeAlias = (
    Aggregate | Latest | FindNearest | Summarise | Describe | ListChildren | Explain | Version
)
