"""The calls of nodes that the processes of Spark make."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from galileo.dht.topology import Topology
from galileo.errors import InputError, PartitionMoved, RangesChanged
from galileo.model.schema import Schema, unknown_dataset, unknown_table
from galileo.model.table import Table
from galileo.wire.blocking_caller import BlockingCaller
from galileo.wire.caller import Backoff, CallOptions
from galileo.wire.services import CLUSTER, STORAGE
from galileo.wire.status import error_from_pb
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

OPTIONS = CallOptions(patience_s=30.0)


class BlockingClient(BlockingCaller):
    """Calls nodes, in the order of their addresses; thread-safe.

    Args:
        addresses: "host:port" of one or more nodes.
        options: times of calls.
        keys: credentials for the nodes.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        options: CallOptions = OPTIONS,
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        super().__init__(addresses, options=options, keys=keys)
        self._topology: Topology | None = None

    def topology(self) -> Topology:
        reply = self.unary(CLUSTER, "Topology", cluster_pb2.TopologyRequest())
        return Topology.from_json(reply.topology_json)

    def routing_topology(self) -> Topology:
        """The topology by which rows are sent; see `learn_ranges`."""
        if self._topology is None:
            self._topology = self.topology()
        return self._topology

    def learn_ranges(self, changed: RangesChanged, backoff: Backoff) -> None:
        """Reads a new topology, with the ranges of the node that raised the error or later ones.

        Raises:
            RangesChanged: the error, if no node knows these ranges in time.
        """
        self._topology = self.topology()
        while self._topology.range_epoch < changed.details["range_epoch"]:
            time.sleep(backoff.pause_s(changed))
            self._topology = self.topology()

    def schema(self, dataset: str) -> Schema:
        """The schema of a dataset.

        Raises:
            UnknownDataset: it does not exist.
        """
        reply = self.unary(CLUSTER, "ListDatasets", cluster_pb2.ListDatasetsRequest())
        schemas = {schema.name: schema for schema in map(Schema.from_json, reply.schemas_json)}
        if dataset not in schemas:
            raise unknown_dataset(dataset, sorted(schemas))
        return schemas[dataset]

    def table(self, name: str) -> Table:
        """A table.

        Raises:
            UnknownDataset: it does not exist.
        """
        reply = self.unary(CLUSTER, "ListDatasets", cluster_pb2.ListDatasetsRequest())
        tables = {table.name: table for table in map(Table.from_json, reply.tables_json)}
        if name not in tables:
            raise unknown_table(name, sorted(tables))
        return tables[name]

    def create(self, table: Table) -> None:
        """Creates a table.

        Raises:
            DatasetExists: the name is taken.
        """
        self.unary(
            CLUSTER,
            "CreateDataset",
            cluster_pb2.CreateDatasetRequest(schema_json=table.to_json()),
        )

    def status(self) -> list[cluster_pb2.NodeStatus]:
        """The status of all nodes, including unreachable ones."""
        return list(self.unary(CLUSTER, "Status", cluster_pb2.StatusRequest()).nodes)

    def ingest(
        self, request: Bulk[storage_pb2.IngestRequest], *, first: str = ""
    ) -> storage_pb2.IngestReply:
        """Stores one batch, durable when it returns; tries the address `first` first, if any."""
        reply: storage_pb2.IngestReply = self.unary(STORAGE, "Ingest", request, first=first)
        return reply

    def select(self, request: storage_pb2.SelectRequest) -> Iterator[Bulk[storage_pb2.SelectPart]]:
        """The parts of an answer; tries other nodes until the first part has arrived."""
        return self.stream(STORAGE, "Select", request)

    def read_table(
        self, request: storage_pb2.ReadTableRequest
    ) -> Iterator[storage_pb2.ReadTablePart]:
        """As `select`, for rows of tables."""
        return self.stream(STORAGE, "ReadTable", request)

    def scan(self, request: storage_pb2.ScanRequest) -> Iterator[storage_pb2.ScanReply]:
        """As `select`, for labels; skips nodes that do not own the partitions."""
        return self.stream(STORAGE, "Scan", request, check=_check_not_moved)


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
