"""Calls and the bytes of their requests are bounded before they are read, and given back after."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from stopped_clock import StoppedClock
from waiting import until

from galileo.dht.topology import PARTITIONS_MAX
from galileo.errors import DeadlineExceeded, GalileoError, InputError, MessageTooLarge, Overloaded
from galileo.rpc import admission
from galileo.rpc.access import PUBLIC
from galileo.rpc.admission import (
    FIELDS_MAX,
    NAME_CHARACTERS_MAX,
    SMALL_REQUEST_BYTES_MAX,
    Admission,
    _check_values,
)
from galileo.rpc.call_log import CallTracker
from galileo.rpc.interceptor import CallInterceptor
from galileo.rpc.internal import SERVICE
from galileo.rpc.peers import GOSSIP
from galileo.rpc.policy import HEARTBEATS, POLICIES
from galileo.rpc.replication import REPLICATE
from galileo.shares import SHARE_HOLDER, ShareHolder
from galileo.wire.channel import (
    PIECE_BYTES,
    node_server_options,
    open_blocking_channel,
    open_channel,
    server_options,
    short_name,
)
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import cluster_pb2, policy_pb2, query_pb2, storage_pb2
from galileo.wire.zero_copy import has_more_fields

PACKAGE = "/galileo.v1."
TIMEOUT_S = 300.0
INGEST, STATUS, LIST = (
    f"{PACKAGE}{name}" for name in ("Storage/Ingest", "Cluster/Status", "Continuous/List")
)
HEARTBEAT = GOSSIP.path
WATCH, RUN, SCAN, SELECT, ECHO = (
    f"{PACKAGE}{name}"
    for name in ("Continuous/Watch", "Query/Run", "Storage/Scan", "Storage/Select", "Storage/Read")
)
ANN = ShareHolder("ipv4:10.0.0.1", "ann")


@dataclass
class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Calls that wait until they are let go, and answer with the length of their request."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    holders: list[ShareHolder] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> object:
        if details.method == WATCH:
            return grpc.stream_stream_rpc_method_handler(self.each)
        if details.method == RUN:
            return grpc.unary_stream_rpc_method_handler(self.stream)
        if details.method == ECHO:
            return grpc.unary_stream_rpc_method_handler(self.echo)
        if details.method == SELECT:
            return grpc.unary_stream_rpc_method_handler(self.pour)
        decode = storage_pb2.ScanRequest.FromString if details.method == SCAN else None
        return grpc.unary_unary_rpc_method_handler(self.answer, request_deserializer=decode)

    async def answer(self, request: Any, context: object) -> bytes:
        self.begun += 1
        self.holders.append(SHARE_HOLDER.get())
        await self.go.wait()
        return b"%d" % (len(request) if isinstance(request, bytes) else len(request.items))

    async def stream(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        yield b"%d" % len(request)
        await self.go.wait()

    async def pour(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        """One with an empty request never comes to an end."""
        self.begun += 1
        while not (request and self.go.is_set()):
            yield bytes(1 << 20)
        yield b"last"

    async def echo(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        yield request

    async def each(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield b"%d" % len(request)


@dataclass
class Served:
    limits: Admission
    handlers: Handlers
    channel: grpc.aio.Channel
    port: int

    def call(self, method: str, request: bytes = b"") -> grpc.aio.UnaryUnaryCall:
        return self.channel.unary_unary(method)(request, timeout=TIMEOUT_S)

    async def refused(self, method: str, request: bytes = b"") -> GalileoError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, request)
        return error_of_rpc(caught.value, asked="the node")

    async def refused_stream(self, method: str) -> GalileoError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.channel.unary_stream(method)(b"", timeout=TIMEOUT_S).read()
        return error_of_rpc(caught.value, asked="the node")

    async def until(self, calls: int) -> None:
        """So many are under way."""
        await until(lambda: self.limits.calls == calls)

    async def begun(self, calls: int) -> None:
        """So many handlers were called."""
        await until(lambda: self.handlers.begun >= calls)


BOUNDS = {
    "CALLS_MAX": 7,
    "REQUESTS_BYTES_MAX": 6 * SMALL_REQUEST_BYTES_MAX,
    "BULK_BYTES_MAX": 64 * PIECE_BYTES,
    "ROOM_WITHIN_S": 0.2,
}
SHARE = 4
"""Calls that one caller may have of `CALLS_MAX`."""
STAYS_AWAY = {**BOUNDS, "ARRIVES_WITHIN_S": 0.5}
READINGS = {"READINGS_MAX": 3, "GIVES_WAY_S": 0.1, "ROOM_WITHIN_S": TIMEOUT_S}
READ = {"READINGS_MAX": 3, "GIVES_WAY_S": 2.0, "ROOM_WITHIN_S": 4.0}
"""Longer than any reader waits. One caller may have two readers of three."""


@pytest.fixture
async def served(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    for name, value in getattr(request, "param", BOUNDS).items():
        monkeypatch.setattr(admission, name, value)
    limits, handlers = Admission(), Handlers()
    interceptor = CallInterceptor(CallTracker(), admission=limits)
    server = grpc.aio.server(interceptors=[interceptor], options=server_options())
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield Served(limits, handlers, channel, port)
    await server.stop(None)


async def test_admission_above_calls_max_is_overloaded(served: Served) -> None:
    calls = [served.call(STATUS) for _ in range(SHARE)]
    await served.begun(SHARE)
    error = await served.refused(STATUS)
    assert isinstance(error, Overloaded)
    assert error.details["after_s"] == admission.RETRY_AFTER_S
    heartbeat = served.call(HEARTBEAT, b"12")
    served.handlers.go.set()
    assert await heartbeat == b"2"
    assert await asyncio.gather(*calls) == [b"0"] * SHARE
    await served.until(0)
    assert served.limits.requests_bytes == 0
    assert await served.call(STATUS, b"123") == b"3"


async def test_admission_names_the_caller_for_turns(served: Served) -> None:
    served.handlers.go.set()
    await served.call(STATUS)
    (holder,) = served.handlers.holders
    assert holder.host.startswith("ipv4:")


async def test_admission_counts_request_bytes_until_the_call_ends(served: Served) -> None:
    size = 1_000_000
    calls = [served.call(STATUS, bytes(size)) for _ in range(3)]
    await served.begun(3)
    assert served.limits.requests_bytes == 3 * size
    error = await served.refused(LIST, bytes(200_000))
    assert isinstance(error, Overloaded)
    calls[0].cancel()
    await served.until(2)
    fourth = served.call(LIST, bytes(200_000))
    await served.begun(4)
    served.handlers.go.set()
    assert await fourth == b"200000"
    assert await asyncio.gather(*calls[1:]) == [b"1000000"] * 2
    await served.until(0)
    assert served.limits.requests_bytes == 0


async def test_admission_of_a_small_ingest_keeps_room_for_what_it_has(served: Served) -> None:
    call = served.call(INGEST, b"12")
    await served.begun(1)
    assert served.limits.requests_bytes == 2
    served.handlers.go.set()
    assert await call == b"2"


@pytest.mark.parametrize("served", [STAYS_AWAY], indirect=True)
async def test_admission_of_unfinished_uploads_admits_other_calls(served: Served) -> None:
    """An ingest whose request stays away, over HTTP/2 by hand."""
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(preface() + opened(INGEST) + data(b"\0\0\0\1\0" + b"x" * 10))
        await until(lambda: served.limits.requests_bytes == PIECE_BYTES)
        served.handlers.go.set()
        assert await served.call(STATUS, b"1") == b"1"
        assert await served.call(INGEST, b"12") == b"2"
        await served.until(0)
        assert served.limits.requests_bytes == 0


@pytest.mark.parametrize("served", [STAYS_AWAY], indirect=True)
async def test_admission_of_a_request_that_stays_away_ends_with_its_reason(served: Served) -> None:
    call = served.channel.stream_unary(INGEST)(timeout=TIMEOUT_S)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = error_of_rpc(caught.value, asked="the node")
    assert isinstance(error, DeadlineExceeded)
    assert error.message == "expected the request within 0.5 s; try again"
    await served.until(0)
    assert not served.handlers.begun


async def test_admission_of_a_slow_request_ends_it_while_others_wait(served: Served) -> None:
    clock = StoppedClock()
    served.limits._bulk.monotonic = clock
    slow = served.channel.stream_unary(INGEST)(timeout=TIMEOUT_S)
    await until(lambda: served.limits.requests_bytes == PIECE_BYTES)
    fast = served.channel.stream_unary(INGEST)(timeout=TIMEOUT_S)
    await fast.write(bytes(PIECE_BYTES))
    clock.now = 9.0
    served.limits._bulk.relieve()
    await until(lambda: served.limits.requests_bytes == 3 * PIECE_BYTES)
    clock.now = 11.0
    served.limits._bulk.relieve()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await slow
    error = error_of_rpc(caught.value, asked="the node")
    assert isinstance(error, Overloaded)
    assert "1,000 bytes a second" in error.message
    await until(lambda: served.limits.requests_bytes == 2 * PIECE_BYTES)
    await fast.write(b"12")
    served.handlers.go.set()
    assert await fast == b"%d" % (PIECE_BYTES + 2)


async def test_admission_reserves_room_as_the_pieces_of_a_request_arrive(served: Served) -> None:
    call = served.channel.stream_unary(INGEST)(timeout=TIMEOUT_S)
    for held in range(PIECE_BYTES, 5 * PIECE_BYTES, PIECE_BYTES):
        await until(lambda held=held: served.limits.requests_bytes == held)  # type: ignore[misc]
        await call.write(bytes(PIECE_BYTES))
    await call.write(b"last")
    await until(lambda: served.limits.requests_bytes == 4 * PIECE_BYTES + 4)
    served.handlers.go.set()
    assert await call == b"%d" % (4 * PIECE_BYTES + 4)
    await served.until(0)
    assert served.limits.requests_bytes == 0


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5])
async def test_request_of_any_size_arrives_whole_in_small_messages(size: int) -> None:
    handlers = Handlers()
    handlers.go.set()
    server = grpc.aio.server(
        interceptors=[CallInterceptor(CallTracker())], options=node_server_options()
    )
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sent = bytes(range(256)) * (size // 256 + 1)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        assert await channel.unary_unary(INGEST)(sent[:size]) == b"%d" % size
        replies = channel.unary_stream(ECHO)(sent[:size])
        assert [reply async for reply in replies] == [sent[:size]]
    with open_blocking_channel(f"127.0.0.1:{port}") as blocking:
        call = functools.partial(blocking.unary_unary(INGEST), sent[:size], timeout=TIMEOUT_S)
        assert await asyncio.to_thread(call) == b"%d" % size
    await server.stop(None)


@pytest.mark.parametrize("served", [{"PUBLIC_CALLS_MAX": 2}], indirect=True)
async def test_admission_bounds_calls_that_need_no_token(served: Served) -> None:
    [health] = PUBLIC - {"/grpc.health.v1.Health/Check"}
    first = served.call(health)
    await served.begun(1)
    assert isinstance(await served.refused(health), Overloaded)
    served.handlers.go.set()
    assert await first == b"0"
    assert await served.call(STATUS, b"1") == b"1"


async def test_admission_releases_bytes_of_a_disconnected_caller(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(preface() + opened(INGEST))
        await served.until(1)
    await served.until(0)
    assert served.limits.requests_bytes == 0


@pytest.mark.parametrize("served", [{}], indirect=True)
@pytest.mark.parametrize(
    ("method", "most"),
    [(STATUS, SMALL_REQUEST_BYTES_MAX), (RUN, admission.QUERY_REQUEST_BYTES_MAX)],
)
async def test_admission_bounds_request_bytes_by_method(
    served: Served, method: str, most: int
) -> None:
    served.handlers.go.set()
    whole = message(most)
    if method == RUN:
        replies = served.channel.unary_stream(method)(whole, timeout=TIMEOUT_S)
        assert [reply async for reply in replies] == [str(most).encode()]
    else:
        assert await served.call(method, whole) == str(most).encode()
    error = await served.refused(method, bytes(most + 1))
    assert isinstance(error, MessageTooLarge)
    assert f"at most {most:,} bytes" in error.message


async def test_admission_checks_each_request_of_a_stream(served: Served) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield bytes(10)
        yield message(admission.QUERY_REQUEST_BYTES_MAX)
        yield bytes(admission.QUERY_REQUEST_BYTES_MAX + 1)

    replies = served.channel.stream_stream(WATCH)(sent(), timeout=TIMEOUT_S)
    assert [await replies.read() for _ in range(2)] == [b"10", b"8388608"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await replies.read()
    assert isinstance(error_of_rpc(caught.value, asked="the node"), MessageTooLarge)


async def test_admission_of_too_many_fields_is_refused_before_decoding(
    served: Served,
) -> None:
    served.handlers.go.set()
    empty = storage_pb2.ScanRequest(items=[storage_pb2.ScanItem()])
    error = await served.refused(SCAN, empty.SerializeToString() * (1 << 20))
    assert isinstance(error, MessageTooLarge)
    assert error.details["bound"] == FIELDS_MAX
    long = storage_pb2.ScanRequest(items=[storage_pb2.ScanItem(query_json="x" * 3_000)] * 1_000)
    assert await served.call(SCAN, long.SerializeToString()) == b"1000"


@pytest.mark.parametrize(
    "message",
    [
        storage_pb2.ScanRequest(items=[storage_pb2.ScanItem()] * (FIELDS_MAX + 1)),
        storage_pb2.ScanRequest(items=[{"partitions": range(FIELDS_MAX + 1)}]),
        storage_pb2.ScanRequest(items=[{"after": {"sequences": range(FIELDS_MAX + 1)}}]),
        storage_pb2.ScanRequest(items=[{"after": {}}] * (FIELDS_MAX // 2 + 1)),
    ],
    ids=["messages", "numbers", "deeper", "messages in messages"],
)
async def test_admission_of_too_many_values_of_a_client_is_refused(
    served: Served, message: storage_pb2.ScanRequest
) -> None:
    served.handlers.go.set()
    error = await served.refused(SCAN, message.SerializeToString())
    assert isinstance(error, MessageTooLarge)
    assert error.details["bound"] == FIELDS_MAX
    whole = storage_pb2.ScanRequest(items=[{"partitions": range(PARTITIONS_MAX)}])
    assert await served.call(SCAN, whole.SerializeToString()) == b"1"


async def test_admission_of_a_long_name_of_a_client_is_refused(served: Served) -> None:
    served.handlers.go.set()
    long = "x" * (NAME_CHARACTERS_MAX + 1)
    named = storage_pb2.ScanRequest(items=[{"dataset": long}])
    error = await served.refused(SCAN, named.SerializeToString())
    assert isinstance(error, MessageTooLarge)
    assert error.details["bound"] == NAME_CHARACTERS_MAX
    others = storage_pb2.ScanRequest(items=[{"dataset": long[1:], "query_json": long}])
    assert await served.call(SCAN, others.SerializeToString()) == b"1"


@pytest.mark.parametrize(
    "wrong", [{"columns": ["n"] * (FIELDS_MAX + 1)}, {"dataset": "x" * (NAME_CHARACTERS_MAX + 1)}]
)
def test_check_of_values_includes_messages_with_bytes(wrong: dict[str, Any]) -> None:
    for parts in (b"", b"parts"):
        with pytest.raises(MessageTooLarge):
            _check_values(storage_pb2.ReadRequest(parts=parts, **wrong))
    _check_values(storage_pb2.ReadRequest(parts=b"p" * (FIELDS_MAX + 1), dataset="d"))


async def test_admission_of_invalid_protobuf_is_an_input_error(served: Served) -> None:
    error = await served.refused(SCAN, b"\xff\xff\xff")
    assert isinstance(error, InputError)
    assert isinstance(await served.refused(SCAN, b"\xff" * (2 << 20)), InputError)


@pytest.mark.parametrize("served", [READINGS], indirect=True)
async def test_admission_ends_a_stalled_reader_for_a_waiting_one(served: Served) -> None:
    def select(request: bytes = b"") -> grpc.aio.UnaryStreamCall:
        return served.channel.unary_stream(SELECT)(request, timeout=TIMEOUT_S)

    slow = [select() for _ in range(2)]
    await served.begun(2)
    first = [await one.read() for one in slow]
    assert [len(one) for one in first] == [1 << 20] * 2
    await asyncio.sleep(2 * admission.GIVES_WAY_S)
    third = select(b"ends")
    assert len(await third.read()) == 1 << 20
    await served.until(2)
    served.handlers.go.set()
    assert await drained(third)
    await served.until(1)
    for one in slow:
        one.cancel()
    await served.until(0)


@pytest.mark.slow
async def test_stream_slots_end_one_stalled_reader_per_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "GIVES_WAY_S", 0.05)
    readings = admission.StreamSlots(3)

    async def stalled() -> None:
        reading = await readings.begin(ANN, within_s=TIMEOUT_S)
        assert reading is not None
        reading.stalled_at = asyncio.get_running_loop().time()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    slow = [asyncio.create_task(stalled()) for _ in range(2)]
    await asyncio.sleep(0)
    third = asyncio.create_task(readings.begin(ANN, within_s=TIMEOUT_S))
    assert await third is not None
    assert [one.cancelling() for one in slow] == [1, 0]
    slow[1].cancel()
    await asyncio.wait(slow)


async def test_stream_slots_end_the_reader_that_has_stalled_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "GIVES_WAY_S", 1.0)
    readings, now = admission.StreamSlots(5), asyncio.get_running_loop().time()

    async def stalled(for_s: float) -> None:
        reading = await readings.begin(ANN, within_s=TIMEOUT_S)
        assert reading is not None
        reading.stalled_at = now - for_s
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(stalled(for_s)) for for_s in (5.0, 9.0, 7.0)]
    await asyncio.sleep(0)
    for _ in range(2):
        readings.relieve()
        assert [task.cancelling() for task in tasks] == [0, 1, 0], "one at a time"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_stream_slots_are_granted_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GIVES_WAY_S", 0.5)
    readings, order = admission.StreamSlots(1), list[str]()

    async def read(name: str) -> None:
        assert await readings.begin(ANN, within_s=60.0) is not None
        order.append(name)

    async def busy() -> None:
        assert await readings.begin(ANN, within_s=60.0) is not None
        await asyncio.sleep(0.6)

    calls = [asyncio.create_task(busy())]
    await asyncio.sleep(0)
    for name in ("first", "second"):
        calls.append(asyncio.create_task(read(name)))
        await asyncio.sleep(0.2)
    await asyncio.gather(*calls)
    assert order == ["first", "second"]


async def drained(call: grpc.aio.UnaryStreamCall) -> bool:
    """Whether it came to its end."""
    last = b""
    try:
        while (reply := await call.read()) is not grpc.aio.EOF:
            last = reply
    except grpc.aio.AioRpcError:
        return False
    return last == b"last"


@pytest.mark.slow
@pytest.mark.parametrize("served", [READ], indirect=True)
async def test_admission_keeps_active_readers_and_refuses_others(served: Served) -> None:
    calls = [served.channel.unary_stream(SELECT)(b"ends", timeout=TIMEOUT_S) for _ in range(2)]
    reading = [asyncio.create_task(drained(call)) for call in calls]
    await served.begun(2)
    error = await served.refused_stream(SELECT)
    assert isinstance(error, Overloaded)
    served.handlers.go.set()
    assert await asyncio.gather(*reading) == [True, True]


async def test_admission_of_compressed_messages_is_unimplemented(served: Served) -> None:
    """64 MiB of zeros would travel in 64 KiB."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.channel.unary_unary(STATUS)(
            bytes(1_000), timeout=TIMEOUT_S, compression=grpc.Compression.Gzip
        )
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# Written out once more, so that an option that is lost by mistake fails here.
BULK = """
    Storage/Ingest Storage/Read Storage/ReadTable Storage/Scan
    internal/register_queries internal/match internal/gossip
    internal/replicate_frames internal/commit internal/scan internal/scan_small
    internal/read internal/read_table internal/observations
"""
QUERIES = """
    Storage/Select Storage/Page Query/Run Continuous/Submit Continuous/Fetch Continuous/Watch
    Samplers/Upload Channels/Follow
    Analytics/Analyse Analytics/Estimate internal/analyse internal/fetch
    internal/change_row internal/change_rows internal/learn_row
"""


@pytest.mark.parametrize(("size", "names"), [(policy_pb2.BULK, BULK), (policy_pb2.QUERY, QUERIES)])
def test_policies_of_larger_requests_are_the_expected_ones(size: int, names: str) -> None:
    sized = {short_name(method) for method, policy in POLICIES.items() if policy.size == size}
    assert sized == set(names.split())


def test_policies_of_slots_heartbeats_and_single_fields_are_the_expected_ones() -> None:
    reads = {short_name(m) for m, p in POLICIES.items() if p.slot == policy_pb2.READ_SLOT}
    assert reads == {
        *("Storage/Select", "Storage/Page", "Storage/Read", "Storage/ReadTable"),
        *("internal/read", "internal/read_table", "internal/observations"),
    }
    assert {m for m, p in POLICIES.items() if p.slot == policy_pb2.QUERY_SLOT} == {RUN}
    single = {short_name(m) for m, p in POLICIES.items() if p.single_field}
    internal = {f"internal/{name}" for name in SERVICE.calls}
    assert single == {"Storage/Ingest", "Storage/Read", *internal}
    assert frozenset({HEARTBEAT, REPLICATE.path}) == HEARTBEATS


def test_has_more_fields_counts_up_to_its_bound() -> None:
    made = cluster_pb2.ListDatasetsReply(schemas_json=["a", "", "b" * 300]).SerializeToString()
    assert has_more_fields(made, 2)
    assert not has_more_fields(made, 3)
    assert has_more_fields(made + b"\xff", 2)


def message(size: int) -> bytes:
    """One of so many bytes, with one field."""
    head = query_pb2.QueryRequest(query="x" * size).ByteSize() - size
    return query_pb2.QueryRequest(query="x" * (size - head)).SerializeToString()


# --- HTTP/2 by hand: frames of length, type, flags and stream -----------------------------------


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    head = len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + content


def preface() -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")


def opened(method: str) -> bytes:
    named = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in named.items()
    )
    return frame(1, 4, 1, block)


def data(content: bytes) -> bytes:
    return frame(0, 0, 1, content)
