"""From the wire's streams to the client's results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc
import grpc.aio

from galileo.client.results import Ccq, CcqInfo, Labels, NodeStatus, Update
from galileo.cursor import Cursor
from galileo.errors import GalileoError, Unavailable
from galileo.model.schema import Schema
from galileo.samplers import SamplerSpec
from galileo.wire.codec import cursor_from_pb, table_of
from galileo.wire.pb import cluster_pb2, common_pb2, continuous_pb2, query_pb2
from galileo.wire.status import error_of_rpc

TIMEOUT_S = 40.0
ANSWER_TIMEOUT_S = 300.0


class _Head(Protocol):
    schema_json: str
    query_json: str


async def collect_query(call: AsyncIterator[query_pb2.QueryPart]) -> Labels:
    head, tail, chunks = await _collect(call)
    labels = _labels(head, chunks, tail.frontier, tail.missing)
    if labels.complete:
        return labels
    # A node that failed midway may have sent labels of partitions that now count as missing.
    gone = set(labels.missing)
    told = Cursor({p: s for p, s in labels.frontier.items() if p not in gone})
    trusted: Labels = labels.until(told)  # type: ignore[assignment]
    return trusted


async def collect_submission(call: AsyncIterator[continuous_pb2.SubmitPart]) -> Ccq:
    head, tail, chunks = await _collect(call)
    labels = _labels(head, chunks, tail.frontier, tail.missing)
    return Ccq(id=tail.ccq.id, initial=labels, token=tail.token, info=ccq_info(tail.ccq))


async def next_update(call: AsyncIterator[continuous_pb2.FetchPart]) -> Update:
    """The next whole update of a stream that may go on behind it."""
    head, tail, chunks = await _collect(call)
    return Update(
        labels=_labels(head, chunks, tail.cursor, tail.missing),
        token=tail.token,
        frontier=cursor_from_pb(tail.frontier),
        age_s=tail.age_s,
        more=tail.more,
    )


async def _collect(call: Any) -> tuple[Any, Any, list[bytes]]:
    head, chunks = None, []
    while True:
        part = await call.read()
        if part is grpc.aio.EOF:
            raise await _ended(call)
        kind = part.WhichOneof("part")
        if kind == "head":
            head = part.head
        elif kind == "labels":
            chunks.append(part.labels)
        else:
            return head, part.tail, chunks


async def _ended(call: Any) -> Exception:
    """Why a stream ended before its tail."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return Unavailable("the node closed the stream before its answer was complete")
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    error: Exception = grpc.aio.AioRpcError(code, initial, trailing, details=await call.details())
    return error


def _labels(
    head: _Head, chunks: list[bytes], frontier: common_pb2.CursorValue, missing: Any
) -> Labels:
    schema = Schema.from_json(head.schema_json)
    return Labels(
        schema,
        table_of(chunks, schema.label_schema),
        frontier=cursor_from_pb(frontier),
        missing=missing,
        query=head.query_json,
    )


def watch_error(error: grpc.RpcError) -> GalileoError:
    return error_of_rpc(error, asked="the watched node")


def ccq_info(value: continuous_pb2.CcqValue) -> CcqInfo:
    return CcqInfo(
        id=value.id,
        dataset=value.dataset,
        query=value.query_json,
        interval_s=value.interval_s,
        expires_at=value.expires_at,
        coordinator=value.coordinator,
        coordinator_address=value.coordinator_address,
        term=value.term,
        state=value.state,
        compression=value.compression,
        sampler=SamplerSpec.from_json(value.sampler_json) if value.sampler_json else None,
    )


def node_status(value: cluster_pb2.NodeStatus) -> NodeStatus:
    return NodeStatus(
        name=value.name,
        group=value.group,
        address=value.address,
        state=value.state,
        cpu_share=value.cpu_share,
        memory_bytes=value.memory_bytes,
        memory_free_bytes=value.memory_free_bytes,
        load=value.load,
        uptime_s=value.uptime_s,
        pid=value.pid,
        ccqs_coordinated=value.ccqs_coordinated,
        cache_bytes=value.cache_bytes,
        stopped=tuple(value.stopped),
        datasets=tuple(
            {
                "dataset": one.dataset,
                "rows": one.rows,
                "paths": one.paths,
                "bytes_on_disk": one.bytes_on_disk,
                "graph_bytes": one.graph_bytes,
                "sequences": dict(cursor_from_pb(one.sequences)),
            }
            for one in value.datasets
        ),
    )
