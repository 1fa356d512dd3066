"""Errors and limits across real sockets of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from partial_services import add_part

from galileo import errors
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.wire.channel import MESSAGE_BYTES_MAX, open_channel, server_options
from galileo.wire.services import CLUSTER, QUERY, stub_of
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import cluster_pb2, query_pb2

KINDS = errors.by_kind()

Raise = Callable[[], Exception]


class Failing:
    """Fails every call with the error that it was given, a stream after one part."""

    def __init__(self) -> None:
        self.error: Exception = errors.GalileoError("nothing chosen")

    @unary
    async def Topology(
        self, request: cluster_pb2.TopologyRequest, context: Context
    ) -> cluster_pb2.TopologyReply:
        raise self.error

    @unary
    async def ListDatasets(
        self, request: cluster_pb2.ListDatasetsRequest, context: Context
    ) -> cluster_pb2.ListDatasetsReply:
        return cluster_pb2.ListDatasetsReply(schemas_json=["x" * (MESSAGE_BYTES_MAX + 1)])

    @unary
    async def CreateDataset(
        self, request: cluster_pb2.CreateDatasetRequest, context: Context
    ) -> cluster_pb2.CreateDatasetReply:
        return cluster_pb2.CreateDatasetReply()

    @streaming
    async def Run(
        self, request: query_pb2.QueryRequest, context: Context
    ) -> AsyncIterator[query_pb2.QueryPart]:
        yield query_pb2.QueryPart(labels=b"the first part")
        raise self.error


class Line:
    """A server of `Failing`, and a channel to it."""

    def __init__(self) -> None:
        self.servicer = Failing()
        self.server = grpc.aio.server(options=server_options())
        add_part(CLUSTER, self.servicer, self.server)
        add_part(QUERY, self.servicer, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.channel = open_channel(self.address)

    @property
    def cluster(self) -> Any:
        return stub_of(CLUSTER, self.channel)

    async def unary_error(self) -> errors.GalileoError:
        with pytest.raises(grpc.RpcError) as failed:
            await self.cluster.Topology(cluster_pb2.TopologyRequest())
        return error_of_rpc(failed.value, asked=self.address)

    async def stream_error(self) -> errors.GalileoError:
        call = stub_of(QUERY, self.channel).Run(query_pb2.QueryRequest())
        assert (await call.read()).labels == b"the first part"
        with pytest.raises(grpc.RpcError) as failed:
            await call.read()
        return error_of_rpc(failed.value, asked=self.address)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    await made.server.start()
    yield made
    await made.channel.close()
    await made.server.stop(None)


async def test_error_of_every_kind_keeps_class_message_and_details(line: Line) -> None:
    for kind, cls in KINDS.items():
        line.servicer.error = cls("expected this, got that ✓\nsecond line", place=[1, 2])
        for got in (await line.unary_error(), await line.stream_error()):
            assert type(got) is cls, kind
            assert got.message == "expected this, got that ✓\nsecond line"
            assert got.details == {"place": [1, 2]}


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001d54f", "\n"])
async def test_error_of_any_length_keeps_class_and_details(line: Line, letter: str) -> None:
    line.servicer.error = errors.UnknownProperty(letter * 50_000, nearest=letter * 150)
    for got in (await line.unary_error(), await line.stream_error()):
        assert type(got) is errors.UnknownProperty
        assert got.message.startswith(letter * 400)
        assert got.details == {"nearest": letter * 150}


async def test_tokens_in_errors_are_not_said_again(line: Line) -> None:
    line.servicer.error = errors.QuerySyntaxError("got 'glt_planted'", query="a = 'glt_planted'")
    for got in (await line.unary_error(), await line.stream_error()):
        assert got.message == "got '(a token)'"
        assert got.details["query"] == "a = '(a token)'"


async def test_unexpected_exception_is_an_internal_error_and_logged(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.servicer.error = ZeroDivisionError("division by zero")
    for got in (await line.unary_error(), await line.stream_error()):
        assert type(got) is errors.InternalError
        assert "request id" in got.message
        assert "division" not in got.message + str(got.details)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ZeroDivisionError,
        ZeroDivisionError,
    ]


async def test_request_above_message_bytes_max_is_too_large(line: Line) -> None:
    request = cluster_pb2.CreateDatasetRequest(schema_json="x" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(errors.MessageTooLarge, match="at most 67,108,864 bytes"):
        await line.cluster.CreateDataset(request)
    await line.cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json="x"))


async def test_answer_above_message_bytes_max_is_too_large(line: Line) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        await line.cluster.ListDatasets(cluster_pb2.ListDatasetsRequest())
    assert type(error_of_rpc(failed.value, asked=line.address)) is errors.MessageTooLarge


async def test_server_port_in_use_cannot_be_bound(line: Line) -> None:
    second = grpc.aio.server(options=server_options())
    with pytest.raises(RuntimeError, match="bind"):
        second.add_insecure_port(line.address)
    await second.stop(None)


async def test_call_to_a_closed_port_is_unavailable(line: Line) -> None:
    await line.server.stop(None)
    got = await line.unary_error()
    assert type(got) is errors.Unavailable
