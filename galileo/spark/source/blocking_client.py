"""A blocking client of a cluster's nodes, for the processes that Spark runs.

A call tries one node after the other until one answers or the timeout ends; an error that all nodes
would answer is raised at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc

from galileo.dht.topology import Topology
from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    GalileoError,
    IncompleteAnswer,
    InputError,
    PartitionMoved,
    TransientError,
)
from galileo.model.schema import Schema, unknown_dataset
from galileo.wire.channel import open_blocking_channel
from galileo.wire.status import error_from_pb, error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2, cluster_pb2_grpc, storage_pb2, storage_pb2_grpc
from galileo.wire.zero_copy import STORAGE, Bulk, decoder, encode

TIMEOUT_S = 30.0
"""How long a call retries while nodes cannot be reached."""
CALL_TIMEOUT_S = 40.0
STREAM_TIMEOUT_S = 86_400.0
PAUSE_S = 0.2

T = TypeVar("T")
Selected = Bulk[storage_pb2.SelectPart]


class BlockingClient:
    """Calls nodes, in the order of their addresses; thread-safe.

    Args:
        addresses: "host:port" of one or more nodes.
        timeout_s: how long a call retries.
        keys: credentials for the nodes.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self._keys = keys
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.Channel] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    def topology(self) -> Topology:
        request = cluster_pb2.TopologyRequest()
        reply = self.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Topology(
                request, timeout=CALL_TIMEOUT_S
            )
        )
        return Topology.from_json(reply.topology_json)

    def schema(self, dataset: str) -> Schema:
        """The schema of a dataset.

        Raises:
            UnknownDataset: it does not exist.
        """
        request = cluster_pb2.ListDatasetsRequest()
        reply = self.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).ListDatasets(
                request, timeout=CALL_TIMEOUT_S
            )
        )
        schemas = {schema.name: schema for schema in map(Schema.from_json, reply.schemas_json)}
        if dataset not in schemas:
            raise unknown_dataset(dataset, sorted(schemas))
        return schemas[dataset]

    def status(self) -> list[cluster_pb2.NodeStatus]:
        """The status of all nodes, including unreachable ones."""
        reply = self.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Status(
                cluster_pb2.StatusRequest(), timeout=CALL_TIMEOUT_S
            )
        )
        return list(reply.nodes)

    def ingest(self, request: Bulk[storage_pb2.IngestRequest]) -> storage_pb2.IngestReply:
        """Stores one batch; durable when it returns."""

        def attempt(channel: grpc.Channel) -> storage_pb2.IngestReply:
            call: Any = channel.unary_unary(
                f"/{STORAGE}/Ingest",
                request_serializer=encode,
                response_deserializer=storage_pb2.IngestReply.FromString,
            )
            reply: storage_pb2.IngestReply = call(request, timeout=CALL_TIMEOUT_S)
            return reply

        return self.call(attempt)

    def select(self, request: storage_pb2.SelectRequest) -> Iterator[Selected]:
        """The parts of an answer; tries other nodes until the first part has arrived."""

        def attempt(channel: grpc.Channel) -> Iterator[Selected]:
            call: Any = channel.unary_stream(
                f"/{STORAGE}/Select",
                request_serializer=storage_pb2.SelectRequest.SerializeToString,
                response_deserializer=decoder(storage_pb2.SelectPart),
            )
            return _await_first(call(request, timeout=STREAM_TIMEOUT_S))

        return _translate_errors(self.call(attempt))

    def scan(self, request: storage_pb2.ScanRequest) -> Iterator[storage_pb2.ScanReply]:
        """As `select`, for labels; skips nodes that do not own the partitions."""

        def attempt(channel: grpc.Channel) -> Iterator[storage_pb2.ScanReply]:
            stub = storage_pb2_grpc.StorageStub(channel)
            return _await_first(
                stub.Scan(request, timeout=STREAM_TIMEOUT_S), check=_check_not_moved
            )

        return _translate_errors(self.call(attempt))

    def call(self, attempt: Callable[[grpc.Channel], T]) -> T:
        """The result of `attempt` at the first node that answers.

        Raises:
            TransientError: no node answered within the timeout.
            GalileoError: the error of a node.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            problems: list[GalileoError] = []
            for address in self._addresses:
                try:
                    return attempt(self._channel(address))
                except grpc.RpcError as error:
                    failure = error_of_rpc(error, asked=address)
                    if not isinstance(failure, TransientError | Cancelled):
                        raise failure from error
                    problems.append(failure)
                except PartitionMoved as error:
                    problems.append(error)
            if time.monotonic() > deadline:
                # An incomplete answer names what is missing; an unreachable address does not.
                incomplete = (p for p in problems if isinstance(p, IncompleteAnswer))
                raise next(incomplete, problems[0])
            time.sleep(PAUSE_S)

    def _channel(self, address: str) -> grpc.Channel:
        with self._opening:
            if address not in self._channels:
                self._channels[address] = open_blocking_channel(address, self._keys)
            return self._channels[address]


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parses "host:port", or several separated by commas.

    Raises:
        InputError: there is none.
    """
    addresses = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not addresses:
        raise InputError(
            "expected the option 'address' to name nodes as host:port, separated by commas; "
            f"got {text!r}"
        )
    return addresses


def _check_not_moved(reply: storage_pb2.ScanReply) -> None:
    """Raises PartitionMoved if the node does not own a requested partition."""
    for part in reply.parts:
        if part.HasField("error") and part.error.kind == PartitionMoved.kind:
            raise error_from_pb(part.error)


def _await_first(call: Any, *, check: Callable[[Any], None] | None = None) -> Iterator[Any]:
    """Waits for the first part of a stream, which `check` can refuse by raising."""
    first = next(call, None)
    if check is not None and first is not None:
        try:
            check(first)
        except GalileoError:
            call.cancel()
            raise

    def parts() -> Iterator[Any]:
        try:
            if first is not None:
                yield first
                yield from call
        finally:
            call.cancel()

    return parts()


def _translate_errors(parts: Iterator[T]) -> Iterator[T]:
    try:
        yield from parts
    except grpc.RpcError as error:
        failure = error_of_rpc(error, asked="the node that answered")
        if isinstance(failure, Cancelled | DeadlineExceeded | TransientError):
            message = (
                f"the stream was interrupted ({failure.message}); Spark may run the task again"
            )
            raise TransientError(message) from error
        raise failure from error
