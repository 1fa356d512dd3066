"""The calls of `AsyncClient` about brokers to which workers push."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.results import Delivery
from galileo.client.row_changes import KnownRow, change_row
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import InvalidToken
from galileo.model.broker import BROKERS, Broker, brokers_of, unknown_broker
from galileo.model.channel import Channel
from galileo.model.reader import (
    FAILED_AT,
    FAILURE,
    GONE,
    POSITIONS,
    READER,
    RETRY_AT,
    TOKEN,
    WORKER,
    positions_of,
)
from galileo.wire import token as tokens


class AsyncBrokers(Calls):
    """Brokers: what subscriptions of channels name, and where their notifications go."""

    async def create_broker(self, broker: Broker) -> None:
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
            >>> await client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> mail = galileo.Broker("mail", channels=["hot"], hold="30d")
            >>> await client.create_broker(mail)
            >>> {"mail", "ops"} <= {broker.name for broker in await client.brokers()}
            True
        """
        instance_of(Broker, broker, "a broker, such as galileo.Broker('mail')")
        definition = json.dumps(broker.to_dict())
        await self._store_broker(broker.name, definition=definition, paused="")

    async def brokers(self) -> list[Broker]:
        """All brokers that were created, by name.

        One whose stored definition cannot be read is `paused` for that reason, and has no sink.

        Example:
            >>> await client.create_broker(galileo.Broker("mail"))
            >>> "mail" in [broker.name for broker in await client.brokers()]
            True
        """
        stored = await self._read_rows(BROKERS.name)
        return sorted(brokers_of(stored.rows).values(), key=lambda broker: broker.name)

    async def drop_broker(self, name: str) -> None:
        """Removes a broker; its subscriptions, notifications and positions stay.

        Results are not held for it any more.

        Raises:
            UnknownBroker: there is none.

        Example:
            >>> await client.create_broker(galileo.Broker("old"))
            >>> await client.drop_broker("old")
        """
        await self._change_broker(name, definition="", paused="")

    async def pause_broker(self, name: str, reason: str = "paused by hand") -> None:
        """Stops pushing for a broker, until `resume_broker`; notifications are kept meanwhile.

        Args:
            name: of the broker.
            reason: which lists of brokers show.

        Raises:
            UnknownBroker: there is none.

        Example:
            >>> await client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> await client.pause_broker("ops", "the endpoint is moved")
            >>> {broker.name: broker.paused for broker in await client.brokers()}["ops"]
            'the endpoint is moved'
        """
        await self._change_broker(name, paused=reason or "paused by hand")

    async def resume_broker(self, name: str) -> None:
        """Goes on with pushing for a broker. Errors as `pause_broker`.

        Example:
            >>> await client.create_broker(galileo.Broker("ops", galileo.Into("alerts")))
            >>> await client.resume_broker("ops")
        """
        await self._change_broker(name, paused="")

    async def deliveries(self, channel: str) -> list[Delivery]:
        """How far brokers are that have a position: those that are pushed to, or acknowledge.

        Args:
            channel: its name.

        Example:
            >>> await client.acknowledge("hot", "me", "")
            >>> [(one.broker, one.failure) for one in await client.deliveries("hot")]
            [('me', '')]
        """
        known = await self._channel(channel)
        ends = {one.partition: one.execution for one in await self._channel_partitions(channel)}
        rows = positions_of(known, (await self._read_rows(POSITIONS.name)).rows)
        return [_delivery(known, broker, row, ends) for broker, row in rows.items()]

    async def _change_broker(self, name: str, **changes: Any) -> None:
        names = [broker.name for broker in await self.brokers()]
        if name not in names:
            raise unknown_broker(name, names)
        await self._store_broker(name, **changes)

    async def _store_broker(self, name: str, **changes: Any) -> None:
        def change(row: KnownRow) -> dict[str, Any]:
            return changes | {"revision": (row["revision"] or 0) + 1}

        await change_row(self, BROKERS, name, change)


def _delivery(
    channel: Channel, broker: str, row: dict[str, Any], ends: Mapping[int, int]
) -> Delivery:
    """What a row of positions says, where executions have come to `ends` by partition."""
    token = row[TOKEN] or ""
    cursor, failure = EMPTY_CURSOR, row[FAILURE] or ""
    try:
        cursor = tokens.decode(token, ccq_id=row[READER]) if token else cursor
    except InvalidToken as error:
        failure = f"its position cannot be read: {error.message}"
    return Delivery(
        channel=channel.name,
        broker=broker,
        token=token,
        worker=row[WORKER] or "",
        failure=failure,
        failed_at=row[FAILED_AT],
        retry_at=row[RETRY_AT],
        behind=sum(max(0, end - cursor[partition]) for partition, end in ends.items()),
        gone=row[GONE] or 0,
    )
