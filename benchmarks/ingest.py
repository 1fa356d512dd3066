"""How fast observations and whole blocks become durable, compared with the bare disk.

A block is all observations of one cell and one hour: 128 rows of eight columns, 8,192 bytes in
Arrow. In one variant its indexed features are the same in all its rows, so that it has one path,
as in the paper's evaluation; in the other every row has its own, and a path of its own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.geo import geohash
from galileo.labels import to_ipc
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS, micros, times_from_micros
from galileo.storage.frame import HEADER_BYTES_MAX, decode_header
from galileo.storage.journal import Commit, Committed, PartitionJournal
from galileo.storage.segment import SUFFIX
from galileo.storage.writer import JournalOptions

DATASET = "nam"
NODES = (1, 3)

Indexed: TypeAlias = tuple[pa.Table, pa.RecordBatch]


def measure_batches(bench: Bench) -> Iterator[Figure]:
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
            *[clusters.ingesting(client, table, dataset=DATASET, rows=rows) for client in clients],
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


BLOCK_BYTES = 8_192
BLOCKS_PER_S, OF_FLOOR = 15_000, 0.6
LATITUDES, LONGITUDES = (30.0, 48.0), (-120.0, -75.0)
START_US = micros("2014-03-01T00:00:00Z")
HOUR_US = 3_600 * MICROS
HOURS = 720

Floats = npt.NDArray[np.floating[Any]]


def measure_blocks(bench: Bench) -> Iterator[Figure]:
    for one_path in (True, False):
        name = "blocks-of-one-path" if one_path else "blocks-of-many-paths"
        place = bench.directory / name
        place.mkdir()
        with clusters.cluster(place, nodes=1) as running, running.client() as client:
            client.create_dataset(block_schema(name))
            yield _measured(bench, client, place, one_path=one_path)


def block_schema(name: str) -> Schema:
    """Four indexed features and one that is only stored."""
    features = [Feature(level) for level in ("temperature", "humidity", "wind", "snow")]
    return Schema(name, [*features, Feature("reading", indexed=False)], time_bucket="1h")


def blocks(wanted: Schema, count: int, *, one_path: bool) -> pa.Table:
    """Blocks in no order of place or time; the rows of each together, in the order of time."""
    generator = np.random.default_rng(5)
    rows = BLOCK_BYTES // (8 * len(wanted.observation_schema))
    total = count * rows
    cells = geohash.encode(
        generator.uniform(*LATITUDES, count), generator.uniform(*LONGITUDES, count), 5
    )
    west, south, east, north = (np.repeat(edge, rows) for edge in geohash.bounds(cells, 5))
    starts = START_US + generator.integers(0, HOURS, count) * HOUR_US
    within = np.arange(rows) * (HOUR_US // rows)
    levels = _levels(generator, count if one_path else total)
    columns = [
        pa.array(south + generator.random(total) * (north - south)),
        pa.array(west + generator.random(total) * (east - west)),
        times_from_micros(np.repeat(starts, rows) + np.tile(within, count)),
        *[pa.array(np.repeat(level, rows) if one_path else level) for level in levels],
        pa.array(generator.random(total)),
    ]
    return pa.table(columns, schema=wanted.observation_schema)


def _levels(generator: np.random.Generator, count: int) -> list[Floats]:
    """Rounded as measured values are."""
    snow = np.where(generator.random(count) < 0.8, 0.0, generator.uniform(0.0, 2.0, count))
    return [
        np.round(generator.normal(283.0, 12.0, count), 1),
        np.round(100.0 * np.sqrt(generator.random(count))),
        np.round(np.abs(generator.normal(0.0, 6.0, count)), 1),
        np.round(snow, 2),
    ]


def _measured(bench: Bench, client: Client, place: Path, *, one_path: bool) -> Figure:
    size, batches = bench.sizes.blocks
    count = size * batches
    wanted = block_schema(place.name)
    table = blocks(wanted, count, one_path=one_path)
    bench.say(f"ingesting {batches} batches of {size} blocks, {table.nbytes // count} bytes each")
    ingest = clusters.ingesting(client, table, dataset=place.name, rows=table.num_rows // batches)
    ingest()
    with _floor(place, batches=batches) as append:
        floor, through = in_turn(append, ingest, runs=bench.sizes.runs)
    paths = "one path each" if one_path else "a path for each row"
    return Figure(
        f"through gRPC, durable, 1 node: {batches} batches of {size} blocks of 8 KB, {paths}",
        "blocks/s",
        through.per_second(count),
        (Peer("append and fdatasync of the journals' bytes", floor.per_second(count)),),
        (Goal("at least", BLOCKS_PER_S), Goal("at least", OF_FLOOR, of_peer=True)),
    )


@contextmanager
def _floor(place: Path, *, batches: int) -> Iterator[Callable[[], None]]:
    """Appends to one file what the journals have written, each batch made durable by itself."""
    groups = _written(place)
    if len(groups) != batches:
        raise AssertionError(f"expected {batches} batches in the journals, got {len(groups)}")
    descriptor = os.open(place / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append() -> None:
        for group in groups:
            rest = memoryview(group)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)

    try:
        yield append
    finally:
        os.close(descriptor)
        (place / "floor").unlink()


def _written(place: Path) -> Sequence[bytes]:
    """The frames in all journals below a directory, those of one batch joined."""
    groups: dict[tuple[str, int], list[bytes]] = {}
    for path in sorted(place.rglob(f"*{SUFFIX}")):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            header = decode_header(data[offset : offset + HEADER_BYTES_MAX])
            frame = data[offset : offset + header.frame_bytes]
            groups.setdefault((header.producer, header.batch), []).append(frame)
            offset += header.frame_bytes
    return [b"".join(frames) for frames in groups.values()]
