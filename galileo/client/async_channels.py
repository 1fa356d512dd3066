"""The calls of `AsyncClient` about channels: create, subscribe, follow."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.ingestion import Progress, in_thread
from galileo.client.lost_commits import GoingOn, naming_token
from galileo.client.results import ChannelPartition, Notifications, Receipt
from galileo.client.row_changes import KnownRow, change_row, read_row, replace_row
from galileo.client.stored_rows import Keys, keyed
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import GalileoError, InputError
from galileo.formats import CsvOptions
from galileo.formats.source import BATCH_ROWS
from galileo.labels import from_ipc
from galileo.model.broker import check_names
from galileo.model.channel import (
    BROKER,
    LEFT,
    MATCHES_SCHEMA,
    SHARE_BYTES_MAX,
    Channel,
)
from galileo.model.reader import (
    ACKNOWLEDGED,
    POSITIONS,
    PROGRESS,
    TOKEN,
    WORKER,
    reader_of,
)
from galileo.model.table import Table, deleted_rows
from galileo.model.times import Duration, seconds
from galileo.wire import token as tokens
from galileo.wire.caller import Connection
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.follow_parts import FollowParts
from galileo.wire.services import CHANNELS
from galileo.wire.v1 import channels_pb2

ANSWER_BYTES = 16 << 20
"""A call for notifications ends after so many bytes; the next one goes on there."""
WAIT_S = 5.0
"""Seconds that a node waits for something new before it answers that there is nothing."""
IDLE_ADVANCE_S = 60.0
"""`follow` moves a position past executions that have nothing for its broker so often."""


class AsyncChannels(Calls):
    """Continuous queries with parameters, and their subscriptions."""

    async def create_channel(self, channel: Channel) -> None:
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
            >>> await client.create_channel(hot)
        """
        instance_of(
            Channel,
            channel,
            "a channel, such as galileo.Channel('hot', 'weather', 'temperature > :least')",
        )
        await self._create(channel.unbound)

    async def channels(self) -> list[Channel]:
        """All channels.

        Example:
            >>> "hot" in [channel.name for channel in await client.channels()]
            True
        """
        return await self._read_channels()

    async def subscribe(
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
            >>> receipt = await client.subscribe("hot", subscriptions, broker="me")
            >>> receipt.rows
            2
        """
        known = await self._channel(channel)

        def prepare(_: Table, rows: pa.Table) -> pa.Table:
            return _with_broker(rows, broker)

        return await self._store(
            known.subscription_table,
            subscriptions,
            prepare,
            csv=csv,
            producer=producer,
            first_batch=first_batch,
            batch_rows=batch_rows,
            progress=progress,
        )

    async def unsubscribe(
        self, channel: str, ids: Keys, *, csv: CsvOptions | None = None
    ) -> Receipt:
        """Removes subscriptions; unknown ids are ignored.

        What is committed to the dataset after the call has returned is not matched any more.

        Args:
            channel: its name.
            ids: a list, or rows with a column `id`.
            csv: how a CSV file is written.

        Raises:
            Forbidden: as of `subscribe`.

        Example:
            >>> receipt = await client.unsubscribe("hot", ["bert"])
            >>> (await client.table("hot.subscriptions")).rows["id"].to_pylist()
            ['anna']
        """
        known = await self._channel(channel)
        return await self._store(
            known.subscription_table, ids, deleted_rows, rows_of=keyed, csv=csv
        )

    async def position(self, channel: str, broker: str) -> str:
        """The token that a broker has stored with `acknowledge`; "" if there is none.

        Example:
            >>> await client.position("hot", "me")
            ''
        """
        reader = _reader(await self._channel(channel), broker)
        return (await read_row(self, POSITIONS, reader))[TOKEN] or ""

    async def acknowledge(self, channel: str, broker: str, token: str) -> None:
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
            >>> batches = await client.fetch_notifications("hot", "me", wait="5s")
            >>> await client.acknowledge("hot", "me", batches[-1].token)
            >>> await client.position("hot", "me") == batches[-1].token
            True
        """
        reader = _reader(await self._channel(channel), broker)
        if token:
            tokens.decode(token, ccq_id=reader)

        def change(row: KnownRow) -> dict[str, Any]:
            return {TOKEN: token, PROGRESS: "", ACKNOWLEDGED: (row[ACKNOWLEDGED] or 0) + 1}

        await change_row(self, POSITIONS, reader, change)

    def follow(
        self, channel: str, broker: str, *, token: str = "", wait: Duration | None = None
    ) -> AsyncIterator[Notifications]:
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
            >>> receipt = await client.ingest("weather", warm_day)
            >>> async for batch in client.follow("hot", "me"):
            ...     print(batch.to_arrow()["subscription"].to_pylist())
            ...     break
            ['anna']
        """
        limit_s = math.inf if wait is None else seconds(wait)
        return GoingOn(lambda token: self._followed(channel, broker, token, limit_s), token)

    async def _followed(
        self, channel: str, broker: str, token: str, limit_s: float
    ) -> AsyncGenerator[Notifications, None]:
        """The notifications behind a token; ends when nothing new has come for so long."""
        news_at = time.monotonic()
        given, given_at = token, news_at
        while (left_s := news_at + limit_s - time.monotonic()) > 0:
            wait_s = min(WAIT_S, left_s)
            for batch in await self.fetch_notifications(channel, broker, token=token, wait=wait_s):
                token = batch.token
                if batch.execution or batch.gone:
                    yield batch
                    news_at = given_at = time.monotonic()
                    given = token
            is_over = news_at + limit_s <= time.monotonic()
            if token != given and (is_over or time.monotonic() - given_at > IDLE_ADVANCE_S):
                given_at = time.monotonic()
                if await self._advance(channel, broker, given, token):
                    given = token

    async def fetch_notifications(
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
            >>> batches = await client.fetch_notifications("hot", "me", wait="5s")
            >>> token = batches[-1].token
        """
        known = await self._channel(channel)
        reader = _reader(known, broker)
        cursor = tokens.decode(token, ccq_id=reader) if token else EMPTY_CURSOR
        wait_s = 0.0 if wait is None else seconds(wait)
        with naming_token(token or tokens.encode(reader, cursor), reader):
            parts = await self._follow(known, broker, cursor, wait_s=wait_s, bytes_max=bytes_max)
        return await in_thread(_batches, known, reader, cursor, parts)

    async def describe_channel(self, channel: str) -> list[ChannelPartition]:
        """How far the executions are, for each partition of the subscriptions.

        Partitions of nodes that cannot be reached are missing.

        Example:
            >>> partitions = await client.describe_channel("hot")
            >>> [partition.failure for partition in partitions if partition.failure]
            []
        """
        return await self._channel_partitions(channel)

    async def _follow(
        self, channel: Channel, broker: str, after: Cursor, *, wait_s: float, bytes_max: int
    ) -> list[channels_pb2.FollowPart]:
        """What is new after a cursor, or a beginning of it."""
        request = channels_pb2.FollowRequest(
            dataset=channel.key, broker=broker, after=cursor_to_pb(after), wait_s=wait_s
        )

        async def attempt(node: Connection) -> list[channels_pb2.FollowPart]:
            whole, size, pieces = list[channels_pb2.FollowPart](), 0, FollowParts()
            timeout_s = wait_s + ANSWER_S
            with node.stream(CHANNELS, "Follow", request, timeout_s=timeout_s) as stream:
                async for message in stream:
                    part = pieces.take(message)
                    if part is not None:
                        whole.append(part)
                        size += len(part.observations) + len(part.matches)
                    if size > bytes_max:
                        break
            return whole

        return await self._caller.call(attempt)

    async def _advance(self, channel: str, broker: str, given: str, token: str) -> bool:
        """Moves the position of a broker past executions that have nothing for it.

        Args:
            channel: its name.
            broker: whose position.
            given: the token of the last notifications; nothing is moved if they are not
                acknowledged, or a worker pushes for the broker.
            token: behind the executions.

        Returns:
            Whether the position was moved.
        """
        with suppress(GalileoError):  # The caller may have no right to, and need not.
            row = await read_row(self, POSITIONS, _reader(await self._channel(channel), broker))
            if row.is_stored and (row[TOKEN] or "") == given and not row[WORKER]:
                await replace_row(self, POSITIONS, row, **{TOKEN: token})
                return True
        return False


def _reader(channel: Channel, broker: str) -> str:
    """What the tokens of a broker name."""
    return reader_of(channel, instance_of(str, broker, "the name of a broker"))


def _with_broker(rows: pa.Table, broker: str | None) -> pa.Table:
    if broker is None:
        if BROKER in rows.column_names:
            check_names(rows.column(BROKER))
        return rows
    if BROKER in rows.column_names:
        raise InputError(
            "expected the broker as a column of the subscriptions or as an argument, got both",
            parameter="broker",
        )
    check_names(pa.array([instance_of(str, broker, "the name of a broker")]))
    return rows.append_column(BROKER, pa.repeat(pa.scalar(broker), rows.num_rows))


def _batches(
    channel: Channel, reader: str, cursor: Cursor, parts: Sequence[channels_pb2.FollowPart]
) -> list[Notifications]:
    """What follows a cursor; the last item has the token to go on with. Runs in a thread."""
    batches = []
    for part in parts:
        gone = tuple(
            CommitRange(partition, cursor[partition] + 1, last)
            for partition, last in cursor_from_pb(part.gone).items()
        )
        cursor = cursor.join(cursor_from_pb(part.reached))
        if part.execution or gone:
            batches.append(_notifications(channel, part, tokens.encode(reader, cursor), gone))
    reached = tokens.encode(reader, cursor)
    if not batches or batches[-1].token != reached:
        batches.append(_notifications(channel, channels_pb2.FollowPart(), reached, ()))
    return batches


def _notifications(
    channel: Channel, part: channels_pb2.FollowPart, token: str, gone: tuple[CommitRange, ...]
) -> Notifications:
    observations, matches = channel.delivered_schema.empty_table(), MATCHES_SCHEMA.empty_table()
    if part.execution:
        bytes_max = 2 * SHARE_BYTES_MAX  # Streams align what they have.
        observations = from_ipc(part.observations, channel.delivered_schema, bytes_max=bytes_max)
        matches = from_ipc(part.matches, MATCHES_SCHEMA, bytes_max=bytes_max)
    return Notifications(
        partition=part.partition,
        execution=part.execution,
        observations=observations,
        matches=matches if channel.leave else matches.drop_columns([LEFT]),
        token=token,
        gone=gone,
    )
