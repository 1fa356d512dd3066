"""Retention on the wire: what is held back, and what was dropped."""

from __future__ import annotations

from collections.abc import Sequence

from galileo.node.peers import HeldBack, RetentionReport
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
