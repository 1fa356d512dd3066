"""Which errors are met with another try: every kind, on every call, over a real connection."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo import errors
from galileo.labels import LabelSet
from galileo.wire.caller import BackoffClock
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb

FAILURES = 3
"""As often a call fails before the node says that it has had enough."""
ENOUGH = errors.UnsupportedQuery("that is enough")
SCHEMA = galileo.Schema("some", [galileo.Feature("x")])
LABELS = LabelSet.empty(SCHEMA)
TABLE = pa.table(
    {"latitude": [1.0], "longitude": [2.0], "time": ["2014-03-01T00:00:00Z"], "x": [3.0]}
)
KINDS = [kind for kind, cls in errors.by_kind().items() if cls is not errors.GalileoError]
RETRIED = {kind for kind in KINDS if issubclass(errors.by_kind()[kind], errors.TransientError)}
BARE = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InputError,
    grpc.StatusCode.UNAUTHENTICATED: errors.NotPermitted,
    grpc.StatusCode.PERMISSION_DENIED: errors.NotPermitted,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNIMPLEMENTED: errors.InternalError,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
}
"""What gRPC itself answers, without a word of ours, and what that is taken for."""


async def drawn(pieces: Any) -> None:
    async for _ in pieces:
        pass


Call = Callable[[galileo.AsyncClient], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "query": lambda client: client.query("some", "x > 1"),
    "query_batches": lambda client: drawn(client.query_batches("some")),
    "read": lambda client: client.read(one_label()),
    "select": lambda client: client.select("some"),
    "count": lambda client: client.count("some"),
    "ingest": lambda client: client.ingest("some", TABLE),
    "submit": lambda client: client.submit("some", interval="1s", expiration="1h"),
    "fetch": lambda client: client.fetch("ccq-1"),
    "fetch and wait": lambda client: client.fetch("ccq-1", wait="1s"),
    "watch": lambda client: drawn(client.watch("ccq-1")),
    "summarise": lambda client: client.summarise("some", feature="x"),
    "nearest": lambda client: client.nearest("some", latitude=0, longitude=0),
    "list_ccqs": lambda client: client.list_ccqs(),
    "cancel": lambda client: client.cancel("ccq-1"),
    "status": lambda client: client.status(),
}


def one_label() -> LabelSet:
    """A label that names one row of one commit."""
    row = {field.name: None for field in LABELS.table.schema}
    row |= {"partition": 0, "sequence": 1, "row": 0, "rows": 1}
    filled = {
        field.name: pa.array([row[field.name]], field.type)
        if row[field.name] is not None or field.nullable
        else pa.array([0]).cast(field.type, safe=False)
        for field in LABELS.table.schema
    }
    return LabelSet(SCHEMA, pa.table(filled, schema=LABELS.table.schema))


class FailingNode(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call with the same error, and after some with another that ends all trying."""

    def __init__(self) -> None:
        self.fails: Callable[[Any], Awaitable[None]] = self.with_enough
        self.calls: Counter[str] = Counter()
        self.failures = FAILURES

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
            self.calls[details.method] += 1
            # A client whose write meets the end of its call sees that in place of the error.
            await anext(aiter(requests), None)
            if self.calls.total() > self.failures:
                await self.with_enough(context)
            await self.fails(context)
            yield b""

        # Streams both ways: to a client this looks like whichever kind of call it makes.
        return grpc.stream_stream_rpc_method_handler(answer)

    def begin(self, fails: Callable[[Any], Awaitable[None]]) -> None:
        self.fails = fails
        self.calls.clear()

    async def with_enough(self, context: Any) -> None:
        await abort_with(ENOUGH)(context)


def abort_with(error: errors.GalileoError) -> Callable[[Any], Awaitable[None]]:
    async def abort(context: Any) -> None:
        packed = error_to_pb(error).SerializeToString()
        await context.abort(code_of(error), error.message, ((METADATA_KEY, packed),))

    return abort


def abort_bare(code: grpc.StatusCode) -> Callable[[Any], Awaitable[None]]:
    async def abort(context: Any) -> None:
        await context.abort(code, "no word of ours")

    return abort


@pytest.fixture
async def node() -> AsyncIterator[tuple[FailingNode, galileo.AsyncClient]]:
    """A node that fails, and a client of it that does not really wait."""

    async def at_once(wait_s: float) -> None:
        assert wait_s > 0

    failing = FailingNode()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((failing,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with galileo.AsyncClient(f"127.0.0.1:{port}", timeout="30s") as client:
        client._caller.clock = BackoffClock(time.monotonic, at_once, random.Random(1).random)
        client._cache_schema(SCHEMA)
        yield failing, client
    await server.stop(None)


async def outcome(
    node: tuple[FailingNode, galileo.AsyncClient], call: Call
) -> tuple[type[errors.GalileoError], int]:
    """The error that a call ended with, and how often the node was asked."""
    failing, client = node
    with pytest.raises(errors.GalileoError) as raised:
        await call(client)
    return type(raised.value), failing.calls.total()


@pytest.mark.parametrize("name", CALLS)
async def test_calls_retry_transient_errors_only(
    name: str, node: tuple[FailingNode, galileo.AsyncClient]
) -> None:
    for kind in KINDS:
        cls = errors.by_kind()[kind]
        node[0].begin(abort_with(cls("not this time", after_s=0.0)))
        got, asked = await outcome(node, CALLS[name])
        if kind in RETRIED:
            assert (got, asked) == (errors.UnsupportedQuery, FAILURES + 1), kind
        else:
            assert (got, asked) == (cls, 1), kind


@pytest.mark.parametrize("name", ["query", "read", "ingest", "submit", "fetch"])
async def test_calls_retry_transient_grpc_status_only(
    name: str, node: tuple[FailingNode, galileo.AsyncClient]
) -> None:
    for code, cls in BARE.items():
        node[0].begin(abort_bare(code))
        got, asked = await outcome(node, CALLS[name])
        if issubclass(cls, errors.TransientError):
            assert (got, asked) == (errors.UnsupportedQuery, FAILURES + 1), code
        else:
            assert (got, asked) == (cls, 1), code


def test_retried_kinds_are_transient() -> None:
    assert {
        "transient",
        "unavailable",
        "overloaded",
        "deadline_exceeded",
        "partition_read_only",
    } <= RETRIED
    assert len(RETRIED) < len(KINDS) / 3


async def test_call_retries_end_after_the_timeout(
    node: tuple[FailingNode, galileo.AsyncClient],
) -> None:
    """The node never has enough; time passes only by waiting."""
    failing, client = node
    now = [0.0]

    async def sleep(wait_s: float) -> None:
        now[0] += wait_s

    client._caller.clock = BackoffClock(lambda: now[0], sleep, random.Random(2).random)
    failing.failures = 10**9
    failing.begin(abort_with(errors.Overloaded("busy")))
    with raises(errors.Overloaded):
        await client.query("some")
    assert 28.0 < now[0] <= 30.0
    assert 25 < failing.calls.total() < 50
