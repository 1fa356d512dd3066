"""What the client hands to people."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo import rdf
from galileo.arrays import one_array
from galileo.client import geo_files, notebook_repr, plots
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import InputError
from galileo.formats import Choice
from galileo.labels import LabelSet
from galileo.model.channel import LEFT, SUBSCRIPTION, matches_between, pairs_of
from galileo.model.windows import Window, WindowChange, instant
from galileo.optional_imports import to_pandas
from galileo.rdf import Cancellation, LabelGraph, SparqlResult
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S
from galileo.samplers import SamplerSpec

if TYPE_CHECKING:
    import pandas as pd
    from rdflib import Graph


class Labels(LabelSet):
    """A label set that can be explored, as a graph or on a map, before any data is read.

    Example:
        >>> labels = client.query("weather", "temperature > 290")
        >>> labels.to_pandas()["station"].to_list()
        ['KDEN', 'KCYS']
    """

    __slots__ = ("_graph",)

    def __getstate__(self) -> Any:
        """Without the graph that answers SPARQL, which has a process; another is made at need."""
        return None, {name: getattr(self, name) for name in LabelSet.__slots__}

    def to_geopandas(self) -> Any:
        """`to_pandas` as a GeoDataFrame, with the rectangle of each label's cell (EPSG:4326).

        Raises:
            MissingExtra: geopandas is not installed; it comes with `galileo-store[plots]`.

        Example:
            >>> frame = labels.to_geopandas()
            >>> frame.crs.to_epsg()
            4326
        """
        return geo_files.to_geopandas(self)

    def plot(self, by: str | None = None, *, ax: Any = None, cmap: str = "") -> Any:
        """Draws a map of the cells; see `galileo.client.plots.plot_map`.

        Example:
            >>> axes = labels.plot("temperature")
            >>> axes.figure.savefig("map.png")
        """
        return plots.plot_map(self, by, ax=ax, cmap=cmap)

    def plot_time(self, by: str | None = None, *, ax: Any = None) -> Any:
        """Draws observations, or a feature, by time; see `galileo.client.plots.plot_time`.

        Example:
            >>> axes = labels.plot_time("temperature")
            >>> axes.figure.savefig("time.png")
        """
        return plots.plot_time(self, by, ax=ax)

    def _repr_html_(self) -> str:
        first = self.slice(0, min(notebook_repr.ROWS_SHOWN, len(self))).to_arrow()
        rows = first.drop_columns(["block", "partition", "sequence", "label"]).to_pylist()
        title = f"{self.schema.name}: {len(self):,} labels"
        return notebook_repr.card(
            title, {"partitions missing:": self.missing}, rows=rows, of=len(self)
        )

    def rdf(self) -> Graph:
        """The labels as an RDF graph; see docs/rdf.md for its terms.

        Example:
            >>> graph = labels.rdf()
            >>> len(graph) > len(labels)
            True
        """
        return rdf.to_graph(self)

    def sparql(
        self,
        text: str,
        *,
        timeout_s: float = TIMEOUT_S,
        rows_max: int = ROWS_MAX,
        cancel: Cancellation | None = None,
    ) -> SparqlResult:
        """Answers a SPARQL query over the labels; the first one loads them, later ones are fast.

        What the answer names leads back to data: `client.read(answer.labels())`.

        Raises:
            InputError: the text is no SPARQL, or asks for what is refused (SERVICE, updates).
            DeadlineExceeded: it took longer than `timeout_s`.
            Cancelled: by `cancel`, from another thread.

        Example:
            >>> answer = labels.sparql("SELECT ?t { ?label f:temperature ?t } ORDER BY ?t LIMIT 1")
            >>> answer.to_pandas()["t"].to_list()
            [279.0]
        """
        graph: LabelGraph | None = getattr(self, "_graph", None)
        if graph is None:
            graph = self._graph = rdf.open_labels(self)
        return graph.sparql(text, timeout_s=timeout_s, rows_max=rows_max, cancel=cancel)


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
        """Those of the labels that belong to partitions which are not missing.

        Example:
            >>> batches = client.query_batches("weather")
            >>> parts = list(batches)
            >>> sum(len(batches.end.known(part)) for part in parts)
            4
        """
        return labels.where(~np.isin(labels.partitions, self.missing))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was stored, durably.

    Attributes:
        rows: observations.
        paths: that they made in the metadata graph.
        batches: sent.
        duplicate_rows: of `rows`, those that an earlier attempt had stored already.
        reached: the last commit of each partition that took rows.
        producer: name under which the batches are recognised when sent again; of several files,
            that of whatever else was sent.
        skipped: rows of files, grids and mapped tables that were left out: without a place, a time
            or a value.
        lacking: of `skipped`, the rows by what they lack: "latitude", "longitude", "time", "value".
        keys: different keys among the rows of a table; None where they were not counted.
        created: whether `ingest_file` has created the dataset.
        choices: what was chosen for a dataset that was created, because no option says it, and why.
        start_us: the least time of the observations, also of deleted ones, microseconds since 1970;
            None if there are none, and of tables.
        end_us: the greatest time of these observations.
        evaluated: of a deletion by a condition, the cursor at which that was evaluated; later
            observations are not deleted.

    Example:
        >>> receipt = client.ingest("weather", frame, producer="march-2014")
        >>> receipt.rows
        4
    """

    rows: int
    paths: int
    batches: int
    duplicate_rows: int
    reached: Cursor
    producer: str
    skipped: int = 0
    lacking: Mapping[str, int] = field(default_factory=dict)
    keys: int | None = None
    created: bool = False
    choices: tuple[Choice, ...] = ()
    start_us: int | None = None
    end_us: int | None = None
    evaluated: Cursor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """Rows of a table.

    Attributes:
        rows: of the table's columns; of changes also `deleted`. Geometries are WKB, marked as such
            (GeoArrow).
        cursor: the commit of each partition up to which the rows are those of the table; of those
            partitions alone that can have the keys, where some were named.

    Example:
        >>> client.table("shelters")
        <TableRows: 2 rows>
    """

    rows: pa.Table
    cursor: Cursor

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        return f"<TableRows: {len(self):,} {'row' if len(self) == 1 else 'rows'}>"

    def to_arrow(self) -> pa.Table:
        """The rows.

        Example:
            >>> client.table("shelters").to_arrow().column_names
            ['id', 'beds']
        """
        return self.rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame.

        Example:
            >>> sorted(client.table("shelters").to_pandas()["id"])
            ['a', 'b']
        """
        return to_pandas(self.rows)

    def to_geopandas(self) -> Any:
        """The rows as a GeoDataFrame (OGC:CRS84), drawn by their first column of geometries.

        Raises:
            InputError: the table has no geometries.
            MissingExtra: geopandas is not installed; it comes with `galileo-store[plots]`.

        Example:
            >>> columns = {"id": "text", "shore": "geometry"}
            >>> client.create_table(galileo.Table("lakes", columns, key="id"))
            >>> receipt = client.upsert("lakes", {"id": ["a"], "shore": ["POINT (-105.1 40.2)"]})
            >>> client.table("lakes").to_geopandas().geometry.x.tolist()
            [-105.1]
        """
        return geo_files.to_geopandas(self.rows)


@dataclass(frozen=True, slots=True, repr=False)
class Notifications:
    """What one execution of a channel has found for the subscriptions of a broker.

    Attributes:
        partition: of the subscriptions.
        execution: the number of the execution in this partition; 0: there is only something gone,
            or nothing but the token.
        observations: those that matched, of the columns that the channel delivers.
        matches: columns `rows` and `subscriptions`, both lists: each row stands for the pairs of
            all its rows, numbers of observations, with all its subscriptions, which have the same
            parameters. Of a channel with `leave` also `left`: they do not match any more.
        token: names all that the broker has got with these.
        gone: executions that were asked for and are not kept any more, as ranges of commits.
    """

    partition: int
    execution: int
    observations: pa.Table
    matches: pa.Table
    token: str
    gone: tuple[CommitRange, ...] = ()

    def __len__(self) -> int:
        """The number of pairs of an observation and a subscription."""
        rows, subscriptions = self._lengths
        return int((rows * subscriptions).sum())

    def __repr__(self) -> str:
        return f"<Notifications: {len(self):,} of execution {self.execution}>"

    @property
    def _lengths(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of each match the numbers of its rows and of its subscriptions."""
        rows, subscriptions = (
            pc.list_value_length(self.matches.column(name)).to_numpy().astype(np.int64)
            for name in ("rows", "subscriptions")
        )
        return rows, subscriptions

    def groups(self) -> pa.Table:
        """The matches in their compact form; see `matches`.

        Example:
            >>> batch = next(client.follow("hot", "me"))
            >>> batch.groups().to_pylist()
            [{'rows': [0], 'subscriptions': ['anna']}]
        """
        return self.matches

    def subscriptions(self) -> pa.Array:
        """The id of the subscription of each notification, in the order of `to_arrow`.

        Example:
            >>> batch = next(client.follow("hot", "me"))
            >>> batch.subscriptions().to_pylist()
            ['anna']
        """
        return pairs_of(self.matches)[2]

    def slice(self, start: int, stop: int) -> Notifications:
        """The notifications with the numbers from `start` to `stop`, in the order of `to_arrow`.

        They have the observations alone that they need, and the same token.

        Example:
            >>> batch = next(client.follow("hot", "me"))
            >>> len(batch.slice(0, 1))
            1
        """
        matches = matches_between(self.matches, start, stop)
        rows = one_array(matches.column("rows"))
        numbers, inverse = np.unique(rows.flatten().to_numpy(), return_inverse=True)
        offsets = np.append(0, np.cumsum(rows.value_lengths().to_numpy()))
        renumbered = pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), pa.array(inverse.astype(np.int32))
        )
        return dataclasses.replace(
            self,
            observations=self.observations.take(pa.array(numbers)),
            matches=matches.set_column(0, matches.schema.field("rows"), renumbered),
        )

    def to_arrow(self) -> pa.Table:
        """One row for each notification: the id of the subscription, and the observation.

        Of a channel with `leave` there is also the column `left`.

        Example:
            >>> batch = next(client.follow("hot", "me"))
            >>> batch.to_arrow().select(["subscription", "temperature"]).to_pylist()
            [{'subscription': 'anna', 'temperature': 291.0}]
        """
        match, numbers, ids = pairs_of(self.matches)
        table = self.observations.take(pa.array(numbers)).add_column(0, SUBSCRIPTION, ids)
        if LEFT not in self.matches.column_names:
            return table
        return table.append_column(LEFT, self.matches.column(LEFT).take(pa.array(match)))

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a pandas DataFrame.

        Example:
            >>> batch = next(client.follow("hot", "me"))
            >>> batch.to_pandas()["subscription"].tolist()
            ['anna']
        """
        return to_pandas(self.to_arrow())


@dataclass(frozen=True, slots=True)
class ChannelPartition:
    """How far the executions of a channel are in one partition of its subscriptions.

    Attributes:
        partition: its number.
        node: that executes it.
        execution: the number of the last one.
        subscriptions: how many it has.
        index_bytes: memory of their index.
        behind: commits of the dataset that are not matched yet, as far as the node has heard.
        cut: the commits of the dataset that are matched; those of an ingest are, if it covers
            `Receipt.reached`.
        executed_at: seconds since 1970; 0: not since this node leads the partition.
        took_s: how long the last execution took.
        failure: why the last attempt failed; "" if it did not.
    """

    partition: int
    node: str
    execution: int
    subscriptions: int
    index_bytes: int
    behind: int
    cut: Cursor
    executed_at: float
    took_s: float
    failure: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far a broker of a channel is.

    Attributes:
        channel: its name.
        broker: likewise.
        token: names what the broker has handled, or its endpoint has accepted.
        worker: which worker pushes for it; "" for none.
        failure: why the endpoint takes nothing at present; "" if it does.
        failed_at: when that was; None if there is no failure.
        retry_at: until when the worker waits at most; None if it does not.
        behind: executions behind the token, in partitions whose nodes can be reached.
        gone: executions that `keep` deleted before they were pushed. It cannot be determined
            whether the broker had notifications in them.
    """

    channel: str
    broker: str
    token: str
    worker: str
    failure: str
    failed_at: dt.datetime | None
    retry_at: dt.datetime | None
    behind: int
    gone: int


@dataclass(frozen=True, slots=True)
class DatasetReader:
    """A named reader of a dataset, for which retention waits.

    Attributes:
        name: of the reader.
        cursor: up to which commit of each partition it has processed the dataset.
        behind: commits that it has not processed, of those that nodes which answer have.
        hold_s: for how long commits are kept for it beyond the age of the dataset's retention.
        stored_at: when it stored its position last, by its own clock.
    """

    name: str
    cursor: Cursor
    behind: int
    hold_s: float
    stored_at: dt.datetime


@dataclass(frozen=True, slots=True)
class UploadedSampler:
    """A sampler whose code was sent to the nodes.

    Attributes:
        digest: SHA-256 of its archive, hexadecimal.
        name: of the sampler.
        entry: its class, `module:Class`.
        bytes: of the archive.
        sent_by: who sent it first, as their client said.
        sent_at: seconds since 1970-01-01 UTC.
        ccq_ids: the continuous queries that use it, of those that the caller may know of.
        revoked_at: when it was revoked; None: it was not.
    """

    digest: str
    name: str
    entry: str
    bytes: int
    sent_by: str
    sent_at: float
    ccq_ids: tuple[str, ...] = ()
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class RevokedSampler:
    """What came of revoking one.

    Attributes:
        sampler: as it was.
        away: nodes that could not be reached, and hear of it when they are back.
    """

    sampler: UploadedSampler
    away: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CcqInfo:
    """A CCQ as the cluster lists it; times in seconds, `expires_at` since 1970 UTC.

    `term` counts the changes of the nodes that may run it, from 1. `holders` are nodes that keep
    earlier stretches of its cache, the oldest first. `owner` is who submitted it, "" without access
    control. Its labels have the first `added` of the features that were added to the dataset.
    `hold_s` is how long what its readers may still need is kept if none of them fetches.
    """

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
    window: Window | None = None
    holders: tuple[str, ...] = ()
    owner: str = ""
    added: int = 0
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ccq:
    """A submitted CCQ: its id, its initial result, and the token that says so.

    `coordinator` names the node that runs it, at the time of submission. `windows` and `clock_us`
    are those of the initial result, as of an `Update`.

    Example:
        >>> ccq = client.submit("weather", "temperature > 290")
        >>> client.fetch(ccq, token=ccq.token).is_news
        False
    """

    id: str
    initial: Labels
    token: str
    info: CcqInfo
    windows: tuple[WindowChange, ...] = ()
    clock_us: int | None = None

    @property
    def coordinator(self) -> str:
        """The node that ran the query when it was submitted."""
        return self.info.coordinator


CcqLike: TypeAlias = str | Ccq | CcqInfo
"""A continuous query, or its id."""


def ccq_id_of(ccq: CcqLike) -> str:
    """The id of a continuous query.

    Raises:
        InputError: it is something else.
    """
    if isinstance(ccq, Ccq | CcqInfo):
        return ccq.id
    if isinstance(ccq, str):
        return ccq
    raise InputError(
        "expected a continuous query, as submit and list_ccqs return it, or its id, such as "
        f"'ccq-8c1f...', got {ccq!r}"
    )


@dataclass(frozen=True, slots=True)
class Update:
    """What is new since a token.

    Attributes:
        labels: that the caller has not seen.
        withdrawn: labels that the caller has perhaps seen, and whose observations no longer match
            or no longer count: they were replaced or deleted. Who removes what has their keys
            first, and then stores `labels` by key, has what matches at the token of an update whose
            `more` is false and whose labels miss no partition. In a dataset without a key, the text
            of a label stands for the key. `read` has the old observations until they are cleaned.
            None stands for none.
        token: to store with them, and to ask with next.
        frontier: up to which commit of each partition the CCQ is answered.
        age_s: how long ago the frontier was reached.
        interval_s: at which the CCQ is evaluated now: its update interval, or more while its
            cycles take longer; 0 from a node that does not tell.
        more: whether the next fetch has more at once.
        gone: commits that lie between the token before and this one and that the dataset's
            retention dropped before they were looked at; whether they matched is not known.
        windows: what became of the query's windows, ascending by start: of those that the labels
            belong to, and of those that are over now; empty where the query has none.
        clock_us: the event clock, microseconds since 1970-01-01 UTC: the start of the newest
            time bucket that was committed. None: there is none yet, or the query has no windows.
        reset: whether the caller first forgets all labels that it has: what it has to withdraw is
            not known any more, since versions were removed or commits were lost. `labels` and the
            following updates have all that match now, and `withdrawn` is empty.

    Example:
        >>> update = client.fetch(ccq)
        >>> len(update.labels), update.clock
        (2, None)
    """

    labels: Labels
    token: str
    frontier: Cursor = EMPTY_CURSOR
    age_s: float = 0.0
    interval_s: float = 0.0
    more: bool = False
    gone: tuple[CommitRange, ...] = ()
    windows: tuple[WindowChange, ...] = ()
    clock_us: int | None = None
    withdrawn: Labels | None = None
    reset: bool = False

    @property
    def clock(self) -> dt.datetime | None:
        """The event clock as a time in UTC."""
        return None if self.clock_us is None else instant(self.clock_us)

    @property
    def status(self) -> str:
        """How far the evaluation is, in words: why nothing new may have come."""
        every = f"; it is evaluated every {self.interval_s:.3g} s at the moment"
        lacks = (
            f"; partitions {list(self.labels.missing)} are missing" if self.labels.missing else ""
        )
        known = every if self.interval_s else ""
        return f"the query was last evaluated {self.age_s:.3g} s ago{known}{lacks}"

    @property
    def is_news(self) -> bool:
        """Whether it has labels or anything else that is new."""
        withdraws = self.withdrawn is not None and len(self.withdrawn) > 0
        return bool(self.reset or len(self.labels) or self.gone or self.windows or withdraws)

    def _repr_html_(self) -> str:
        gone = sum(dropped.commits for dropped in self.gone)
        facts = {"as of": f"{self.age_s:.1f} s ago", "windows": len(self.windows) or None}
        facts |= {"more waits:": self.more, "commits gone:": gone or None}
        facts |= {"reset": self.reset or None}
        facts |= {"withdrawn": (self.withdrawn is not None and len(self.withdrawn)) or None}
        return notebook_repr.card("Update", facts) + self.labels._repr_html_()

    def in_window(self, change: WindowChange) -> Labels:
        """Its labels that belong to a window.

        Example:
            >>> hourly = client.submit("weather", window=galileo.Window.tumbling("1h"))
            >>> update = client.fetch(hourly)
            >>> len(update.in_window(update.windows[0]))
            1
        """
        buckets = self.labels.buckets
        inside = self.labels.where((buckets >= change.start_us) & (buckets < change.end_us))
        assert isinstance(inside, Labels)
        return inside


@dataclass(frozen=True, slots=True)
class DroppedDataset:
    """What was removed with a dropped dataset, at all nodes that could be reached.

    Attributes:
        dataset: its name.
        rows, bytes: observations, each once, and bytes of the files of all copies.
        ccqs: continuous queries that ended with it.
        pending: nodes that have not dropped it yet; they do so when they hear of it.
    """

    dataset: str
    rows: int
    bytes: int
    ccqs: int
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a node dropped when a dataset's retention was applied.

    Attributes:
        files, commits, bytes: that it dropped.
        held_back: for each partition that holds more than the policy wants since readers have
            not fetched it: "partition", "bytes", "readers", the ids of continuous queries and the
            names of named readers, none where the node is not certain which ones there are, and
            "since", the time of the newest observation in the oldest file, seconds since 1970.
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
    """One node's state; sizes in bytes, `state` "up", "draining" or "unreachable".

    `cache_bytes` is what the caches of CCQs take in memory; `held_bytes` of that is of CCQs that
    other nodes coordinate by now. `spilled_bytes` are files. `ccqs_overloaded` of those that it
    coordinates have cycles that take longer than their update interval. `calls` are those that the
    node answers at the moment, by service and method: "Query/Run", "Storage/Read". `lost` are
    commits that a node had reported and has no more, as this node knows. `under_replicated` are
    its partitions that have fewer up-to-date copies than `replicas` asks for, or no leader yet.
    `partitions` are those that it has, or leads if they are replicated; `replica_lag` is how many
    commits the copy that is furthest behind lacks of one of these.
    `damaged` are files that fail their checksums and that no other copy has replaced.
    `diverged` are copies whose commits differ from those of this node, which leads their partition.
    `channels_failing` are its partitions of channels that are not executed at present, and why.
    `datasets` are datasets, tables and channels; `held_back` of a channel, as of `RetentionReport`,
    names the brokers for which results older than `keep` are kept.
    `pending` is what an operator has to do for it, such as a restart, or why its removal waits.
    `evaluator_problem` is why the queries that it coordinates are not evaluated at present; empty
    if they are.
    """

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
    ccqs_overloaded: int = 0
    cache_bytes: int = 0
    held_bytes: int = 0
    spilled_bytes: int = 0
    stopped: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    under_replicated: tuple[int, ...] = ()
    replica_lag: int = 0
    damaged: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    channels_failing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    evaluator_problem: str = ""
    datasets: tuple[dict[str, Any], ...] = ()
    calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota of a caller.

    Attributes:
        bound: most that it may use; for `interval_min_s` the least.
        used: of it, where that is counted: of rates, in the last second.
        counted: "cluster", "node" (the one that was asked) or "query", each for itself.
    """

    bound: float
    used: float | None
    counted: str


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """Who a client is to the cluster.

    Attributes:
        name: empty where the cluster does not ask for it.
        datasets: patterns of those that it may use.
        expires_at: when its token does, in seconds since 1970; None: never.
        quotas: by name.
        brokers: patterns of those that it may use; none: all.
    """

    name: str
    roles: tuple[str, ...]
    datasets: tuple[str, ...]
    expires_at: float | None
    quotas: dict[str, QuotaUse]
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Every node's state, also of those that do not answer."""

    nodes: tuple[NodeStatus, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether every node answered."""
        return all(node.state != "unreachable" for node in self.nodes)

    @property
    def under_replicated(self) -> tuple[int, ...]:
        """The partitions that a node which answered names as `NodeStatus.under_replicated`."""
        return tuple(sorted({p for node in self.nodes for p in node.under_replicated}))

    def _repr_html_(self) -> str:
        rows = [
            {
                "node": node.name,
                "group": node.group,
                "address": node.address,
                "state": node.state,
                "observations": sum(dataset["rows"] for dataset in node.datasets),
                "CPU %": 100 * node.cpu_share,
                "memory MB": node.memory_bytes / 1e6,
                "CCQs": node.ccqs_coordinated,
                "stopped": node.stopped,
            }
            for node in self.nodes
        ]
        up = sum(node.state == "up" for node in self.nodes)
        return notebook_repr.card(f"Cluster: {up} of {len(self.nodes)} nodes are up", rows=rows)


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of the move of a partition.

    Attributes:
        partition: that moves.
        stage: "copy" or "done".
    """

    partition: int
    stage: str
