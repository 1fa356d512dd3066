"""The requests of a watch, each of which acknowledges the update before it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from galileo.client import decode
from galileo.client.results import Update
from galileo.cursor import Cursor
from galileo.errors import DeadlineExceeded, InputError
from galileo.packing import FORMAT_VERSION
from galileo.wire.v1 import continuous_pb2

WAIT_S = 10.0
PAUSE_S = 0.2
SILENCE_S = 30.0
"""A node that does not answer so long after it should is left for another try, with the token."""


def request(
    ccq_id: str, token: str, *, wait_s: float, labels_max: int
) -> continuous_pb2.FetchRequest:
    if not isinstance(token, str):
        raise InputError(f"expected the token of an update (update.token), got {token!r}")
    if not isinstance(labels_max, int) or labels_max < 0:
        raise InputError(f"expected labels_max as a whole number, or 0, got {labels_max!r}")
    return continuous_pb2.FetchRequest(
        ccq_id=ccq_id,
        token=token,
        wait_s=wait_s,
        labels_max=labels_max,
        packing=FORMAT_VERSION,
    )


async def next_update(call: Any, asking: continuous_pb2.FetchRequest) -> Update:
    """The next update of a watch's stream.

    Raises:
        DeadlineExceeded: the node says nothing, though its connection holds.
    """
    within_s = asking.wait_s + SILENCE_S
    try:
        async with asyncio.timeout(within_s):
            # A stream that has ended takes no request; what is read of it says why it ended.
            with contextlib.suppress(asyncio.InvalidStateError):
                await call.write(asking)
    except TimeoutError as error:
        message = f"the node accepted no request of the watch for {within_s:g} s; try again"
        raise DeadlineExceeded(message) from error
    return await decode.next_update(call, begins_within_s=within_s)


def advanced_frontiers(
    reported: Mapping[str, Cursor], frontiers: Mapping[str, Cursor]
) -> dict[str, Cursor]:
    """The frontiers of those queries that are beyond the ones reported last."""
    return {
        ccq_id: frontier
        for ccq_id, frontier in frontiers.items()
        if ccq_id in reported and not reported[ccq_id].covers(frontier)
    }
