"""Scrubs of several nodes, some of which refuse, without a network."""

from __future__ import annotations

from typing import Any, cast

import pytest

from galileo.client.scrubs import ScrubProgress, scrub
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import Forbidden, GalileoError, NotOwner, Unavailable
from galileo.wire.caller import Caller
from galileo.wire.v1 import cluster_pb2

NODES = tuple(NodeInfo(name, f"{name}:7701") for name in ("a", "b"))
TOPOLOGY = Topology("test", (Group("g", NODES),), even_ranges(1))


class Nodes:
    """A `Caller` at whose nodes a scrub is over at once, but for one that raises an error."""

    def __init__(self, error: GalileoError) -> None:
        self._error = error

    async def call(self, call: Any) -> Topology:
        return TOPOLOGY

    async def ask(self, address: str, call: Any) -> cluster_pb2.ScrubReply:
        if address == "a:7701":
            raise self._error
        return cluster_pb2.ScrubReply(bytes_done=7, bytes_total=7, is_over=True)


async def progress(error: GalileoError) -> list[ScrubProgress]:
    return [one async for one in scrub(cast(Caller, Nodes(error)), [])]


@pytest.mark.parametrize("error", [Unavailable("away"), NotOwner("no node", reason="away")])
async def test_scrub_of_a_node_that_fails_says_why_and_goes_on_at_others(
    error: GalileoError,
) -> None:
    assert await progress(error) == [
        ScrubProgress("a", failure="away"),
        ScrubProgress("b", 7, 7, is_over=True),
    ]


async def test_scrub_without_the_right_to_is_forbidden() -> None:
    with pytest.raises(Forbidden):
        await progress(Forbidden("expected an administrator"))
