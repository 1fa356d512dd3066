from __future__ import annotations

import grpc
import pytest

from galileo.cursor import Cursor
from galileo.errors import NotPermitted, Overloaded, UnknownDataset
from galileo.hashing import digest
from galileo.labels import LabelSet
from galileo.spark.owners import NodeScanner, fetch
from galileo.wire.caller import Caller

TIMEOUT_S = 300.0


@pytest.fixture
def ask(make_request):
    """`await ask(node, items)`: the answer of one node to the first group, asked about 0 and 3."""

    async def run(node, items, *, timeout_s=TIMEOUT_S, **limits):
        (request,) = make_request({node.address: [0, 3]}, items).requests
        caller = Caller()
        try:
            return await fetch(
                caller.connection(node.address), request.for_node(0), timeout_s=timeout_s, **limits
            )
        finally:
            await caller.close()

    return run


@pytest.fixture
def both(make_labels, schema):
    return LabelSet.concat(schema, [make_labels(0, range(1, 5)), make_labels(3, range(1, 3))])


def counts(answer, items):
    return [sum(int((part.matches.items == item).sum()) for part in answer.parts) for item in items]


async def test_fetch_returns_requested_partitions(serve_labels, both, ask):
    items = [{"partitions": []}, {"partitions": [0]}, {"after": Cursor({0: 3, 3: 1})}]
    async with serve_labels({"air": both}) as node:
        answer = await ask(node, items)
    (part,) = answer.parts
    assert part.items.tolist() == [0, 1], "of those that the node was asked about"
    assert part.reached == Cursor({0: 4, 3: 2})
    assert counts(answer, range(2)) == [40, 20]


async def test_fetch_reports_unknown_items(serve_labels, both, ask):
    async with serve_labels({"air": both}) as node:
        node.forgotten = {digest("x")}
        answer = await ask(node, [{"partitions": []}, {}, {"query_json": "x"}, {"query_json": "y"}])
    assert answer.unknown.tolist() == [1]
    assert answer.parts[0].items.tolist() == [0, 2]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_fetch_lost_node_has_no_answer(serve_labels, both, ask, code):
    async with serve_labels({"air": both}) as node:
        node.refusal = code
        answer = await ask(node, [{}])
    assert (answer.parts, answer.failures) == ((), ())


async def test_fetch_slow_node_has_no_answer(serve_labels, both, ask):
    async with serve_labels({"air": both}) as node:
        node.pause_s = 20.0
        answer = await ask(node, [{}], timeout_s=0.2)
    assert (answer.parts, answer.failures) == ((), ())


async def test_fetch_broken_stream_keeps_complete_parts(serve_labels, both, ask):
    async with serve_labels({"air": both}) as node:
        node.broken = True
        answer = await ask(node, [{}, {}])
    assert [part.items.tolist() for part in answer.parts] == [[0, 1]]
    assert answer.failures == ()


@pytest.mark.parametrize(
    ("dataset", "code", "kind"),
    [("air", grpc.StatusCode.PERMISSION_DENIED, NotPermitted), ("sea", None, UnknownDataset)],
)
async def test_fetch_refused_call_fails_its_items(serve_labels, both, ask, dataset, code, kind):
    async with serve_labels({"air": both}) as node:
        node.refusal = code
        answer = await ask(node, [{"dataset": dataset, "partitions": []}, {"dataset": dataset}])
    (failure,) = answer.failures
    assert failure.items.tolist() == [0]
    assert isinstance(failure.error, kind)


async def test_fetch_too_large_answer_is_an_error(serve_labels, both, ask):
    async with serve_labels({"air": both}) as node:
        answer = await ask(node, [{}], bytes_max=1_000)
    assert answer.parts == ()
    (failure,) = answer.failures
    assert failure.items.tolist() == [0]
    assert isinstance(failure.error, Overloaded)


def test_node_scanner_bounds_open_channels(make_request):
    (request,) = make_request({f"127.0.0.1:{n}": [n] for n in range(1, 5)}, [{}]).requests
    scanner = NodeScanner(channels_max=2)
    found = scanner.fetch([request.for_node(n) for n in range(4)], timeout_s=5.0)
    assert [matches.parts for matches in found] == [()] * 4
    assert len(scanner._caller._channels) == 2
    scanner.close()
