"""How fast stored bytes are checked, and how long a node needs until it serves again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import galileo
from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from galileo.errors import GalileoError
from galileo.node.dataset_shard import DatasetShard
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import Commit
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import SEGMENT_BYTES_MAX, JournalOptions

DIFFERENT = 50
"""So many different commits are made and used again and again."""
GROUP_BYTES = 4 << 20
READ_BYTES = 4 << 20
SEALED_BYTES = 8 << 20
"""Of a segment in a store that is merged, so that little of it is left to the one in use."""
_ROW_BYTES = 100


def filled(directory: Path, *, rows: int, commits: int, merged: bool) -> Path:
    """A node's directory with commits of `rows` observations in four partitions, on the disk.

    Args:
        directory: must not exist.
        rows: of each commit, and its paths.
        commits: of all partitions together.
        merged: whether the sealed segments are merged.
    """
    different = _different(rows, min(DIFFERENT, commits))
    together = max(1, min(256, GROUP_BYTES // (rows * _ROW_BYTES)))
    options = JournalOptions(
        durability="none", segment_bytes_max=SEALED_BYTES if merged else SEGMENT_BYTES_MAX
    )
    with Store.open(directory, options, wall=time.time) as store:
        store.recover(lambda *_: None)
        store.create_dataset(weather.SCHEMA)
        for number, start in enumerate(range(0, commits, together)):
            journal = store.journal(weather.SCHEMA.name, number % weather.PARTITIONS)
            group = range(start, min(start + together, commits))
            _stored(journal.append([Commit("bench", n, *different[n % DIFFERENT]) for n in group]))
        for journal in store.journals().values():
            if merged:
                journal.merge(CompactionOptions(bytes_min=1, bytes_max=4 << 30), lambda _: True)
    _settle(directory)
    return directory


def _different(rows: int, count: int) -> list[tuple[pa.Table, pa.RecordBatch]]:
    generator = np.random.default_rng(5)
    return [
        (_observations(batch, generator), batch)
        for batch in weather.path_batches(rows * count, size=rows, seed=4)
    ]


def _observations(paths: pa.RecordBatch, generator: np.random.Generator) -> pa.Table:
    """One observation for each path, of about the same values."""
    count, schema = paths.num_rows, weather.SCHEMA.observation_schema
    columns = {
        "latitude": generator.uniform(*weather.LATITUDES, count),
        "longitude": generator.uniform(*weather.LONGITUDES, count),
        "time": paths.column("bucket"),
    }
    columns |= {name: paths.column(name) for name in schema.names if name not in columns}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _stored(results: Sequence[object]) -> None:
    errors = [result for result in results if isinstance(result, GalileoError)]
    if errors:
        raise errors[0]


def _settle(directory: Path) -> None:
    """Makes everything durable, so that the page cache can be dropped."""
    for path in files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def files(directory: Path) -> Iterator[Path]:
    """Those that hold commits."""
    return directory.glob("journals/*/*/*")


def stored_bytes(directory: Path) -> int:
    """Bytes of those."""
    return sum(path.stat().st_size for path in files(directory))


def forget(directory: Path) -> None:
    """Drops the cached pages of a directory's files; what is read next comes from the disk."""
    for path in files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_plainly(directory: Path) -> int:
    """Reads every byte of a directory's files one behind the other; how many there are."""
    buffer, total = bytearray(READ_BYTES), 0
    for path in sorted(files(directory)):
        descriptor = os.open(path, os.O_RDONLY)
        while count := os.readv(descriptor, [buffer]):
            total += count
        os.close(descriptor)
    return total


OF_A_READ = 0.6
"""The goal, where the files come from the disk."""


def measure_verify(bench: Bench) -> Iterator[Figure]:
    for rows, commits in bench.sizes.verify:
        for merged in (False, True):
            place = bench.directory / f"verify-{rows}-{merged}"
            bench.say(f"writing {commits:,} commits of {rows:,}{', merged' if merged else ''}")
            filled(place, rows=rows, commits=commits, merged=merged)
            kind = "merged segments" if merged else "segments"
            what = f"{kind} of {commits:,} commits of {rows:,}, {stored_bytes(place) / 1e6:,.0f} MB"
            for cold in (True, False):
                yield _compared(bench, place, cold=cold, commits=commits, what=what)
            shutil.rmtree(place)


def _compared(bench: Bench, place: Path, *, cold: bool, commits: int, what: str) -> Figure:
    def check() -> None:
        report = verify(place)
        if not report.ok or report.commits != commits:
            raise AssertionError(f"expected {commits} sound commits, got {report}")

    read, checked = in_turn(
        lambda: read_plainly(place),
        check,
        runs=bench.sizes.runs,
        before=(lambda: forget(place)) if cold else None,
    )
    size = stored_bytes(place)
    where = "from the disk" if cold else "from memory"
    peer = Peer("a plain read of the same files", read.per_second(size))
    goals = (Goal("at least", OF_A_READ, of_peer=True),) if cold else ()
    name = f"verify {where}: {what}"
    return Figure(name, "bytes/s", checked.per_second(size), (peer,), goals)


START_TIMEOUT_S = 600.0
SERVES_MAX_S = 10.0


def measure_recovery(bench: Bench) -> Iterator[Figure]:
    for rows, commits, merged in bench.sizes.recovery:
        place = bench.directory / f"recovery-{rows}-{merged}"
        cluster = galileo.LocalCluster(
            1,
            1,
            place,
            partitions_per_group=weather.PARTITIONS,
            settings={"storage": {"compaction": False}},
        )
        directory = place / cluster.nodes[0].name
        bench.say(f"writing {commits:,} commits of {rows:,} paths{', merged' if merged else ''}")
        filled(directory, rows=rows, commits=commits, merged=merged)
        size = stored_bytes(directory)
        kind = "merged" if merged else "not merged"
        what = (
            f"{rows * commits:,} paths in {commits:,} commits, {kind}, {size / 1e6:,.0f} MB, from "
            "the disk"
        )
        yield _recovered(bench, directory, paths=rows * commits, what=what)
        yield from _served(bench, cluster, paths=rows * commits, what=what)
        shutil.rmtree(place)


def _recovered(bench: Bench, directory: Path, *, paths: int, what: str) -> Figure:
    """The store and the graph alone, compared with a plain read of all files."""
    floor, taken = [], []
    for _ in range(bench.sizes.runs):
        forget(directory)
        floor.append(_read_s(directory))
        forget(directory)
        taken.append(_recovery_s(directory, paths))
    peer = Peer("a plain read of all files", Spread.of(floor))
    return Figure(
        f"opening the store and filling the graph: {what}", "s", Spread.of(taken), (peer,)
    )


def _read_s(directory: Path) -> float:
    started = time.perf_counter()
    read_plainly(directory)
    return time.perf_counter() - started


def _recovery_s(directory: Path, paths: int) -> float:
    started = time.perf_counter()
    with Store.open(directory, wall=time.time) as store:
        shard = DatasetShard(weather.SCHEMA)
        store.recover(lambda _, partition, replayed: shard.replay(partition, replayed))
        taken = time.perf_counter() - started
        found = shard.graph.count()
    if found != paths:
        raise AssertionError(f"expected {paths} paths after recovery, got {found}")
    return taken


def _served(
    bench: Bench, cluster: galileo.LocalCluster, *, paths: int, what: str
) -> Iterator[Figure]:
    """A node's process, from its start until it says that it serves."""
    (node,) = cluster.nodes
    taken, busy = [], []
    with cluster:
        status = cluster.client().status().nodes[0]
        found = sum(int(dataset["paths"]) for dataset in status.datasets)
        if found != paths:
            raise AssertionError(f"expected {paths} paths in the node, got {found}")
        for _ in range(bench.sizes.runs):
            node.kill()
            forget(cluster.directory / node.name)
            started = time.perf_counter()
            node.start()
            node.wait(START_TIMEOUT_S)
            taken.append(time.perf_counter() - started)
            times = psutil.Process(node.pid).cpu_times()
            busy.append(times.user + times.system)
    name = f"a killed node's process until it serves: {what}"
    yield Figure(name, "s", Spread.of(taken), goals=(Goal("at most", SERVES_MAX_S),))
    yield Figure(f"processor time of that: {what}", "s", Spread.of(busy))
