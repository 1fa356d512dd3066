"""Reads the rows of a task as Arrow streams from the node that stores them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from galileo.cursor import Cursor, continued
from galileo.errors import DataExpired, HistoryChanged, listed
from galileo.model.schema import Schema
from galileo.spark.source.blocking_client import BlockingClient
from galileo.spark.source.columns import labels_to_spark, observations_to_spark
from galileo.spark.source.options import LABELS, SKIP
from galileo.spark.source.plan import Split
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.status import error_from_pb
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import storage_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The parameters of all tasks of a read.

    Attributes:
        schema_json: of the dataset.
        what: observations or labels.
        query_json: CQL2 JSON.
        arrow: schema of the batches that Spark expects.
        on_gap: "fail" or "skip" if retention has dropped commits.
        keys: credentials for the nodes.
    """

    schema_json: str
    what: str
    query_json: str
    arrow: pa.Schema
    on_gap: str
    keys: TlsFiles = NO_TLS_FILES


def batches(spec: ReadSpec, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of one task.

    Raises:
        DataExpired: retention has dropped some of them, and `on_gap` is not "skip".
        HistoryChanged: likewise: commits up to the begin or end of the task were lost.
        TransientError: the connection to the node was lost.
    """
    _freeze_garbage()
    schema = Schema.from_json(spec.schema_json)
    read = _labels if spec.what == LABELS else _observations
    while True:
        has_rows = False
        try:
            with BlockingClient(split.addresses, keys=spec.keys) as client:
                for batch in read(client, spec, split, schema):
                    has_rows = True
                    yield batch
            return
        except DataExpired as error:
            rest = _skip_dropped(error, split)
            if has_rows or spec.on_gap != SKIP or rest == split:
                raise _explain_gap(error) from error
            split = rest


@functools.cache
def _freeze_garbage() -> None:
    """Excludes loaded modules from garbage collection, once in a process.

    PySpark collects garbage after each task, which otherwise takes longer than reading half a
    million rows.
    """
    gc.collect()
    gc.freeze()


def _observations(
    client: BlockingClient, spec: ReadSpec, split: Split, schema: Schema
) -> Iterator[pa.RecordBatch]:
    request = storage_pb2.SelectRequest(
        dataset=schema.key,
        query=spec.query_json,
        columns=spec.arrow.names,
        commits=storage_pb2.SelectScope(
            partitions=split.partitions,
            after=cursor_to_pb(split.after),
            until=cursor_to_pb(split.until),
        ),
        added=schema.added,
    )
    for part in client.select(request):
        if part.observations.size:
            for batch in pa.ipc.open_stream(part.observations):
                yield observations_to_spark(batch, spec.arrow)


def _labels(
    client: BlockingClient, spec: ReadSpec, split: Split, schema: Schema
) -> Iterator[pa.RecordBatch]:
    item = storage_pb2.ScanItem(
        dataset=schema.key,
        query_json=spec.query_json,
        after=cursor_to_pb(split.after),
        until=cursor_to_pb(split.until),
        bounded=True,
        partitions=split.partitions,
        added=schema.added,
    )
    parts = (
        part for reply in client.scan(storage_pb2.ScanRequest(items=[item])) for part in reply.parts
    )
    for part in parts:
        if part.HasField("labels"):
            for batch in pa.ipc.open_stream(part.labels):
                yield labels_to_spark(batch, spec.arrow, precision=schema.geohash_precision)
        elif part.HasField("error"):
            raise error_from_pb(part.error)
        else:
            _check_gap(cursor_from_pb(part.gone), spec.on_gap)


def _check_gap(gone: Cursor, on_gap: str) -> None:
    if gone and on_gap != SKIP:
        named = listed(gone, text_of=lambda p: f"{p} up to commit {gone[p]}")
        raise DataExpired(f"retention has dropped commits of partitions {named}")


def _skip_dropped(error: DataExpired, split: Split) -> Split:
    """The rest of a split after the dropped commits, or without those that were lost."""
    if isinstance(error, HistoryChanged):
        log.warning("skipping commits that were lost: %s", error.message)
        after, until = continued(split.after, error), continued(split.until, error)
        return dataclasses.replace(split, after=after, until=until)
    partitions, until = error.details["partitions"], error.details["until"]
    dropped = Cursor(dict(zip(partitions, until, strict=True)))
    log.warning("skipping commits that retention dropped, up to %s", dict(dropped))
    return dataclasses.replace(split, after=split.after.join(dropped))


def _explain_gap(error: DataExpired) -> DataExpired:
    return type(error)(
        f"{error.message}. They were part of this read. Read again to get the rest; a stream "
        "continues without them with the option on_gap=skip",
        **error.details,
    )
