"""How fast observations become durable: through gRPC, in the journal alone, and on the disk alone."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from benchmarks import clusters
from benchmarks.figures import Figure, Peer
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.labels import to_ipc
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.storage.journal import Commit, Committed, PartitionJournal
from galileo.storage.writer import JournalOptions

DATASET = "nam"
NODES = (1, 3)


def measure(bench: Bench) -> Iterator[Figure]:
    schema = clusters.schema(DATASET)
    with (
        clusters.cluster(bench.directory, nodes=NODES[0]) as one,
        clusters.cluster(bench.directory, nodes=NODES[1]) as three,
    ):
        clients = one.client(patience=clusters.PATIENCE), three.client(patience=clusters.PATIENCE)
        for client in clients:
            client.create_dataset(schema)
        for rows, count in bench.sizes.ingest:
            bench.say(f"ingesting {count} batches of {rows:,} in five ways")
            yield from _ways(bench, schema, clients, batch=(rows, count))


def _ways(
    bench: Bench, schema: Schema, clients: tuple[Client, Client], *, batch: tuple[int, int]
) -> Iterator[Figure]:
    rows, count = batch
    table = clusters.forecast(rows * count, stride=bench.sizes.stride)
    batches = [table.slice(number * rows, rows).combine_chunks() for number in range(count)]
    scratch = bench.directory / f"ingest-{rows}"
    scratch.mkdir()
    journal, disk = _Journal.open(scratch, schema, batches), _Disk.open(scratch, batches)
    try:
        floor, alone, unbatched, *through = in_turn(
            disk.append_all,
            journal.append_all,
            journal.index_all,
            *[_ingest(client, table, rows=rows) for client in clients],
            runs=bench.sizes.runs,
        )
    finally:
        journal.close()
        disk.close()
        shutil.rmtree(scratch)
    total = rows * count
    peer = Peer("append and fdatasync of the same bytes", floor.per_second(total))
    what = f"{count} batches of {rows:,}"
    yield Figure(
        f"journal alone: {what}, a commit and a sync each",
        "observations/s",
        alone.per_second(total),
        (peer,),
    )
    yield Figure(
        f"deriving paths alone: {what}", "observations/s", unbatched.per_second(total), (peer,)
    )
    for nodes, spread in zip(NODES, through, strict=True):
        name = f"through gRPC, durable, {nodes} node{'s'[: nodes > 1]}: {what}"
        yield Figure(name, "observations/s", spread.per_second(total), (peer,))


def _ingest(client: Client, table: pa.Table, *, rows: int) -> Callable[[], None]:
    def ingest() -> None:
        receipt = client.ingest(DATASET, table, batch_rows=rows)
        if receipt.rows != table.num_rows or receipt.duplicate_rows:
            raise AssertionError(f"expected {table.num_rows} new observations, got {receipt}")

    return ingest


@dataclass(slots=True)
class _Disk:
    """A file to which the batches' bytes are appended, each made durable by itself."""

    descriptor: int
    parts: Sequence[bytes]

    @classmethod
    def open(cls, directory: Path, batches: Sequence[pa.Table]) -> _Disk:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(directory / "floor", flags, 0o600)
        return cls(descriptor, [to_ipc(batch) for batch in batches])

    def append_all(self) -> None:
        for part in self.parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
            os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(slots=True)
class _Journal:
    """One partition's journal, and the batches as commits with their paths derived."""

    schema: Schema
    batches: Sequence[pa.Table]
    indexed: Sequence[tuple[pa.Table, pa.RecordBatch]]
    journal: PartitionJournal
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def open(cls, directory: Path, schema: Schema, batches: Sequence[pa.Table]) -> _Journal:
        journal = PartitionJournal.open(
            directory / "journal",
            schema=schema,
            partition=0,
            options=JournalOptions(),
            replay=lambda sequence, batch: None,
            wall=time.time,
        )
        return cls(schema, batches, [paths.index(schema, batch) for batch in batches], journal)

    def append_all(self) -> None:
        for observations, batch in self.indexed:
            commit = Commit("bench", next(self.numbers), observations, batch)
            (result,) = self.journal.append([commit])
            if not isinstance(result, Committed):
                raise result

    def index_all(self) -> None:
        for batch in self.batches:
            paths.index(self.schema, batch)

    def close(self) -> None:
        self.journal.close()
