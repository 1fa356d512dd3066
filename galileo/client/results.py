"""What the client hands to people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import shapely
from rdflib import Graph

from galileo import rdf
from galileo.cursor import ORIGIN, Cursor, Stretch
from galileo.errors import ConfigError
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.rdf import LabelGraph, SparqlResult
from galileo.samplers import SamplerSpec

SPARQL_ROWS_MAX = 1_000_000


class Labels(LabelSet):
    """A label set that can be explored, as a graph or on a map, before any data is read."""

    __slots__ = ("_graph",)

    def to_geopandas(self) -> Any:
        """`to_pandas` as a GeoDataFrame, with the rectangle of each label's cell (EPSG:4326).

        Raises:
            ConfigError: geopandas is not installed; it comes with `galileo-store[plots]`.
        """
        try:
            import geopandas
        except ImportError as error:
            raise ConfigError(
                f"a GeoDataFrame needs geopandas, which does not load ({error}); "
                "install it with: pip install 'galileo-store[plots]'"
            ) from error
        cells = shapely.box(*geohash.bounds(self.cells, self.schema.geohash_precision))
        return geopandas.GeoDataFrame(self.to_pandas(), geometry=cells, crs="EPSG:4326")

    def rdf(self) -> Graph:
        """The labels as an RDF graph; see docs/rdf.md for its terms."""
        return rdf.to_graph(self)

    def sparql(
        self, text: str, *, timeout_s: float = 30.0, rows_max: int = SPARQL_ROWS_MAX
    ) -> SparqlResult:
        """Answers a SPARQL query over the labels; the first one loads them, later ones are fast.

        Raises:
            InputError: the text is no SPARQL, or asks for what is refused (SERVICE, updates).
            DeadlineExceeded: it took longer than `timeout_s`.
        """
        graph: LabelGraph | None = getattr(self, "_graph", None)
        if graph is None:
            graph = self._graph = rdf.open_labels(self)
        return graph.sparql(text, timeout_s=timeout_s, rows_max=rows_max)


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """How far an answer goes that was given in batches.

    Attributes:
        labels: that were given.
        frontier: up to which commit of each partition it is an answer.
        missing: partitions of which it is not known whether all labels were given, since a node
            was away or was lost on the way. What was given of them is stored and matches.
    """

    labels: int
    frontier: Cursor
    missing: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a match was asked, and answered to its end."""
        return not self.missing

    def known(self, labels: LabelSet) -> LabelSet:
        """Those of the labels that belong to partitions which are not missing."""
        gone = set(self.missing)
        return labels.until(Cursor({p: s for p, s in self.frontier.items() if p not in gone}))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was stored, durably.

    Attributes:
        rows: observations.
        paths: that they made in the metadata graph.
        batches: sent.
        duplicate_rows: of `rows`, those that an earlier attempt had stored already.
        reached: the last commit of each partition that took rows.
        producer: name under which the batches are recognised when sent again.
    """

    rows: int
    paths: int
    batches: int
    duplicate_rows: int
    reached: Cursor
    producer: str


@dataclass(frozen=True, slots=True)
class CcqInfo:
    """A CCQ as the cluster lists it; times in seconds, `expires_at` since 1970 UTC."""

    id: str
    dataset: str
    query: str
    interval_s: float
    expires_at: float
    coordinator: str
    coordinator_address: str
    term: int
    state: str
    compression: str = "none"
    sampler: SamplerSpec | None = None


@dataclass(frozen=True, slots=True)
class Ccq:
    """A submitted CCQ: its id, its initial result, and the token that says so.

    `coordinator` names the node that runs it, at the time of submission.
    """

    id: str
    initial: Labels
    token: str
    info: CcqInfo

    @property
    def coordinator(self) -> str:
        return self.info.coordinator


@dataclass(frozen=True, slots=True)
class Update:
    """What is new since a token.

    Attributes:
        labels: that the caller has not seen.
        token: to store with them, and to ask with next.
        frontier: up to which commit of each partition the CCQ is answered.
        age_s: how long ago the frontier was reached.
        more: whether the next fetch has more at once.
        gone: commits that lie between the token before and this one and that the dataset's
            retention dropped before they were looked at; whether they matched nobody knows.
    """

    labels: Labels
    token: str
    frontier: Cursor = ORIGIN
    age_s: float = 0.0
    more: bool = False
    gone: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a node dropped when a dataset's retention was applied.

    Attributes:
        files, commits, bytes: that it dropped.
        held_back: for each partition that holds more than the policy wants since readers have
            not fetched it: "partition", "bytes" and "ccqs"; none of these where the node is not
            certain yet which continuous queries there are.
        failures: what went wrong, partition by partition, or that the node could not be reached.
    """

    node: str
    files: int
    commits: int
    bytes: int
    held_back: tuple[dict[str, Any], ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node's state; sizes in bytes, `state` "up", "draining" or "unreachable"."""

    name: str
    group: str
    address: str
    state: str
    cpu_share: float = 0.0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    load: float = 0.0
    uptime_s: float = 0.0
    pid: int = 0
    ccqs_coordinated: int = 0
    cache_bytes: int = 0
    stopped: tuple[str, ...] = ()
    datasets: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    nodes: tuple[NodeStatus, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether every node answered."""
        return all(node.state != "unreachable" for node in self.nodes)
