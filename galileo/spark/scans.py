"""Asking nodes for what is new: one streaming call to each, all of a task's nodes at once.

Runs in Python workers, which outlive a job, so channels stay open from tick to tick.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import AskElsewhere, Cancelled, GalileoError, Overloaded, TryAgain
from galileo.spark.tick import Share, TickItem
from galileo.wire.channel import open_channel
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.pb import storage_pb2, storage_pb2_grpc
from galileo.wire.status import error_from_pb, error_of_rpc

CHANNELS_MAX = 256
SHARE_BYTES_MAX = 256 << 20
# Of one node, in one cycle; what is left over comes with the next.
LABELS_PER_ITEM_MAX = 250_000


@dataclass(slots=True)
class Delta:
    """What one node said about one item; complete when `reached` or `error` is set."""

    item: int
    partitions: tuple[int, ...]
    labels: list[bytes] = field(default_factory=list)
    reached: Cursor | None = None
    error: GalileoError | None = None

    def take(self, part: storage_pb2.ScanPart) -> int:
        """Adds one part of the answer; returns its size in bytes."""
        match part.WhichOneof("part"):
            case "labels":
                self.labels.append(part.labels)
                return len(part.labels)
            case "reached":
                self.reached = restricted(cursor_from_pb(part.reached), self.partitions)
            case "error":
                self.error = error_from_pb(part.error)
        return 0


class Scanner:
    """The open channels of one worker and the event loop that they belong to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()

    def fetch(
        self, shares: Sequence[Share], items: Sequence[TickItem], *, timeout_s: float
    ) -> list[Delta]:
        """The complete answers of all nodes.

        A node that cannot be reached, or not in time, is absent: its partitions stay where
        they are. A node that refuses the call fails the items that it was asked.
        """
        return self._loop.run_until_complete(self._fetch_all(shares, items, timeout_s))

    def close(self) -> None:
        for channel in self._channels.values():
            self._loop.run_until_complete(channel.close())
        self._channels.clear()
        self._loop.close()

    async def _fetch_all(
        self, shares: Sequence[Share], items: Sequence[TickItem], timeout_s: float
    ) -> list[Delta]:
        channels = [await self._channel(share.address) for share in shares]
        found = await asyncio.gather(
            *(
                fetch_share(channel, share, items, timeout_s=timeout_s)
                for channel, share in zip(channels, shares, strict=True)
            )
        )
        return [delta for deltas in found for delta in deltas]

    async def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            while len(self._channels) >= CHANNELS_MAX:
                _, oldest = self._channels.popitem(last=False)
                await oldest.close()
            self._channels[address] = open_channel(address)
        self._channels.move_to_end(address)
        return self._channels[address]


async def fetch_share(
    channel: grpc.aio.Channel, share: Share, items: Sequence[TickItem], *, timeout_s: float
) -> list[Delta]:
    """The complete answers of one node; the others are left out."""
    deltas = {ask.item: Delta(ask.item, ask.partitions) for ask in share.asks}
    stub = storage_pb2_grpc.StorageStub(channel)
    call = stub.Scan(_request(share, items), timeout=timeout_s)
    try:
        await _receive(call, deltas)
    except grpc.RpcError as error:
        _fail(deltas, error_of_rpc(error, asked=share.address))
    except GalileoError as error:
        _fail(deltas, error)
    finally:
        call.cancel()
    return [delta for delta in deltas.values() if delta.reached is not None or delta.error]


async def _receive(call: grpc.aio.UnaryStreamCall, deltas: dict[int, Delta]) -> None:
    received = 0
    async for reply in call:
        for part in reply.parts:
            if part.item in deltas:
                received += deltas[part.item].take(part)
            if received > SHARE_BYTES_MAX:
                raise Overloaded(
                    f"expected at most {SHARE_BYTES_MAX} bytes of labels from one node in one "
                    "cycle; use a sampler, a narrower query or a shorter update interval"
                )


def _fail(deltas: dict[int, Delta], error: GalileoError) -> None:
    """A lost connection leaves items incomplete; anything else is their error."""
    lost = isinstance(error, TryAgain | AskElsewhere | Cancelled)
    if lost and not isinstance(error, Overloaded):
        return
    for delta in deltas.values():
        if delta.reached is None:
            delta.error = delta.error or error


def _request(share: Share, items: Sequence[TickItem]) -> storage_pb2.ScanRequest:
    return storage_pb2.ScanRequest(
        items=[
            storage_pb2.ScanItem(
                item=ask.item,
                dataset=items[ask.item].dataset,
                query_json=items[ask.item].query_json,
                after=cursor_to_pb(restricted(items[ask.item].after, ask.partitions)),
                partitions=ask.partitions,
                labels_max=LABELS_PER_ITEM_MAX,
            )
            for ask in share.asks
        ]
    )


def restricted(cursor: Cursor, partitions: Sequence[int]) -> Cursor:
    """The cursor as far as it concerns some partitions."""
    return Cursor({p: cursor[p] for p in partitions}) if cursor else ORIGIN
