"""The client's side of cleaning: every node erases what was deleted or replaced."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from galileo.client.cluster_caller import topology_of
from galileo.client.interleaving import interleaved
from galileo.dht.topology import NodeInfo
from galileo.errors import GalileoError, InputError, NotPermitted, UnknownDataset
from galileo.wire.caller import Caller
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2

PART_S = 30.0
"""Seconds within which a node says that it goes on."""
SECONDS_MAX = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """What one node has erased of a dataset.

    Attributes:
        node: its name.
        partitions: whose copies are done.
        partitions_total: of which the node has copies.
        files: that were rewritten.
        rows: whose values were erased.
        bytes: by which its files are smaller.
        is_over: whether it has gone through all of its partitions.
        failures: why some of them are not clean; or why the node did not answer.
    """

    node: str
    partitions: int = 0
    partitions_total: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    is_over: bool = False
    failures: tuple[str, ...] = ()


async def clean(caller: Caller, dataset: str) -> AsyncGenerator[CleaningReport, None]:
    """See `AsyncClient.clean_dataset`."""
    topology = await caller.call(topology_of)
    nodes = [_of_node(caller, node, dataset) for node in topology.nodes]
    async with aclosing(interleaved(nodes, at_once=len(nodes))) as reports:
        async for report in reports:
            yield report


async def _of_node(
    caller: Caller, node: NodeInfo, dataset: str
) -> AsyncGenerator[CleaningReport, None]:
    """What one node says until it is done, or why it does not answer."""
    request, report = cluster_pb2.CleanDatasetRequest(dataset=dataset), CleaningReport(node.name)
    connection = caller.connection(node.address)
    try:
        with connection.stream(
            CLUSTER, "CleanDataset", request, timeout_s=SECONDS_MAX, part_s=PART_S
        ) as stream:
            async for part in stream:
                report = CleaningReport(
                    node.name,
                    partitions=part.partitions,
                    partitions_total=part.partitions_total,
                    files=part.files,
                    rows=part.rows,
                    bytes=part.bytes,
                    failures=tuple(part.failures),
                )
                yield report
        yield replace(report, is_over=True)
    except (NotPermitted, UnknownDataset, InputError):
        raise
    except GalileoError as error:
        reason = error.details.get("reason") or error.message
        yield replace(report, failures=(*report.failures, reason))
