"""What a task reads: Arrow streams of the node that keeps the rows, handed on as they come."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import DataExpired
from galileo.model.schema import Schema
from galileo.spark.source.columns import of_labels, of_observations
from galileo.spark.source.nodes import Nodes
from galileo.spark.source.options import LABELS, SKIP
from galileo.spark.source.plan import Split
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.status import error_from_pb
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import storage_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What all tasks of a read ask for.

    Attributes:
        schema_json: of the dataset.
        what: observations or labels.
        query_json: which of them, CQL2 JSON.
        arrow: schema of the batches that Spark expects.
        on_gap: what to do about commits that retention has dropped.
        keys: what is proved to nodes.
    """

    schema_json: str
    what: str
    query_json: str
    arrow: pa.Schema
    on_gap: str
    keys: TlsFiles = NO_TLS_FILES


def batches(asked: Asked, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of one task.

    Raises:
        DataExpired: retention has dropped some of them, and that was not to be skipped.
        TransientError: the node was lost on the way.
    """
    _settle()
    schema = Schema.from_json(asked.schema_json)
    read = _labels if asked.what == LABELS else _observations
    while True:
        given = False
        try:
            with Nodes(split.addresses, keys=asked.keys) as nodes:
                for batch in read(nodes, asked, split, schema):
                    given = True
                    yield batch
            return
        except DataExpired as error:
            if given or asked.on_gap != SKIP:
                raise _gap(error) from error
            split = _behind(error, split)


@functools.cache
def _settle() -> None:
    """Has garbage collection pass over what is loaded by now, once in a process.

    PySpark collects after every task, which looks at all modules: longer than half a million rows
    take to be read.
    """
    gc.collect()
    gc.freeze()


def _observations(
    nodes: Nodes, asked: Asked, split: Split, schema: Schema
) -> Iterator[pa.RecordBatch]:
    request = storage_pb2.SelectRequest(
        dataset=schema.key,
        query=asked.query_json,
        columns=asked.arrow.names,
        commits=storage_pb2.SelectScope(
            partitions=split.partitions,
            after=cursor_to_pb(split.after),
            until=cursor_to_pb(split.until),
        ),
    )
    for part in nodes.select(request):
        if part.observations.size:
            for batch in pa.ipc.open_stream(part.observations):
                yield of_observations(batch, asked.arrow)


def _labels(nodes: Nodes, asked: Asked, split: Split, schema: Schema) -> Iterator[pa.RecordBatch]:
    item = storage_pb2.ScanItem(
        dataset=schema.key,
        query_json=asked.query_json,
        after=cursor_to_pb(split.after),
        until=cursor_to_pb(split.until),
        bounded=True,
        partitions=split.partitions,
    )
    parts = (
        part for reply in nodes.scan(storage_pb2.ScanRequest(items=[item])) for part in reply.parts
    )
    for part in parts:
        if part.HasField("labels"):
            for batch in pa.ipc.open_stream(part.labels):
                yield of_labels(batch, asked.arrow, precision=schema.geohash_precision)
        elif part.HasField("error"):
            raise error_from_pb(part.error)
        else:
            _check_all_there(cursor_from_pb(part.gone), asked.on_gap)


def _check_all_there(gone: Cursor, on_gap: str) -> None:
    if gone and on_gap != SKIP:
        named = ", ".join(f"{p} up to commit {s}" for p, s in gone.items())
        raise DataExpired(f"retention has dropped commits of partitions {named}")


def _behind(error: DataExpired, split: Split) -> Split:
    """What is left of a task behind what retention has dropped."""
    partitions, until = error.details["partitions"], error.details["until"]
    dropped = Cursor(dict(zip(partitions, until, strict=True)))
    log.warning("skipping what retention has dropped, up to %s", dict(dropped))
    return dataclasses.replace(split, after=split.after.join(dropped))


def _gap(error: DataExpired) -> DataExpired:
    return DataExpired(
        f"{error.message}. They were to be read now. Read again to have what is left; a stream "
        "goes on without them with the option on_gap=skip",
        **error.details,
    )
