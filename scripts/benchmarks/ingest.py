"""How fast observations become durable: through gRPC, in the journal, and on the bare disk."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

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

Indexed: TypeAlias = tuple[pa.Table, pa.RecordBatch]


def measure(bench: Bench) -> Iterator[Figure]:
    schema = clusters.schema(DATASET)
    with (
        clusters.cluster(bench.directory, nodes=NODES[0]) as one,
        clusters.cluster(bench.directory, nodes=NODES[1]) as three,
    ):
        clients = one.client(timeout=clusters.PATIENCE), three.client(timeout=clusters.PATIENCE)
        for running, client in zip((one, three), clients, strict=True):
            clusters.create_dataset(running, client, DATASET)
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
    indexed = [paths.index(schema, batch) for batch in batches]
    journal, disk = _Journal.open(scratch, schema, indexed), _Disk.open(scratch, indexed)
    try:
        floor, alone, derived, *through = in_turn(
            disk.append_all,
            journal.append_all,
            lambda: [paths.index(schema, batch) for batch in batches],
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
        f"deriving paths alone: {what}", "observations/s", derived.per_second(total), (peer,)
    )
    for nodes, spread in zip(NODES, through, strict=True):
        name = f"through gRPC, durable, {nodes} node{'s'[: nodes > 1]}: {what}"
        yield Figure(name, "observations/s", spread.per_second(total), (peer,))


def _ipc(batch: pa.RecordBatch) -> bytes:
    return to_ipc(pa.Table.from_batches([batch]))


def _ingest(client: Client, table: pa.Table, *, rows: int) -> Callable[[], None]:
    def ingest() -> None:
        receipt = client.ingest(DATASET, table, batch_rows=rows)
        if receipt.rows != table.num_rows or receipt.duplicate_rows:
            raise AssertionError(f"expected {table.num_rows} new observations, got {receipt}")

    return ingest


@dataclass(slots=True)
class _Disk:
    """A file to which observations and paths are appended, each batch made durable by itself."""

    descriptor: int
    parts: Sequence[bytes]

    @classmethod
    def open(cls, directory: Path, indexed: Sequence[Indexed]) -> _Disk:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(directory / "floor", flags, 0o600)
        return cls(descriptor, [to_ipc(rows) + _ipc(derived) for rows, derived in indexed])

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
    """One partition's journal, and the batches with their paths derived."""

    journal: PartitionJournal
    indexed: Sequence[Indexed]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def open(cls, directory: Path, schema: Schema, indexed: Sequence[Indexed]) -> _Journal:
        journal = PartitionJournal.open(
            directory / "journal",
            schema=schema,
            partition=0,
            options=JournalOptions(),
            replay=lambda commits: None,
            wall=time.time,
        )
        return cls(journal, indexed)

    def append_all(self) -> None:
        for observations, batch in self.indexed:
            commit = Commit("bench", next(self.numbers), observations, batch)
            (result,) = self.journal.append([commit])
            if not isinstance(result, Committed):
                raise result

    def close(self) -> None:
        self.journal.close()
