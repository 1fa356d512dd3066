"""From the wire's streams to the client's results."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from galileo.client.results import (
    CallerIdentity,
    Ccq,
    CcqInfo,
    DroppedDataset,
    Labels,
    NodeStatus,
    QuotaUse,
    RetentionReport,
    Update,
    UploadedSampler,
)
from galileo.errors import DeadlineExceeded
from galileo.model import keyed
from galileo.model.schema import Schema, name_of_key
from galileo.model.times import MICROS
from galileo.model.windows import Window, WindowChange
from galileo.packing import unpack
from galileo.samplers import SamplerSpec
from galileo.wire.alike import alike
from galileo.wire.caller import Stream
from galileo.wire.codec import (
    commit_ranges_from_pb,
    cursor_from_pb,
    kept_rows,
    table_of,
    windows_from_pb,
)
from galileo.wire.v1 import cluster_pb2, continuous_pb2, samplers_pb2

_SCHEMAS_KEPT = 256
_DECODE_IN_THREAD_BYTES = 512 << 10

schema_of = lru_cache(_SCHEMAS_KEPT)(Schema.from_json)


async def collect_submission(stream: Stream) -> Ccq:
    head, tail, chunks = None, None, list[bytes]()
    while tail is None:
        part = await stream.next()
        kind = part.WhichOneof("part")
        if kind == "head":
            head = part.head
        elif kind == "labels":
            chunks.append(part.labels)
        else:
            tail = part.tail
    assert head is not None
    schema = schema_of(head.schema_json)
    labels = Labels(
        schema,
        table_of(chunks, schema.label_schema),
        frontier=cursor_from_pb(tail.frontier),
        missing=tail.missing,
        query=head.query_json,
    )
    windows, clock_us = windows_of(tail)
    info = ccq_info(tail.ccq)
    return Ccq(tail.ccq.id, labels, tail.token, info, windows=windows, clock_us=clock_us)


async def update_parts(
    stream: Stream, *, begins_within_s: float | None, part_s: float
) -> list[continuous_pb2.FetchPart]:
    """The parts of the next update of a stream that may continue after it.

    Args:
        stream: of updates.
        begins_within_s: time to the first part.
        part_s: time to each further part.

    Raises:
        DeadlineExceeded: a part did not come in time.
    """
    try:
        async with asyncio.timeout(begins_within_s):
            parts = [await stream.next()]
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the node did not begin its answer within {begins_within_s} s; try again"
        ) from error
    try:
        while not parts[-1].HasField("tail"):
            async with asyncio.timeout(part_s):
                parts.append(await stream.next())
    except TimeoutError as error:
        message = f"the node's answer stopped in the middle for {part_s:g} s; try again"
        raise DeadlineExceeded(message) from error
    return parts


async def update_of(parts: list[continuous_pb2.FetchPart]) -> Update:
    """The update of all its parts."""
    if sum(part.ByteSize() for part in parts) < _DECODE_IN_THREAD_BYTES:
        return _update(parts)
    return await asyncio.to_thread(_update, parts)


def _update(parts: list[continuous_pb2.FetchPart]) -> Update:
    head, tail = parts[0].head, parts[-1].tail
    schema = schema_of(head.schema_json)
    tables = [table for part in parts for table in _unpacked(part, schema)]
    windows, clock_us = windows_of(tail)
    new = pa.concat_tables(tables) if tables else schema.label_schema.empty_table()
    replaced, withdrawn, shortened = (
        table_of([data for part in parts for data in getattr(part, name)], schema.label_schema)
        for name in ("replaced", "withdrawn", "shortened")
    )
    new, withdrawn = keyed.labels_of_update(
        schema, new, replaced=replaced, withdrawn=withdrawn, shortened=shortened
    )
    labels_of = functools.partial(
        Labels,
        schema,
        frontier=cursor_from_pb(tail.cursor),
        missing=tail.missing,
        query=head.query_json,
    )
    return Update(
        labels=labels_of(new),
        withdrawn=labels_of(withdrawn),
        token=tail.token,
        frontier=cursor_from_pb(tail.frontier),
        age_s=tail.age_s,
        interval_s=tail.interval_s,
        more=tail.more,
        gone=commit_ranges_from_pb(tail.gone),
        windows=windows,
        clock_us=clock_us,
        reset=tail.reset,
    )


def _unpacked(part: continuous_pb2.FetchPart, schema: Schema) -> Iterator[pa.Table]:
    rows_by_pack = {selection.pack: (selection.starts, selection.counts) for selection in part.kept}
    for number, data in enumerate(part.packed):
        yield kept_rows(unpack(data, schema.label_schema), rows_by_pack.get(number))


def windows_of(
    tail: continuous_pb2.FetchTail | continuous_pb2.SubmitTail,
) -> tuple[tuple[WindowChange, ...], int | None]:
    """What became of windows, and the event clock."""
    if not tail.HasField("windows"):
        return (), None
    changes = windows_from_pb(tail.windows)
    return tuple(changes.to_list()), changes.clock_us


def held_back(value: cluster_pb2.RetentionHold) -> dict[str, Any]:
    return {
        "partition": value.partition,
        "bytes": value.bytes,
        "readers": list(value.readers),
        "since": value.since_us / MICROS,
    }


def dropped_dataset(dataset: str, reply: cluster_pb2.DropDatasetReply) -> DroppedDataset:
    return DroppedDataset(
        dataset=dataset,
        rows=sum(node.rows for node in reply.nodes),
        bytes=sum(node.bytes for node in reply.nodes),
        ccqs=reply.ccqs,
        pending=tuple(node.node for node in reply.nodes if node.failure),
    )


def retention_report(value: cluster_pb2.RetentionReport) -> RetentionReport:
    return alike(RetentionReport, value, held_back=tuple(held_back(held) for held in value.held))


def ccq_info(value: continuous_pb2.Ccq) -> CcqInfo:
    return alike(
        CcqInfo,
        value,
        dataset=name_of_key(value.dataset),
        query=value.query_json,
        sampler=SamplerSpec.from_json(value.sampler_json) if value.sampler_json else None,
        window=Window.from_json(value.window_json) if value.window_json else None,
    )


def caller_identity(value: cluster_pb2.Caller) -> CallerIdentity:
    quotas = {
        quota.name: QuotaUse(quota.bound, quota.used if quota.used >= 0 else None, quota.counted)
        for quota in value.quotas
    }
    return CallerIdentity(
        value.name,
        tuple(value.roles),
        tuple(value.datasets),
        value.expires_at or None,
        quotas,
        tuple(value.brokers),
    )


def node_status(value: cluster_pb2.NodeStatus) -> NodeStatus:
    return alike(
        NodeStatus,
        value,
        calls=dict(value.calls),
        datasets=tuple(
            {
                "dataset": name_of_key(dataset.dataset),
                "rows": dataset.rows,
                "paths": dataset.paths,
                "bytes_on_disk": dataset.bytes_on_disk,
                "graph_bytes": dataset.graph_bytes,
                "sequences": dict(cursor_from_pb(dataset.sequences)),
                "retention": json.loads(dataset.retention_json) if dataset.retention_json else None,
                "dropped": dict(cursor_from_pb(dataset.dropped)),
                "held_back": [held_back(held) for held in dataset.held],
            }
            for dataset in value.datasets
        ),
    )


def sent_sampler(value: samplers_pb2.UploadedSampler) -> UploadedSampler:
    return alike(UploadedSampler, value, revoked_at=value.revoked_at or None)
