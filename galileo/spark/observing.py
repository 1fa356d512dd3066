"""Reads the observations behind labels for a sampler, of the node that found the labels."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import pyarrow as pa

from galileo.labels import LabelSet, from_ipc, to_ipc
from galileo.samplers import numbered_parts, observed_schema
from galileo.wire.channel import open_blocking_channel
from galileo.wire.status import error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import storage_pb2, storage_pb2_grpc


@dataclass(frozen=True, slots=True)
class ObservationReader:
    """Reads for one item of a tick; in whatever thread.

    Attributes:
        address: of the node, which has just matched the item's query.
        digest: of the query, which the observations must match exactly.
        timeout_s: for the observations that a sampler is shown at a time.
        keys: of a node.
    """

    address: str
    digest: bytes
    timeout_s: float
    keys: TlsFiles = NO_TLS_FILES

    def __call__(self, labels: LabelSet) -> pa.Table:
        """In columns of `observed_schema`.

        Args:
            labels: of the node's own partitions, so few that their observations fit in memory.

        Raises:
            TransientError: the node is away, or does not know the query any more.
            DataExpired: retention has dropped some of them meanwhile.
        """
        columns = observed_schema(labels.schema)
        request = storage_pb2.ReadRequest(
            dataset=labels.schema.key,
            parts=to_ipc(numbered_parts(labels).combine_chunks()),
            local=True,
            numbered=True,
            digest=self.digest,
        )
        with open_blocking_channel(self.address, self.keys) as channel:
            try:
                parts = storage_pb2_grpc.StorageStub(channel).Read(request, timeout=self.timeout_s)
                tables = [from_ipc(part.observations, columns) for part in parts]
            except grpc.RpcError as error:
                raise error_of_rpc(error, asked=self.address) from error
        return pa.concat_tables([columns.empty_table(), *tables])
