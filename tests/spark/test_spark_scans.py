from __future__ import annotations

import grpc
import pytest

from galileo.cursor import Cursor
from galileo.errors import NotPermitted, Overloaded
from galileo.spark import scans
from galileo.spark.scans import fetch_share
from galileo.spark.tick import Ask, Share, TickItem
from galileo.wire.channel import open_channel

TIMEOUT_S = 10.0


@pytest.fixture
def fetch(schema):
    """`await fetch(address, items, asks)`, over a channel of its own."""

    async def run(address, items, asks, *, timeout_s=TIMEOUT_S):
        channel = open_channel(address)
        try:
            made = [TickItem(i, schema.to_json(), "", a, "") for i, a in items]
            return await fetch_share(channel, Share(address, asks), made, timeout_s=timeout_s)
        finally:
            await channel.close()

    return run


async def test_each_item_gets_the_partitions_it_asks_for(serve_labels, make_labels, fetch, schema):
    air = make_labels(0, range(1, 5))
    both = type(air).concat(schema, [air, make_labels(3, range(1, 3))])
    items = [("air", Cursor()), ("air", Cursor({0: 3, 3: 1}))]
    async with serve_labels({"air": both}) as node:
        deltas = await fetch(node.address, items, (Ask(0, (0,)), Ask(1, (0, 3))))
    assert [delta.reached for delta in deltas] == [Cursor({0: 4}), Cursor({0: 4, 3: 2})]
    assert all(delta.labels for delta in deltas)


async def test_a_node_cannot_vouch_for_partitions_it_was_not_asked(
    serve_labels, make_labels, fetch, monkeypatch
):
    async with serve_labels({"air": make_labels(0, range(1, 5))}) as node:
        node.claim = Cursor({0: 4, 9: 100})
        (delta,) = await fetch(node.address, [("air", Cursor())], (Ask(0, (0,)),))
    assert delta.reached == Cursor({0: 4})


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_lost_node_says_nothing(serve_labels, make_labels, fetch, code):
    async with serve_labels({"air": make_labels(0, range(1, 5))}) as node:
        node.refusal = code
        assert await fetch(node.address, [("air", Cursor())], (Ask(0, (0,)),)) == []


async def test_a_slow_node_says_nothing(serve_labels, make_labels, fetch):
    async with serve_labels({"air": make_labels(0, range(1, 5))}) as node:
        node.pause_s = 20.0
        found = await fetch(node.address, [("air", Cursor())], (Ask(0, (0,)),), timeout_s=0.2)
    assert found == []


async def test_a_node_that_refuses_fails_what_it_was_asked(serve_labels, make_labels, fetch):
    async with serve_labels({"air": make_labels(0, range(1, 5))}) as node:
        node.refusal = grpc.StatusCode.PERMISSION_DENIED
        (delta,) = await fetch(node.address, [("air", Cursor())], (Ask(0, (0,)),))
    assert isinstance(delta.error, NotPermitted)
    assert delta.reached is None


async def test_what_was_complete_before_the_end_is_kept(
    serve_labels, make_labels, fetch, monkeypatch
):
    monkeypatch.setattr(scans, "SHARE_BYTES_MAX", 20_000)
    labels = {"air": make_labels(0, range(1, 3)), "sea": make_labels(0, range(1, 101))}
    items = [("air", Cursor()), ("sea", Cursor())]
    async with serve_labels(labels) as node:
        deltas = await fetch(node.address, items, (Ask(0, (0,)), Ask(1, (0,))))
    assert deltas[0].reached == Cursor({0: 2})
    assert deltas[0].error is None
    assert isinstance(deltas[1].error, Overloaded)
