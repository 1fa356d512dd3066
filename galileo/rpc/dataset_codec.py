"""Codec of retention reports and of the removals of dropped datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from galileo.errors import GalileoError, Unavailable
from galileo.node.peers import HeldBack, Removed, RetentionReport
from galileo.wire.v1 import cluster_pb2


def held_to_pb(held: Sequence[HeldBack]) -> list[cluster_pb2.RetentionHold]:
    return [
        cluster_pb2.RetentionHold(partition=one.partition, bytes=one.bytes, ccq_ids=one.ccq_ids)
        for one in held
    ]


def report_to_pb(node: str, report: RetentionReport) -> cluster_pb2.RetentionReport:
    return cluster_pb2.RetentionReport(
        node=node,
        files=report.files,
        commits=report.commits,
        bytes=report.bytes,
        held=held_to_pb(report.held),
        failures=report.failures,
    )


def report_from_pb(value: cluster_pb2.RetentionReport) -> RetentionReport:
    held = (HeldBack(one.partition, one.bytes, tuple(one.ccq_ids)) for one in value.held)
    return RetentionReport(
        value.files, value.commits, value.bytes, tuple(held), tuple(value.failures)
    )


def removed_to_pb(
    removed: Mapping[str, Removed | GalileoError], *, ccqs: int = 0
) -> cluster_pb2.DropDatasetReply:
    nodes = [
        cluster_pb2.DroppedAtNode(node=node, failure=one.message)
        if isinstance(one, GalileoError)
        else cluster_pb2.DroppedAtNode(node=node, rows=one.rows, bytes=one.bytes)
        for node, one in sorted(removed.items())
    ]
    return cluster_pb2.DropDatasetReply(nodes=nodes, ccqs=ccqs)


def removed_from_pb(reply: cluster_pb2.DropDatasetReply) -> dict[str, Removed | GalileoError]:
    return {
        one.node: Unavailable(one.failure) if one.failure else Removed(one.rows, one.bytes)
        for one in reply.nodes
    }
