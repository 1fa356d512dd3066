"""The client's side of a change of the geohash ranges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from galileo.client.arguments import instance_of
from galileo.errors import InputError, Unavailable
from galileo.wire.caller import Caller, Stream
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True, slots=True)
class RangesProgress:
    """The progress of a change of the ranges.

    Attributes:
        stage: "announce" while nodes learn of the ranges, "done".
        waiting: the nodes that do not know them yet.
    """

    stage: str
    waiting: tuple[str, ...] = ()


def set_ranges(
    caller: Caller, ranges: Sequence[tuple[str, str]]
) -> AsyncGenerator[RangesProgress, None]:
    """See `AsyncClient.set_ranges`."""
    request = cluster_pb2.SetRangesRequest(ranges=[_start(pair) for pair in ranges])
    shown: RangesProgress | None = None

    def is_progress(progress: RangesProgress) -> bool:
        nonlocal shown
        before, shown = shown, progress
        return before != progress

    async def rest() -> AsyncGenerator[RangesProgress, None]:
        stream, part = await caller.open(
            lambda one: one.stream(CLUSTER, "SetRanges", request), Stream.read
        )
        with stream:
            while part is not None:
                yield RangesProgress(part.stage, tuple(part.waiting))
                if part.stage == "done":
                    return
                part = await stream.read()
        raise Unavailable("the node closed the stream before the ranges were in force")

    return caller.resume(rest, is_progress=is_progress)


async def keep_ranges(caller: Caller) -> None:
    """See `AsyncClient.keep_ranges`."""
    request = cluster_pb2.SetRangesRequest(undo=True)
    stream, _ = await caller.open(
        lambda one: one.stream(CLUSTER, "SetRanges", request), Stream.read
    )
    stream.cancel()


def _start(pair: tuple[str, str]) -> cluster_pb2.RangeStart:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"expected pairs of a geohash and the name of a group, got {pair!r}")
    geohash, group = pair
    return cluster_pb2.RangeStart(
        geohash=instance_of(str, geohash, "the geohash where a range begins"),
        group=instance_of(str, group, "the name of a group"),
    )
