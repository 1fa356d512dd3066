"""The calls of `Client`, written by scripts/generate from `AsyncClient`; do not edit.

To add or change a call, edit it in `AsyncClient`, then run `scripts/generate`. Resolve a conflict
in this file by running it, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never

import pyarrow as pa

from galileo.client.analytics import CHILDREN
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
from galileo.client.async_ccqs import EXPIRATION, HOLD, INTERVAL
from galileo.client.async_channels import ANSWER_BYTES
from galileo.client.blocking_base import BlockingBase, BlockingLabelBatches, BlockingTables
from galileo.client.calls import SamplerLike
from galileo.client.cleaning import CleaningReport
from galileo.client.descriptions import DatasetDescription
from galileo.client.ingestion import Batches, Progress
from galileo.client.node_removal import RemovalProgress
from galileo.client.pages import Page
from galileo.client.range_changes import RangesProgress
from galileo.client.results import (
    CallerIdentity,
    Ccq,
    CcqInfo,
    CcqLike,
    ChannelPartition,
    ClusterStatus,
    DatasetReader,
    Delivery,
    DroppedDataset,
    Labels,
    MoveProgress,
    Notifications,
    Receipt,
    RetentionReport,
    RevokedSampler,
    TableRows,
    Update,
    UploadedSampler,
)
from galileo.client.scrubs import ScrubProgress
from galileo.client.sparql_views import SparqlView
from galileo.client.spool import Spool
from galileo.client.stored_rows import Keys
from galileo.cursor import Cursor
from galileo.formats import CsvOptions, GridOptions, Source
from galileo.formats.mapping import Sentinels, Sources
from galileo.formats.source import BATCH_ROWS
from galileo.labels import LabelSet
from galileo.model.broker import Broker
from galileo.model.channel import Channel
from galileo.model.enrichment import Step
from galileo.model.grouping import Key
from galileo.model.retention import Retention
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table
from galileo.model.times import Duration
from galileo.model.windows import Window
from galileo.query.builder import QueryLike
from galileo.rdf.incremental_graph import LABELS_MAX
from galileo.sampler_package import SamplerArchive


class BlockingCalls(BlockingBase):
    """Every method waits until its call is done; Ctrl-C cancels the call."""

    def status(self) -> ClusterStatus:
        """Every node's state, also of those that do not answer.

        Example:
            >>> status = client.status()
            >>> [node.state for node in status.nodes]
            ['up', 'up', 'up']
        """
        return self._run(self._client.status())

    def drain(self, node: str, *, undo: bool = False) -> None:
        """Has a node hand its continuous queries to other nodes, and accept no new ones.

        Returns at once; `status` shows the node as "draining" and how many it still coordinates.
        Its data stays on its disk. A restart of the node ends the draining.

        Args:
            node: its name in the topology.
            undo: accept queries again.

        Raises:
            InputError: the node does not exist.
            Unavailable: the node cannot be reached; there is no retry.

        Example:
            >>> client.drain("node-3")
            >>> client.drain("node-3", undo=True)
        """
        self._run(self._client.drain(node, undo=undo))

    def move(self, partition: int, *, to: str) -> Iterator[MoveProgress]:
        """Moves a partition to another node of its group, without downtime.

        The node becomes a member of the partition's replica set, gets all that it lacks, and leads
        then, whatever its share of partitions. Closing the iterator does not end the move.

        Args:
            partition: its number.
            to: the node that receives it.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such node or partition, the node is of another group, or it is
                being removed.
            Unavailable: the node does not answer, or too few nodes do.

        Example:
            >>> for progress in client.move(3, to="node-3"):  # doctest: +SKIP
            ...     print(progress.stage)
        """
        return self._iterate(self._client.move(partition, to=to))

    def add_node(
        self,
        name: str,
        address: str,
        *,
        group: str = "",
        weight: float = 1.0,
        rack: str = "",
        new_group: bool = False,
    ) -> None:
        """Announces a node that will join; `galileo serve --join` joins without this call.

        The node has no partitions; it gets its share once it runs.

        Args:
            name: of the node, which no other node has.
            address: "host:port" at which nodes and clients reach it.
            group: that it belongs to; the one with the fewest nodes when empty.
            weight: its share of the partitions, relative to that of other nodes of the group.
            rack: its rack; nodes of one rack can fail together. A rack of its own when empty.
            new_group: whether `group` is made with this node, which gets its partitions. The group
                stores nothing before `set_ranges`.

        Raises:
            InputError: the name or the address is taken, or the group does not exist, or exists
                although it is to be made.
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> client.add_node("node-9", "10.0.0.19:7701")  # doctest: +SKIP
        """
        self._run(
            self._client.add_node(
                name, address, group=group, weight=weight, rack=rack, new_group=new_group
            )
        )

    def remove_node(
        self, node: str, *, to: str = "", lost: bool = False
    ) -> Iterator[RemovalProgress]:
        """Removes a node: its partitions and continuous queries move to others, then it stops.

        The node carries the removal out by itself; closing the iterator does not end it, and
        neither does a restart of the node. `keep_node` ends it.

        Args:
            node: its name in the topology.
            to: the node of the same group that takes all its partitions; those of the group, by
                their shares, when empty.
            lost: whether the node is gone for good. It is removed at once, if others have
                copies of its partitions, which make new ones then.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such node, it is the last of its group, or it is `lost` and
                alive, or has the only copy of its partitions.
            Unavailable: a node cannot be reached.

        Example:
            >>> for progress in client.remove_node("node-3"):  # doctest: +SKIP
            ...     print(progress.stage, progress.left)
        """
        return self._iterate(self._client.remove_node(node, to=to, lost=lost))

    def scrub(self, *nodes: str) -> Iterator[ScrubProgress]:
        """Has nodes read all that they store again, past the page cache, and find damaged files.

        They do so by themselves within `storage.scrub_days`; this begins at once, and reads as fast
        as it can up to 256 MiB/s. Closing the iterator does not end it; calling again shows the
        progress of the same round. A node that restarts goes on at its own rate.

        Args:
            nodes: their names; all nodes by default.

        Returns:
            The progress of each node whenever it changes; at last with `is_over`, or with a
            `failure` if the node did not answer.

        Raises:
            InputError: there is no such node.
            NotPermitted: the caller is no administrator.
            Unavailable: no node answered.

        Example:
            >>> [last.damages for last in client.scrub("node-1") if last.is_over]
            [()]
        """
        return self._iterate(self._client.scrub(*nodes))

    def set_replicas(self, replicas: int) -> None:
        """Changes the number of copies of each partition; nodes make or delete copies at once.

        Args:
            replicas: from 1 to 5.

        Raises:
            InputError: there cannot be so many.
            Unavailable: too few nodes can be reached.

        Example:
            >>> client.set_replicas(3)  # doctest: +SKIP
        """
        self._run(self._client.set_replicas(replicas))

    def forget_node(self, node: str) -> tuple[int, ...]:
        """Accepts the loss of a node's directory; the node then serves its partitions, empty.

        Use it where no node has a copy of a partition. A node that starts with an empty directory
        does not serve such partitions of its lost one, until this call says that they are lost.

        Returns:
            The partitions.

        Raises:
            InputError: there is no such node, it has its directory, or other nodes have copies.
            Unavailable: the node does not answer, or too few nodes do.

        Example:
            >>> client.forget_node("node-3")  # doctest: +SKIP
        """
        return self._run(self._client.forget_node(node))

    def set_ranges(self, ranges: Sequence[tuple[str, str]]) -> Iterator[RangesProgress]:
        """Changes the geohash ranges of the groups; stored rows stay where they are.

        Every node learns of the ranges first. While one is down, they do not come into force;
        closing the iterator leaves them announced, which changes no answer. The same call goes on,
        and `keep_ranges` takes them back.

        Args:
            ranges: the geohash at which each range begins, ascending from "", and the group that
                stores its rows.

        Returns:
            Its progress; at last with the stage "done".

        Raises:
            InputError: there is no such group, or other ranges are announced.
            ConfigError: they are no ranges.
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> for progress in client.set_ranges([("", "group-1")]):
            ...     stage = progress.stage
            >>> stage
            'done'
        """
        return self._iterate(self._client.set_ranges(ranges))

    def keep_ranges(self) -> None:
        """Takes announced ranges back that are not in force yet.

        Raises:
            Unavailable: too few nodes answered; repeat the call.

        Example:
            >>> client.keep_ranges()
        """
        self._run(self._client.keep_ranges())

    def keep_node(self, node: str) -> None:
        """Ends the removal of a node, which gets its share of the partitions again.

        Raises:
            InputError: there is no such node.
            Unavailable: the node cannot be reached, or too few nodes answered.

        Example:
            >>> client.keep_node("node-3")
        """
        self._run(self._client.keep_node(node))

    def topology_json(self) -> str:
        """Groups, nodes, ranges and partitions, as JSON.

        Example:
            >>> import json
            >>> len(json.loads(client.topology_json())["groups"])
            2
        """
        return self._run(self._client.topology_json())

    def readers(self, dataset: str) -> list[DatasetReader]:
        """The named readers of a dataset or table, by name.

        Args:
            dataset: its name.

        Raises:
            UnknownDataset: there is no such dataset or table.

        Example:
            >>> [reader.name for reader in client.readers("weather")]
            []
        """
        return self._run(self._client.readers(dataset))

    def advance_reader(self, dataset: str, name: str, cursor: Cursor, *, hold: Duration) -> None:
        """Stores up to where a reader has processed a dataset or table; durable on return.

        Creates the reader if there is none of this name. Its position never goes back: what it was
        and the cursor are joined. What lies behind the position is kept until the reader has not
        called this for as long as the hold: by retention also until it is older than the age of the
        policy and the hold together, by cleaning until then alone.

        Args:
            dataset: its name, or that of a table.
            name: of the reader.
            cursor: up to which all commits are processed, such as `QueryEnd.frontier` or the cursor
                of `changes`.
            hold: how long the cluster waits, such as "7d"; at most 90 days.

        Raises:
            UnknownDataset: there is no such dataset or table.
            InputError: the name or the hold is none.
            Forbidden: the caller may not write the table of positions.

        Example:
            >>> cursor = (client.query("weather")).frontier
            >>> client.advance_reader("weather", "nightly", cursor, hold="7d")
            >>> [(one.name, one.behind) for one in client.readers("weather")]
            [('nightly', 0)]
        """
        self._run(self._client.advance_reader(dataset, name, cursor, hold=hold))

    def drop_reader(self, dataset: str, name: str) -> None:
        """Removes a named reader; retention and cleaning do not wait for it any more.

        A stream of Spark that runs under this name creates it again.

        Raises:
            UnknownDataset: there is no such dataset or table.
            InputError: there is no such reader.

        Example:
            >>> cursor = (client.query("weather")).frontier
            >>> client.advance_reader("weather", "nightly", cursor, hold="7d")
            >>> client.drop_reader("weather", "nightly")
        """
        self._run(self._client.drop_reader(dataset, name))

    def create_broker(self, broker: Broker) -> None:
        """Creates a broker, or replaces the one of that name.

        Subscriptions may name a broker that does not exist: its notifications are kept, and pulled
        with `follow`, or pushed once it has a sink. A running worker adopts a change within
        seconds. What `pause_broker` has stopped goes on.

        A hold begins within seconds; results that were deleted before are not there any more.

        Args:
            broker: with a sink, if workers shall push.

        Raises:
            InputError: a channel would read what the broker stores, and its notifications would
                come back for ever.

        Example:
            >>> client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> mail = galileo.Broker("mail", channels=["hot"], hold="30d")
            >>> client.create_broker(mail)
            >>> {"mail", "ops"} <= {broker.name for broker in client.brokers()}
            True
        """
        self._run(self._client.create_broker(broker))

    def brokers(self) -> list[Broker]:
        """All brokers that were created, by name.

        One whose stored definition cannot be read is `paused` for that reason, and has no sink.

        Example:
            >>> client.create_broker(galileo.Broker("mail"))
            >>> "mail" in [broker.name for broker in client.brokers()]
            True
        """
        return self._run(self._client.brokers())

    def drop_broker(self, name: str) -> None:
        """Removes a broker; its subscriptions, notifications and positions stay.

        Results are not held for it any more.

        Raises:
            UnknownBroker: there is none.

        Example:
            >>> client.create_broker(galileo.Broker("old"))
            >>> client.drop_broker("old")
        """
        self._run(self._client.drop_broker(name))

    def pause_broker(self, name: str, reason: str = "paused by hand") -> None:
        """Stops pushing for a broker, until `resume_broker`; notifications are kept meanwhile.

        Args:
            name: of the broker.
            reason: which lists of brokers show.

        Raises:
            UnknownBroker: there is none.

        Example:
            >>> client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> client.pause_broker("ops", "the endpoint is moved")
            >>> {broker.name: broker.paused for broker in client.brokers()}["ops"]
            'the endpoint is moved'
        """
        self._run(self._client.pause_broker(name, reason))

    def resume_broker(self, name: str) -> None:
        """Goes on with pushing for a broker. Errors as `pause_broker`.

        Example:
            >>> client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> client.resume_broker("ops")
        """
        self._run(self._client.resume_broker(name))

    def deliveries(self, channel: str) -> list[Delivery]:
        """How far brokers are that have a position: those that are pushed to, or acknowledge.

        Args:
            channel: its name.

        Example:
            >>> client.acknowledge("hot", "me", "")
            >>> [(one.broker, one.failure) for one in client.deliveries("hot")]
            [('me', '')]
        """
        return self._run(self._client.deliveries(channel))

    def create_channel(self, channel: Channel) -> None:
        """Creates a channel, with the tables of its subscriptions and of its brokers.

        `drop_dataset` drops all of them.

        It never changes. Observations that were committed before are not matched.

        Raises:
            DatasetExists: the name is taken; `details["same"]` says whether by this channel.
            UnknownDataset: there is no such dataset.
            InputError: the template is none of the dataset, or brokers with a sink `Into` would
                store its notifications where it reads.

        Example:
            >>> hot = galileo.Channel("hot", "weather", "temperature > :least", period="1s")
            >>> client.create_channel(hot)
        """
        self._run(self._client.create_channel(channel))

    def channels(self) -> list[Channel]:
        """All channels.

        Example:
            >>> "hot" in [channel.name for channel in client.channels()]
            True
        """
        return self._run(self._client.channels())

    def subscribe(
        self,
        channel: str,
        subscriptions: Any,
        *,
        broker: str | None = None,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
    ) -> Receipt:
        """Stores subscriptions, by the million if need be; durable when it returns.

        What is committed to the dataset after the call has returned is matched. A subscription
        with an id that is there is replaced.

        Args:
            channel: its name.
            subscriptions: rows as of `upsert`, with the columns `id`, `broker`, and one for each
                parameter.
            broker: of all of them, in place of the column.
            csv: how a CSV file is written.
            producer: as of `upsert`, and so are the rest.
            first_batch: likewise.
            batch_rows: likewise.
            progress: likewise.

        Raises:
            UnknownDataset: there is no such channel.
            InvalidObservations: a column is missing or of a wrong type, or a value is none of its
                parameter.
            Forbidden: the caller may not subscribe for a broker, or an id is that of a subscription
                of a broker that it may not use: `details["subscription"]`.
            TransientError: as of `upsert`.

        Example:
            >>> subscriptions = {"id": ["anna", "bert"], "least": [285.0, 300.0]}
            >>> receipt = client.subscribe("hot", subscriptions, broker="me")
            >>> receipt.rows
            2
        """
        return self._run(
            self._client.subscribe(
                channel,
                subscriptions,
                broker=broker,
                csv=csv,
                producer=producer,
                first_batch=first_batch,
                batch_rows=batch_rows,
                progress=progress,
            )
        )

    def unsubscribe(self, channel: str, ids: Keys, *, csv: CsvOptions | None = None) -> Receipt:
        """Removes subscriptions; unknown ids are ignored.

        What is committed to the dataset after the call has returned is not matched any more.

        Args:
            channel: its name.
            ids: a list, or rows with a column `id`.
            csv: how a CSV file is written.

        Raises:
            Forbidden: as of `subscribe`.

        Example:
            >>> receipt = client.unsubscribe("hot", ["bert"])
            >>> (client.table("hot.subscriptions")).rows["id"].to_pylist()
            ['anna']
        """
        return self._run(self._client.unsubscribe(channel, ids, csv=csv))

    def position(self, channel: str, broker: str) -> str:
        """The token that a broker has stored with `acknowledge`; "" if there is none.

        Example:
            >>> client.position("hot", "me")
            ''
        """
        return self._run(self._client.position(channel, broker))

    def acknowledge(self, channel: str, broker: str, token: str) -> None:
        """Stores how far a broker has come, in the cluster; durable when it returns.

        A worker that pushes for the broker goes on behind this position, too: with an earlier token
        it delivers once more what came after it.

        Args:
            channel: its name.
            broker: whose position.
            token: of the last notifications that were handled; "" for none.

        Raises:
            InvalidToken: the token is damaged, or of another channel or broker.

        Example:
            >>> batches = client.fetch_notifications("hot", "me", wait="5s")
            >>> client.acknowledge("hot", "me", batches[-1].token)
            >>> client.position("hot", "me") == batches[-1].token
            True
        """
        self._run(self._client.acknowledge(channel, broker, token))

    def follow(
        self, channel: str, broker: str, *, token: str = "", wait: Duration | None = None
    ) -> Iterator[Notifications]:
        """The matches of a broker's subscriptions as they come, each once.

        Each item has those of one execution of one partition of the subscriptions; within a
        partition they come in order. A broker that stores the token of each together with what it
        does with them can stop at any time and continue with the token: nothing is missed, and
        nothing comes twice. Resumes at another node after a failure.

        Where the last notifications are acknowledged in the cluster, this call moves that position
        past executions that have nothing for the broker: each minute, and when it ends by `wait`.

        Args:
            channel: its name.
            broker: whose subscriptions.
            token: of the last notifications that were handled, such as `position` returns it; ""
                for all that are kept.
            wait: ends when nothing new has come for so long; None: never.

        Raises:
            UnknownDataset: there is no such channel.
            InvalidToken: the token is damaged, or of another channel or broker.
            HistoryChanged: notifications that the broker got were lost. It is raised once: the same
                iterator then goes on behind them.

        Example:
            >>> receipt = client.ingest("weather", warm_day)
            >>> for batch in client.follow("hot", "me"):
            ...     print(batch.to_arrow()["subscription"].to_pylist())
            ...     break
            ['anna']
        """
        return self._iterate(self._client.follow(channel, broker, token=token, wait=wait))

    def fetch_notifications(
        self,
        channel: str,
        broker: str,
        *,
        token: str = "",
        wait: Duration | None = None,
        bytes_max: int = ANSWER_BYTES,
    ) -> list[Notifications]:
        """What `follow` gives next, in one answer.

        The last item has the token to go on with. If no execution has anything for the broker, it
        is the only one, and empty: its token says how far the executions were looked at.

        Args:
            channel: its name.
            broker: whose subscriptions.
            token: as of `follow`.
            wait: for something new; None: not at all.
            bytes_max: of the answer, which ends with the execution that reaches it.

        Raises:
            UnknownDataset: there is no such channel.
            InvalidToken: the token is damaged, or of another channel or broker.
            HistoryChanged: notifications up to the token were lost; `details["token"]` goes on.

        Example:
            >>> batches = client.fetch_notifications("hot", "me", wait="5s")
            >>> token = batches[-1].token
        """
        return self._run(
            self._client.fetch_notifications(
                channel, broker, token=token, wait=wait, bytes_max=bytes_max
            )
        )

    def describe_channel(self, channel: str) -> list[ChannelPartition]:
        """How far the executions are, for each partition of the subscriptions.

        Partitions of nodes that cannot be reached are missing.

        Example:
            >>> partitions = client.describe_channel("hot")
            >>> [partition.failure for partition in partitions if partition.failure]
            []
        """
        return self._run(self._client.describe_channel(channel))

    def create_table(self, table: Table) -> None:
        """Creates a table; it never changes, and `drop_dataset` drops it.

        Raises:
            DatasetExists: the name is taken; `details["same"]` says whether by this table.

        Example:
            >>> columns = {"id": "text", "beds": "int"}
            >>> client.create_table(galileo.Table("clinics", columns, key="id"))
        """
        self._run(self._client.create_table(table))

    def tables(self) -> list[Table]:
        """All tables.

        Example:
            >>> "shelters" in {table.name for table in client.tables()}
            True
        """
        return self._run(self._client.tables())

    def upsert(
        self,
        table: str,
        rows: Any,
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Stores rows in place of those with the same keys; durable when it returns.

        Of rows with the same key the last one counts. Each row is replaced as a whole: a column
        that is not given becomes null. Readers see each row at once, and the rows of one call
        perhaps not all at the same time.

        Args:
            table: its name.
            rows: a DataFrame of pandas or polars, a dict of arrays, an Arrow table, batch or
                reader, or another object with `__arrow_c_stream__`, of the table's columns; or the
                path of a Parquet, Arrow, CSV or JSON lines file. Geometries are WKB, WKT, shapely
                geometries, GeoJSON or boxes, as docs/tables.md says.
            csv: how a CSV file is written.
            producer: name under which the batches are numbered. The same rows again under the same
                name, number and `batch_rows` are stored once; by default the name is a fresh one.
            first_batch: the number of the first batch.
            batch_rows: rows of a batch at most.
            progress: called with the rows of each batch that became durable.
            unchanged_since: a cursor of this table. Rows are refused if one of their keys has
                changed after it. A partition stores all of its rows of a batch or none.

        Raises:
            UnknownDataset: there is no such table.
            InvalidObservations: a column is unknown or of a wrong type, a key is missing, or a
                geometry is none that queries accept.
            Conflict: a row has changed after `unchanged_since`; `details` name its `key`, and the
                `cursor` of the change.
            DuplicateKey: two rows of a conditional call have one key; nothing is stored.
            DataExpired, HistoryChanged: the cursor is too old to tell whether a row has changed;
                read the rows again.
            TransientError: a node that must take rows was unreachable. Some may be stored; repeat
                the call under `details["producer"]`.

        Example:
            >>> receipt = client.upsert("shelters", {"id": ["a", "b"], "beds": [40, 25]})
            >>> receipt.rows
            2
            >>> seen = client.table("shelters", keys=["a"])
            >>> row = {"id": ["a"], "beds": [seen.rows["beds"][0].as_py() - 1]}
            >>> receipt = client.upsert("shelters", row, unchanged_since=seen.cursor)
            >>> try:
            ...     client.upsert("shelters", row, unchanged_since=seen.cursor)
            ... except galileo.errors.Conflict as error:
            ...     print(error.details["key"])
            a
        """
        return self._run(
            self._client.upsert(
                table,
                rows,
                csv=csv,
                producer=producer,
                first_batch=first_batch,
                batch_rows=batch_rows,
                progress=progress,
                unchanged_since=unchanged_since,
            )
        )

    def delete(
        self,
        name: str,
        what: Keys | QueryLike | Mapping[str, Any],
        *,
        csv: CsvOptions | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Deletes rows of a table, or observations of a dataset; else as `upsert`.

        Keys that are not there are ignored. A condition is for any dataset. What it deletes has not
        changed since it was evaluated; where it has, the condition is evaluated once more.

        Args:
            name: of the table or dataset.
            what: of a table, rows as of `upsert` whose columns of the key are read, or a list of
                keys if the key has one column. Of a keyed dataset, rows whose place, time and
                features of the key are read, or a `pathlib.Path` of a file with such rows. Of any
                dataset, a condition: CQL2 text, such as `"temperature > 400"`,
                `galileo.f.temperature > 400`, or CQL2 JSON. An empty text stands for all
                observations.
            csv: as of `upsert`.
            producer: as of `upsert`; not with a condition.
            first_batch: as of `upsert`.
            batch_rows: as of `upsert`.
            progress: as of `upsert`.
            unchanged_since: as of `upsert`; not with a condition.

        Returns:
            `rows` is the number of keys that were sent, also of keys that are not there. After a
            condition it is the number of deleted observations, and `evaluated` is the cursor at
            which the condition was evaluated.

        Raises:
            InputError: these are rows, and the dataset has no key.
            IncompleteAnswer: a node that may keep observations that match cannot be reached.
            Conflict: a row has changed after `unchanged_since`; or others change the observations
                of a condition until the patience of the client ends.
            UnknownDataset, InvalidObservations, DuplicateKey, TransientError: as of `upsert`.

        Example:
            >>> receipt = client.delete("shelters", ["b"])
            >>> (client.table("shelters")).rows["id"].to_pylist()
            ['a']
        """
        return self._run(
            self._client.delete(
                name,
                what,
                csv=csv,
                producer=producer,
                first_batch=first_batch,
                batch_rows=batch_rows,
                progress=progress,
                unchanged_since=unchanged_since,
            )
        )

    def table(self, table: str, *, at: Cursor | None = None, keys: Keys | None = None) -> TableRows:
        """The rows of a table, in no particular order; all at once.

        Args:
            table: its name.
            at: the cursor of an earlier answer, perhaps joined with those of receipts: the rows as
                they were then. None: as they are.
            keys: only the rows with these keys; as of `delete`.

        Raises:
            UnknownDataset: there is no such table.
            InputError: the cursor or the keys are not of this table.
            Unavailable: a node that keeps some of the rows cannot be reached.
            HistoryChanged: commits up to the cursor were lost; `details["cursor"]` goes on.

        Example:
            >>> before = client.table("shelters")
            >>> receipt = client.upsert("shelters", {"id": ["a"], "beds": [38]})
            >>> (client.table("shelters", keys=["a"])).rows["beds"].to_pylist()
            [38]
            >>> earlier = client.table("shelters", at=before.cursor, keys=["a"])
            >>> earlier.rows["beds"].to_pylist()
            [40]
        """
        return self._run(self._client.table(table, at=at, keys=keys))

    def changes(self, name: str, after: Cursor, *, until: Cursor | None = None) -> TableRows:
        """The keys whose rows changed between two cursors, each with its last row.

        Of a table or of a keyed dataset.

        Who applies them to the rows at the first cursor has the rows at the second: rows whose
        column `deleted` is true are removed, all others replaced. Of a deleted row only the key is
        there; of a deleted observation also the place and the time by which it was deleted.

        Args:
            name: of the table or dataset.
            after: the cursor of an earlier answer.
            until: of a later one; None: all that is committed.

        Raises:
            HistoryChanged: commits up to a cursor were lost. `details["cursor"]` goes on, but rows
                that the lost commits changed are not among the changes: read the table anew.

        Example:
            >>> before = (client.table("shelters")).cursor
            >>> receipt = client.delete("shelters", ["a"])
            >>> (client.changes("shelters", before)).rows.to_pylist()
            [{'id': 'a', 'beds': None, 'deleted': True}]
        """
        return self._run(self._client.changes(name, after, until=until))

    def ingest(
        self,
        dataset: str,
        data: Batches,
        *,
        mapping: Sources | None = None,
        missing: Sentinels | None = None,
        csv: CsvOptions | None = None,
        grid: GridOptions | None = None,
        format: str | None = None,
        producer: str | None = None,
        first_batch: int = 0,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
        replaces: Any = None,
    ) -> Receipt:
        """Stores observations; durable when it returns.

        In a keyed dataset each observation replaces the one with the same key, as a whole, and of
        one key the last observation counts.

        Args:
            dataset: its name.
            data: one of these, or an iterable (also an async one) of them:

                - a table: a pandas or polars DataFrame, a GeoDataFrame of points in any coordinate
                  reference system, a dict of arrays, an Arrow table, batch or reader, a DuckDB
                  relation, or another object with `__arrow_c_stream__`. Its columns are latitude,
                  longitude, time and the features; `lat`, `lon`, `datetime` and other usual names
                  of coordinates are recognised.
                - a grid: an xarray Dataset or DataArray, by the rules for NetCDF files. Points
                  without any value are skipped.
                - the path of a file, as for `ingest_file`.
            mapping: which columns and variables become features, such as
                `{"temperature": "fahrenheit_to_kelvin(tmpf)"}` or `["temperature=2t"]`; see
                docs/input.md. With a mapping, a table may have other columns, and rows without a
                place, a time or a value are skipped.
            missing: values that mean a missing one: `-9999`, a list of such, or by variable,
                `{"temp": -9999}`. They make a table be read as a mapping does.
            csv: how CSV files are written, such as `galileo.CsvOptions(separator=";")`.
            grid: which rows files and Datasets of grids, stations and profiles have, such as
                `galileo.GridOptions(rows=["N_LEVELS"])`.
            format: of files, where neither their first bytes nor their names say it.
            producer: name under which the batches are numbered. Ingesting the same data again
                under the same name and `batch_rows` stores nothing twice. By default files have
                names made of their content, so that a repetition stores nothing twice; data in
                memory, and files for a keyed dataset, get a fresh name, so that a repetition stores
                them again.
            first_batch: the number of the first batch, of a producer that numbers its batches
                itself over several calls.
            batch_rows: rows per batch; a table is cut into such pieces.
            progress: called with the rows of each batch that became durable.
            unchanged_since: a cursor of this keyed dataset. Observations are refused if one of
                their keys has changed after it. A partition stores all of its rows of a batch or
                none.
            replaces: observations of a keyed dataset, as of `delete`, that are deleted once `data`
                is durable: those whose place or time is corrected, so that they have another key.
                Keys that `data` has stay. Repeat the call after an error.

        Raises:
            InvalidObservations: a table does not fit; nothing of that table was stored.
            InputError: a file, grid or mapping does not fit; what came before is stored.
            ConfigError: a file needs a library that is not installed.
            Conflict: an observation has changed after `unchanged_since`; `details` name its `key`,
                and the `cursor` of the change.
            DuplicateKey: two rows of a conditional call have one key; nothing is stored.
            DataExpired, HistoryChanged: the cursor is too old to tell whether an observation has
                changed.
            TransientError: a node that must take rows was unreachable; ingest the same again later,
                under `details["producer"]`, or what was stored by then is stored twice.

        Example:
            >>> receipt = client.ingest("weather", frame, producer="march-2014")
            >>> receipt.rows, receipt.duplicate_rows
            (4, 4)
        """
        return self._run_with(
            data,
            lambda data: self._client.ingest(
                dataset,
                data,
                mapping=mapping,
                missing=missing,
                csv=csv,
                grid=grid,
                format=format,
                producer=producer,
                first_batch=first_batch,
                batch_rows=batch_rows,
                progress=progress,
                unchanged_since=unchanged_since,
                replaces=replaces,
            ),
        )

    def ingest_file(
        self,
        dataset: str,
        path: str | os.PathLike[str] | Source,
        *,
        create: bool = False,
        mapping: Sources | None = None,
        missing: Sentinels | None = None,
        csv: CsvOptions | None = None,
        grid: GridOptions | None = None,
        format: str | None = None,
        index: Sequence[str] | None = None,
        precision: int | None = None,
        bucket: Duration | None = None,
        key: str | Sequence[str] = (),
        producer: str | None = None,
        progress: Progress | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Receipt:
        """Stores the observations of a file, and creates the dataset if asked to.

        It does what `galileo ingest` does. Ingesting the same file in the same way again stores
        nothing twice, also after a failure, for the producer is made of the file's content.

        Args:
            dataset: its name.
            path: of a CSV, GeoJSON, JSON, Parquet, Arrow, NetCDF or GRIB file, or of a Zarr store;
                or what `galileo.formats.open_source` made of one, with its mapping.
            create: create the dataset from what the file offers where it does not exist. The first
                batch is read before that.
            mapping: as for `ingest`; without one, features are taken by name, and all of the
                largest grid in a new dataset.
            missing: as for `ingest`.
            csv: as for `ingest`.
            grid: as for `ingest`.
            format: as for `ingest`.
            index: with `create`, the features that queries can use; by default the mapped
                features; without a mapping the first 32, except features that give each row a path
                of its own.
            precision: with `create`, geohash characters of a block; None chooses them by the first
                rows, and `Receipt.choices` says why.
            bucket: with `create`, the width of a block in time; None chooses it in the same way.
            key: with `create`, the features of the key, which are indexed; none: observations are
                never replaced.
            producer: name under which the batches are numbered, in place of the file's own.
            progress: called with the rows of each batch that became durable.
            unchanged_since: as for `ingest`.

        Raises:
            InputError: the file is damaged, or does not fit the mapping or the dataset, or the
                dataset exists with another key than `key`.
            UnknownDataset: there is no such dataset, and `create` is false.
            ConfigError: the format needs a library that is not installed.
            TransientError: a node that must take rows stayed away; ingest the same again later.

        Example:
            >>> rows = "2014-03-01T06:00Z,278", "2014-03-02T06:00Z,-9999"
            >>> with open("tower.csv", "w") as file:
            ...     print("time,temp", *rows, sep=chr(10), file=file)
            >>> receipt = client.ingest_file(
            ...     "tower",
            ...     "tower.csv",
            ...     create=True,
            ...     mapping={"temperature": "temp", "latitude": 40.5, "longitude": -105.1},
            ...     missing=-9999,
            ... )
            >>> receipt.rows, receipt.skipped
            (1, 1)
        """
        return self._run(
            self._client.ingest_file(
                dataset,
                path,
                create=create,
                mapping=mapping,
                missing=missing,
                csv=csv,
                grid=grid,
                format=format,
                index=index,
                precision=precision,
                bucket=bucket,
                key=key,
                producer=producer,
                progress=progress,
                unchanged_since=unchanged_since,
            )
        )

    def query(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int | None = None,
        sampler: SamplerLike | None = None,
        require_complete: bool = False,
        progress: Progress | None = None,
    ) -> Labels:
        """The labels of all paths that match a CQL2 query, of everything that is stored by now.

        Where nodes are away the answer is partial: `complete` is False, and `missing` names the
        partitions that could not be asked.

        Args:
            dataset: its name.
            query: CQL2.
            limit: labels at most, any of those that match; nodes stop once they are found. An
                answer that was cut by it has an empty `frontier`; partitions of nodes that cannot
                be reached are missing from it, too.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins them where
                they are stored.
            require_complete: whether a partial answer is an error; it is asked for again as long
                as the client is patient.
            progress: called with the labels of each piece as it comes.

        Raises:
            IncompleteAnswer: a complete answer is required, and a node is down.
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            UnknownSampler: a node does not have the sampler.
            SamplerFailed: the sampler raised; `details["traceback"]` says where.
            NotPermitted, SandboxUnavailable, SamplerRevoked: it goes along, and is not run.

        Example:
            >>> labels = client.query("weather", "temperature > 290")
            >>> len(labels), labels.complete
            (2, True)
        """
        return self._run(
            self._client.query(
                dataset,
                query,
                limit=limit,
                sampler=sampler,
                require_complete=require_complete,
                progress=progress,
            )
        )

    def query_batches(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int | None = None,
        sampler: SamplerLike | None = None,
        require_complete: bool = False,
    ) -> BlockingLabelBatches:
        """The same, a bounded set of labels at a time; memory stays bounded here and at the nodes.

        Its `end` says, once all labels were given, how far they go and which partitions are
        missing. What a node that is lost on the way had sent by then was given, too;
        `end.known(labels)` leaves it out.

        Args:
            dataset: its name.
            query: CQL2.
            limit: as in `query`.
            sampler: as in `query`.
            require_complete: whether a partial answer ends with an error, once all labels that
                could be found were given.

        Raises:
            IncompleteAnswer: while it is read, at its end: a complete answer is required, and a
                node is down.
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            Unavailable: while it is read: the node that answers was lost. Ask again then, and
                drop what was given.

        Example:
            >>> batches = client.query_batches("weather", galileo.f.station == "KDEN")
            >>> for labels in batches:
            ...     print(len(labels))
            2
            >>> batches.end.complete
            True
        """
        return self._label_batches(
            self._client.query_batches(
                dataset, query, limit=limit, sampler=sampler, require_complete=require_complete
            )
        )

    def read(
        self,
        labels: LabelSet,
        *others: Never,
        exact: bool = True,
        columns: Sequence[str] = (),
        limit: int | None = None,
        order_by: str = "",
        require_complete: bool = False,
        progress: Progress | None = None,
    ) -> pa.Table:
        """The observations behind labels.

        Nodes send the named columns alone. A limit ends their work once it is reached; with an
        order each node reads all of its observations and sends its own first ones.

        Where the labels are a partial answer, so is the table: `galileo.missing` in the metadata
        of its schema is then a JSON list of the missing partitions.

        Args:
            labels: of this cluster.
            others: none; a dataset and a query are the arguments of `select`.
            exact: only observations that match the labels' query exactly; else all of their
                paths, of which some can lie just outside a polygon or an interval.
            columns: of the answer; all where none is named.
            limit: observations at most; None: all.
            order_by: a column, such as "time" (the earliest first) or, descending, "-time"; empty:
                ordered by partition, commit and row. Missing values are last, and the order of
                equal ones is not defined. Up to a limit of 1,000,000, if there is one.
            require_complete: whether labels of a partial answer are an error.
            progress: called with the observations of each piece as it comes.

        Raises:
            InputError: these are no labels, or there is no such column or order.
            IncompleteAnswer: a complete answer is required, and the labels are a partial one.
            Unavailable: a node that keeps some of the observations cannot be reached.

        Example:
            >>> labels = client.query("weather", "temperature > 290")
            >>> table = client.read(labels)
            >>> sorted(table["temperature"].to_pylist())
            [291.0, 292.5]
        """
        return self._run(
            self._client.read(
                labels,
                *others,
                exact=exact,
                columns=columns,
                limit=limit,
                order_by=order_by,
                require_complete=require_complete,
                progress=progress,
            )
        )

    def read_batches(
        self,
        labels: LabelSet,
        *others: Never,
        exact: bool = True,
        columns: Sequence[str] = (),
        limit: int | None = None,
        require_complete: bool = False,
    ) -> BlockingTables:
        """The same in pieces, ordered by partition, commit and row; memory stays bounded.

        Where a connection breaks, the next piece comes from another node, and no row twice.
        Arguments and errors are those of `read`.

        Example:
            >>> rows = 0
            >>> for table in client.read_batches(labels):
            ...     rows += table.num_rows
            >>> rows
            4
        """
        return BlockingTables(
            labels,
            columns,
            self._iterate(
                self._client.read_batches(
                    labels,
                    *others,
                    exact=exact,
                    columns=columns,
                    limit=limit,
                    require_complete=require_complete,
                )
            ),
        )

    def select(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        columns: Sequence[str] = (),
        limit: int | None = None,
        order_by: str = "",
        enrich: Sequence[Step] = (),
        require_complete: bool = True,
        progress: Progress | None = None,
        at: Cursor | None = None,
    ) -> pa.Table:
        """The observations that match a CQL2 query exactly, found and read in one call.

        What `query` and then `read` give, without the labels; all at once. Where there are too
        many for memory, use `query_batches` and `read_batches`.

        Args:
            dataset: its name.
            query: CQL2.
            columns: of the answer; all where none is named.
            limit: observations at most; None: all. A node that cannot be reached is reported also
                where the limit was reached without it.
            order_by: a column, such as "time" (the earliest first) or, descending, "-time"; empty:
                any order. Missing values are last, and the order of equal ones is not defined. Up
                to a limit of 1,000,000, if there is one.
            enrich: steps that add rows of tables, each of another table: `galileo.Lookup`,
                `Within`, `Near` and `Nearest`. The client joins the rows that are in a table when
                the observations have been read. It reads all rows of the table, but for a lookup
                without `as_of` those of the keys.
            require_complete: whether a partial answer is an error, which it is unless False is
                given. `galileo.missing` in the metadata of a partial table's schema is a JSON list
                of the missing partitions.
            progress: called with the observations of each piece as it comes.
            at: a cursor of this dataset, such as the `frontier` of labels: the observations as they
                were then, of the partitions that it names. None: as they are.

        Raises:
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            InputError: there is no such column or order, or a step does not fit.
            DataExpired: what was there at the cursor is not kept any more.
            HistoryChanged: commits up to the cursor were lost.
            UnknownDataset: there is no such dataset or table.
            IncompleteAnswer: a node that may keep some of them cannot be reached.
            Unavailable: a node that keeps rows of a table cannot be reached.

        Example:
            >>> table = client.select("weather", "station = 'KDEN'", columns=["temperature"])
            >>> sorted(table["temperature"].to_pylist())
            [288.0, 291.0]
            >>> towns = galileo.Table("towns", {"station": "text", "town": "text"}, "station")
            >>> client.create_table(towns)
            >>> receipt = client.upsert("towns", {"station": ["KDEN"], "town": ["Denver"]})
            >>> lookup = galileo.Lookup("towns", on="station")
            >>> table = client.select("weather", "temperature > 290", enrich=[lookup])
            >>> sorted(table["towns.town"].to_pylist(), key=str)
            ['Denver', None]
            >>> dropped = client.drop_dataset("towns")
        """
        return self._run(
            self._client.select(
                dataset,
                query,
                columns=columns,
                limit=limit,
                order_by=order_by,
                enrich=enrich,
                require_complete=require_complete,
                progress=progress,
                at=at,
            )
        )

    def select_batches(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        columns: Sequence[str] = (),
        limit: int | None = None,
        at: Cursor | None = None,
    ) -> Iterator[pa.Table]:
        """The same in pieces, in any order; memory stays bounded.

        Closing the iterator cancels the call at the node. Before the first piece the client retries
        at other nodes; an error after it ends the iterator, because rows were returned already.
        Arguments and errors are those of `select`, whose answer has to be complete.

        Raises:
            Unavailable: the answer broke off; drop its rows and repeat the call.

        Example:
            >>> rows = 0
            >>> for table in client.select_batches("weather", "temperature > 290"):
            ...     rows += table.num_rows
            >>> rows
            2
        """
        return self._iterate(
            self._client.select_batches(dataset, query, columns=columns, limit=limit, at=at)
        )

    def select_page(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        limit: int = 1000,
        columns: Sequence[str] = (),
        after: str | None = None,
        require_complete: bool = True,
    ) -> Page:
        """Some of the observations that match exactly, with their ids, in the order of these.

        All pages together are what was committed when the first one was read: each observation
        once, whatever is ingested meanwhile. An id such as "p3.17.42" names partition, commit and
        row; it never changes, and `read_ids` reads its observation. In a keyed dataset it names the
        key of the observation, and stays when the observation is replaced.

        Args:
            dataset: its name.
            query: CQL2.
            limit: observations of the page, up to 10,000.
            columns: of the answer; all if none is named.
            after: `next` of the page before, of the same dataset and query; None for the first.
            require_complete: whether it is an error that the first page cannot ask every
                partition. Later pages ask the same partitions as the first one.

        Raises:
            InputError: there is no such column, or the token is of another query.
            IncompleteAnswer: a node that may keep some of them cannot be reached.
            DataExpired: retention has dropped some of them since the first page.
            HistoryChanged: some of them were lost since; `details["token"]` goes on without them.

        Example:
            >>> page = client.select_page("weather", limit=3)
            >>> rest = client.select_page("weather", limit=3, after=page.next)
            >>> len(page), len(rest), rest.next
            (3, 1, None)
        """
        return self._run(
            self._client.select_page(
                dataset,
                query,
                limit=limit,
                columns=columns,
                after=after,
                require_complete=require_complete,
            )
        )

    def read_ids(
        self, dataset: str, ids: Sequence[str], *, columns: Sequence[str] = ()
    ) -> pa.Table:
        """The observations of ids, in their order, with a first column `id`.

        In a keyed dataset these are the observations that count now. One that was deleted is left
        out.

        Args:
            dataset: its name.
            ids: as pages have them, up to 10,000.
            columns: of the answer; all if none is named.

        Raises:
            InputError: an id is none, or names no observation.
            DataExpired: retention has dropped one of the observations.
            HistoryChanged: one of the observations was lost.

        Example:
            >>> page = client.select_page("weather", limit=1)
            >>> ids = page.table["id"].to_pylist()
            >>> (client.read_ids("weather", ids)).drop_columns("id").num_rows
            1
        """
        return self._run(self._client.read_ids(dataset, ids, columns=columns))

    def count(self, dataset: str, query: QueryLike = "") -> int:
        """How many observations match a CQL2 query exactly; always complete, errors as `select`.

        Example:
            >>> client.count("weather", "temperature > 290")
            2
        """
        return self._run(self._client.count(dataset, query))

    def submit(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        interval: Duration = INTERVAL,
        expiration: Duration = EXPIRATION,
        sampler: SamplerLike | None = None,
        compression: str = "none",
        window: Window | None = None,
        hold: Duration = HOLD,
    ) -> Ccq:
        """Submits a cached continuous query; it is answered until it expires.

        Args:
            dataset: its name.
            query: CQL2.
            interval: how often new matches are looked for.
            expiration: how long from now it runs. A query that is no longer wanted should be
                cancelled, for until then the cluster evaluates it and keeps its labels.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins what is
                found.
            compression: of the cache, "none" or "lz4".
            window: `galileo.Window...`; updates then say which windows their labels belong to,
                and which of them are over.
            hold: how long what the readers of the query may still need is kept if none of them
                fetches, at most 90 days: versions that were replaced or deleted in a keyed dataset,
                and observations that are older than the retention of any dataset. Who fetches later
                gets `Update.reset` or `Update.gone`.

        Raises:
            InputError: an argument is wrong.
            Unavailable: the system partition has no leader, or no node takes the query. It may have
                been stored; `list_ccqs` says so later.

        Example:
            >>> ccq = client.submit("weather", "temperature > 290", interval="5s")
            >>> len(ccq.initial)
            2
        """
        return self._run(
            self._client.submit(
                dataset,
                query,
                interval=interval,
                expiration=expiration,
                sampler=sampler,
                compression=compression,
                window=window,
                hold=hold,
            )
        )

    def fetch(
        self, ccq: CcqLike, *, token: str = "", wait: Duration | None = None, labels_max: int = 0
    ) -> Update:
        """What is new for a client that has what `token` says.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            wait: for how long to wait for something new; at most a minute. Where no evaluation
                ended in all that time, a warning is logged; `Update.status` says how far it is.
            labels_max: soft bound of the answer; 0 for the node's own.

        Raises:
            InvalidToken: it is damaged or of another CCQ.
            HistoryChanged: commits up to the token were lost; `details["token"]` goes on.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to fetch from.

        Example:
            >>> update = client.fetch(ccq, token=ccq.token)
            >>> len(update.labels), update.more
            (0, False)
        """
        return self._run(self._client.fetch(ccq, token=token, wait=wait, labels_max=labels_max))

    def watch(
        self, ccq: CcqLike, *, token: str = "", labels_max: int = 0, spool: Spool | None = None
    ) -> Iterator[Update]:
        """Updates as they come; asking for the next one acknowledges the last.

        One without anything new comes where nothing has for ten seconds, and more is known to have
        been looked at since the last: its frontier says how far.

        Resumes at another node after a failure, until the CCQ ends, which raises `CcqExpired` or
        `CcqCancelled`.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            labels_max: soft bound of an update; 0 for the node's own.
            spool: stores each update before it is yielded, and begins where it ends, so that a
                reader that crashes goes on without a gap or a repetition. It has its own token.

        Raises:
            InputError: the spool is of another CCQ, or a token and a spool with one were given.
            SpoolConflict: another reader stores into the same spool.
            TransientError: the spool cannot be written; it is as it was.
            HistoryChanged: commits up to the last update were lost. It is raised once: the same
                iterator then goes on behind them, and so does the spool.

        Example:
            >>> for update in client.watch(ccq):
            ...     print(len(update.labels))
            ...     break
            2
        """
        return self._iterate(
            self._client.watch(ccq, token=token, labels_max=labels_max, spool=spool)
        )

    def sparql_view(
        self,
        ccq: CcqLike,
        *,
        token: str = "",
        spool: Spool | None = None,
        labels_max: int = LABELS_MAX,
    ) -> SparqlView:
        """The labels of a CCQ as an RDF graph for SPARQL, which grows with each update.

        It holds all present labels when it returns. Its calls block, and threads may share it;
        close it when done.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update that is not wanted; empty for everything.
            spool: stores each update before it is added, and is where the view begins, so that
                one that is opened again needs to fetch only what is new.
            labels_max: how many labels the graph holds; then following ends, with a reason.

        Raises:
            InputError: the spool is of another CCQ; or there are more than `labels_max` already.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to follow.

        Example:
            >>> view = client.sparql_view(ccq)
            >>> len(view)
            2
            >>> view.close()
        """
        return self._run(
            self._client.sparql_view(ccq, token=token, spool=spool, labels_max=labels_max)
        )

    def list_ccqs(self, dataset: str = "") -> list[CcqInfo]:
        """The CCQs that the cluster answers, and that the caller may use.

        Args:
            dataset: only those of this one. A caller whose grants name datasets has to name one.

        Raises:
            Forbidden: the caller has no grant on the dataset, or not on every one if none is named.
            Unavailable: the system partition has no leader.

        Example:
            >>> ccq.id in {info.id for info in client.list_ccqs()}
            True
        """
        return self._run(self._client.list_ccqs(dataset))

    def cancel(self, ccq: CcqLike) -> None:
        """Ends a CCQ everywhere; its watchers get `CcqCancelled`.

        Raises:
            UnknownCcq: there is none.
            Unavailable: the system partition has no leader.

        Example:
            >>> ccq = client.submit("weather")
            >>> client.cancel(ccq)
        """
        self._run(self._client.cancel(ccq))

    def send_sampler(self, archive: SamplerArchive) -> UploadedSampler:
        """Uploads the code of a sampler to the cluster; `query` and `submit` do it by themselves.

        Args:
            archive: from `galileo.sampler_archive`.

        Raises:
            NotPermitted: the node does not allow uploads.
            SandboxUnavailable: the node has no sandbox to run it in.
            SamplerRevoked: this code was revoked.
            InvalidArchive: the archive is invalid.
            Unavailable: no node leads the system partition. Repeat the call.

        Example:
            >>> archive = galileo.sampler_archive("thin.py")
            >>> sent = client.send_sampler(archive)
            >>> sent.name
            'thin'
        """
        return self._run(self._client.send_sampler(archive))

    def sent_samplers(self) -> list[UploadedSampler]:
        """The uploaded samplers, oldest first, also revoked ones.

        Example:
            >>> client.send_sampler(galileo.sampler_archive("thin.py"))
            UploadedSampler(...)
            >>> "thin" in {sent.name for sent in client.sent_samplers()}
            True
        """
        return self._run(self._client.sent_samplers())

    def revoke_sampler(self, digest: str) -> RevokedSampler:
        """Revokes an uploaded sampler permanently, at all nodes.

        Continuous queries that use it fail with `SamplerRevoked`, and its processes end.

        Args:
            digest: of its archive, or the beginning of it.

        Raises:
            UnknownSampler: no uploaded sampler has it.
            Unavailable: no node leads the system partition. Repeat the call.
            InputError: several digests begin with it.

        Example:
            >>> sent = client.send_sampler(galileo.sampler_archive("thin_once.py"))
            >>> revoked = client.revoke_sampler(sent.digest)
            >>> revoked.away
            ()
        """
        return self._run(self._client.revoke_sampler(digest))

    def create_dataset(self, schema: Schema, *, retention: Retention | None = None) -> None:
        """Creates a dataset.

        Args:
            schema: of it.
            retention: for how long observations are kept; None: for ever. It is set by a second
                call: if that fails, the dataset exists and keeps everything until `set_retention`.

        Raises:
            UnknownUnit: UDUNITS does not know the unit of a feature. It is looked up where the
                extra `formats` is installed.
            DatasetExists: the name is taken; `details["same"]` says whether by this schema.

        Example:
            >>> schema = galileo.Schema("weather-rain", [galileo.Feature("depth", unit="mm")])
            >>> client.create_dataset(schema, retention=galileo.Retention("30d"))
        """
        self._run(self._client.create_dataset(schema, retention=retention))

    def add_features(self, dataset: str, features: Sequence[Feature]) -> Schema:
        """Adds features to a dataset, behind those that it has.

        What is stored has null in them, and batches without them can be stored as before. Labels,
        and continuous queries that were submitted before, go on without them. A feature cannot be
        renamed or removed, and its type stays as it is; create another dataset for that.

        Args:
            dataset: its name.
            features: to add, in this order.

        Returns:
            The schema of the dataset with the new features.

        Raises:
            InvalidSchema: there are none, the dataset has one of this name, or there are too many.
            UnknownUnit: as of `create_dataset`.
            UnknownDataset: it does not exist.
            Unavailable: no node leads the definitions, because a majority of their copies is down.
                Repeat the call.

        Example:
            >>> schema = galileo.Schema("weather-snow", [galileo.Feature("depth", unit="mm")])
            >>> client.create_dataset(schema)
            >>> gust = galileo.Feature("gust", unit="m/s")
            >>> schema = client.add_features("weather-snow", [gust])
            >>> [feature.name for feature in schema.features]
            ['depth', 'gust']
        """
        return self._run(self._client.add_features(dataset, features))

    def drop_dataset(self, dataset: str) -> DroppedDataset:
        """Drops a dataset or table with everything that it holds; this cannot be undone.

        Its continuous queries end: their readers get `CcqDropped`. The name can be used again at
        once, also with another schema. The new dataset is another one: labels and tokens of the
        dropped one are refused. Unreachable nodes drop the dataset when they are back.

        Args:
            dataset: its name.

        Returns:
            What was removed, and the nodes that have not dropped it yet.

        Raises:
            UnknownDataset: it does not exist.
            Unavailable: no node leads the definitions, because a majority of their copies is down.
                Repeat the call.

        Example:
            >>> schema = galileo.Schema("weather-fog", [galileo.Feature("depth", unit="m")])
            >>> client.create_dataset(schema)
            >>> client.drop_dataset("weather-fog")
            DroppedDataset(dataset='weather-fog', rows=0, bytes=0, ccqs=0, pending=())
        """
        return self._run(self._client.drop_dataset(dataset))

    def set_retention(self, dataset: str, retention: Retention | None) -> None:
        """Sets for how long a dataset's observations are kept, at all nodes.

        Args:
            dataset: its name.
            retention: None keeps everything from now on.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> client.set_retention("weather", galileo.Retention(bytes=50 << 30))
            >>> client.set_retention("weather", None)
        """
        self._run(self._client.set_retention(dataset, retention))

    def retention(self, dataset: str) -> Retention | None:
        """The retention policy of a dataset; None where everything is kept.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> client.retention("weather") is None
            True
        """
        return self._run(self._client.retention(dataset))

    def apply_retention(self, dataset: str) -> tuple[RetentionReport, ...]:
        """Applies the dataset's retention at once; nodes else apply it from time to time.

        Returns:
            A report of each node, also of those that could not be reached.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> reports = client.apply_retention("weather")
            >>> sum(report.files for report in reports)
            0
        """
        return self._run(self._client.apply_retention(dataset))

    def clean_dataset(self, dataset: str) -> Iterator[CleaningReport]:
        """Has all nodes erase the bytes of deleted and replaced observations now.

        Nodes also erase by themselves where much was deleted. This call does not wait for readers:
        older labels, cursors and pages expire, and the readers of continuous queries that are
        behind begin anew. Closing the iterator ends the work and keeps what was erased. Backups do
        not change.

        Args:
            dataset: the name of a dataset or table.

        Returns:
            The report of each node whenever it changes; at last with `is_over`, or with `failures`.
            If there are any, call again when the node is back.

        Raises:
            UnknownDataset: it does not exist.
            NotPermitted: the caller is no administrator.
            Unavailable: no node answered.

        Example:
            >>> reports = [one for one in client.clean_dataset("weather") if one.is_over]
            >>> {report.failures for report in reports}
            {()}
        """
        return self._iterate(self._client.clean_dataset(dataset))

    def datasets(self) -> list[Schema]:
        """The schemas of all datasets.

        Example:
            >>> "weather" in {schema.name for schema in client.datasets()}
            True
        """
        return self._run(self._client.datasets())

    def schema(self, dataset: str) -> Schema:
        """The schema of a dataset; features that another client adds are in it 5 seconds later.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> schema = client.schema("weather")
            >>> [feature.name for feature in schema.features]
            ['temperature', 'station']
        """
        return self._run(self._client.schema(dataset))

    def whoami(self) -> CallerIdentity:
        """The user name of this client, its roles and its quotas, as one node counts them.

        Example:
            >>> caller = client.whoami()
            >>> caller.name
            ''
        """
        return self._run(self._client.whoami())

    def explain(
        self, dataset: str, query: QueryLike = "", *, require_complete: bool = False
    ) -> QueryExplanation:
        """How a query is answered, found by answering it: whom it asks, what they look at.

        Example:
            >>> explanation = client.explain("weather", "temperature > 290")
            >>> explanation.found
            2
        """
        return self._run(self._client.explain(dataset, query, require_complete=require_complete))

    def describe(self, dataset: str, *, require_complete: bool = False) -> DatasetDescription:
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
            >>> known = client.describe("weather")
            >>> known.observations, known.feature("temperature").maximum
            (4, 292.5)
        """
        return self._run(self._client.describe(dataset, require_complete=require_complete))

    def nearest(
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
            >>> nearest = client.nearest("weather", latitude=52, longitude=13, k=1)
            >>> nearest.to_pandas()["station"].to_list()
            ['EDDB']
        """
        return self._run(
            self._client.nearest(
                dataset,
                query,
                latitude=latitude,
                longitude=longitude,
                k=k,
                within_m=within_m,
                require_complete=require_complete,
            )
        )

    def summarise(
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
            >>> summary = client.summarise("weather", feature="temperature")
            >>> summary.mean
            287.625
        """
        return self._run(
            self._client.summarise(
                dataset, query, feature=feature, bins=bins, require_complete=require_complete
            )
        )

    def aggregate(
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
            >>> means = client.aggregate("weather", by=["station"], statistics=wanted)
            >>> means.to_pandas()["temperature_mean"].to_list()
            [279.0, 292.5, 289.5]
        """
        return self._run(
            self._client.aggregate(
                dataset, query, by=by, statistics=statistics, require_complete=require_complete
            )
        )

    def latest(
        self, dataset: str, query: QueryLike = "", *, by: Key | str, require_complete: bool = False
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
            >>> newest = client.latest("weather", by="station")
            >>> newest.to_pandas()["temperature"].to_list()
            [279.0, 292.5, 291.0]
        """
        return self._run(
            self._client.latest(dataset, query, by=by, require_complete=require_complete)
        )

    def version(self, dataset: str, *, require_complete: bool = False) -> DatasetVersion:
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
            >>> before = client.version("weather")
            >>> before == client.version("weather")
            True
        """
        return self._run(self._client.version(dataset, require_complete=require_complete))

    def children(
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
            >>> page = client.children("weather", order=["station"])
            >>> page.texts().to_pylist()
            ['EDDB', 'KCYS', 'KDEN']
        """
        return self._run(
            self._client.children(
                dataset,
                vertex,
                order=order,
                limit=limit,
                after=after,
                require_complete=require_complete,
            )
        )

    def tree(
        self,
        dataset: str,
        vertex: str | Sequence[Any] = "",
        *,
        order: Sequence[str] | None = None,
        depth: int | None = None,
        require_complete: bool = False,
    ) -> Iterator[Vertex]:
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
            >>> for vertex in client.tree("weather", order=["station"]):
            ...     print(vertex.value, vertex.observations)
            EDDB 1
            KCYS 1
            KDEN 2
        """
        return self._iterate(
            self._client.tree(
                dataset, vertex, order=order, depth=depth, require_complete=require_complete
            )
        )

    def estimate(
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
            >>> estimate = client.estimate("weather", "temperature > 290")
            >>> estimate.low <= 2 <= estimate.high
            True
        """
        return self._run(
            self._client.estimate(
                dataset,
                query,
                feature=feature,
                quantiles=quantiles,
                require_complete=require_complete,
            )
        )
