"""Partition logs of the simulated world, and naive scans of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from delivery_audit import Keys, keys_of

from galileo.ccq.model import CcqDefinition
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.model.windows import ClockStep
from galileo.packing import Compression
from galileo.packs import PackedLabels, pack_labels
from galileo.samplers import SamplerSpec
from simulator.loop import Loop

SCHEMA = Schema("sim", [Feature("value", type="int")])
Path = tuple[int, int, int, int]
"""Partition, commit sequence, row, value."""
EPOCH_WALL = 1_700_000_000.0
SKEW_MAX_S = 5.0
HOUR_US = 3_600_000_000
_LATE_HOURS = 9


@dataclass(frozen=True, slots=True)
class Commit:
    partition: int
    sequence: int
    values: tuple[int, ...]
    batch: tuple[str, int]
    wall: float


@dataclass(slots=True)
class Log:
    """One partition: durable commits, then those that are not synced.

    Attributes:
        dropped: commits up to here are deleted for all but the checker, and recognised as repeated.
    """

    partition: int
    commits: list[Commit] = field(default_factory=list)
    pending: list[Commit] = field(default_factory=list)
    dropped: int = 0
    _newest: list[int] = field(default_factory=list)

    def append(self, values: tuple[int, ...], batch: tuple[str, int], wall: float) -> Commit:
        sequence = len(self.commits) + len(self.pending) + 1
        commit = Commit(self.partition, sequence, values, batch, wall)
        self.pending.append(commit)
        return commit

    def sync(self) -> None:
        self.commits += self.pending
        self.pending = []

    def crash(self, loop: Loop) -> None:
        """Keep a random prefix of what was not synced; the next frame is torn and cut."""
        kept = loop.random.randint(0, len(self.pending))
        loop.counters["torn tails"] += kept < len(self.pending)
        self.commits += self.pending[:kept]
        self.pending = []

    def find(self, batch: tuple[str, int]) -> Commit | None:
        return next((c for c in self.commits + self.pending if c.batch == batch), None)

    @property
    def end(self) -> int:
        return len(self.commits)

    def newest_us(self, until: int) -> int | None:
        """The newest time bucket up to a commit, deleted ones included."""
        for commit in self.commits[len(self._newest) :]:
            own = [bucket_us((self.partition, commit.sequence, 0, v)) for v in commit.values]
            self._newest.append(max([*self._newest[-1:], *own]))
        return self._newest[until - 1] if until else None

    def clock_steps(self) -> tuple[ClockStep, ...]:
        """The steps of the event clock that the partition's owner reports."""
        newest_us = self.newest_us(self.end)
        return () if newest_us is None else (ClockStep(self.partition, self.end, newest_us),)


def bucket_us(path: Path) -> int:
    """Start of a path's time bucket: an hour per commit; some values are late by many."""
    _, sequence, _, value = path
    late = _LATE_HOURS if value % 7 == 0 else value % 3
    return (sequence - late) * HOUR_US


def query(modulus: int, remainder: int) -> str:
    return json.dumps({"modulus": modulus, "remainder": remainder})


def matches(ccq: CcqDefinition, commit: Commit) -> list[Path]:
    """The sampled matches of one commit, naively."""
    wanted = json.loads(ccq.query)
    paths = [
        (commit.partition, commit.sequence, row, value)
        for row, value in enumerate(commit.values)
        if value % wanted["modulus"] == wanted["remainder"]
    ]
    return [path for path in paths if ccq.sampler is None or keeps(ccq.sampler, path)]


def keeps(sampler: SamplerSpec, path: Path) -> bool:
    partition, sequence, row, value = path
    return (partition * 7 + sequence * 13 + row * 5 + value + sampler.seed) % 3 > 0


def scan(ccq: CcqDefinition, log: Log, *, after: int, until: int) -> list[Path]:
    """The sampled matches with after < sequence <= until, deleted ones included."""
    return [path for commit in log.commits[after:until] for path in matches(ccq, commit)]


def to_labels(paths: list[Path]) -> PackedLabels | None:
    """The paths as packed labels."""
    if not paths:
        return None
    partitions, sequences, rows, values = (np.array(column) for column in zip(*paths, strict=True))
    columns = [
        pa.array(values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)),
        times_from_micros(np.array([bucket_us(path) for path in paths], dtype=np.int64)),
        pa.array(values.astype(np.int64)),
        pa.array(rows.astype(np.int32)),
        pa.array(np.ones(len(rows), dtype=np.int32)),
        pa.array(partitions.astype(np.int32)),
        pa.array(sequences.astype(np.int64)),
    ]
    labels = LabelSet(SCHEMA, pa.table(columns, schema=SCHEMA.label_schema))
    return pack_labels(labels, Compression.NONE)


def keys_of_paths(paths: Iterable[Path]) -> Keys:
    """Keys of paths for the delivery audit."""
    numbers = np.array([path[:3] for path in paths], dtype=np.int64).reshape(-1, 3)
    return keys_of(numbers[:, 0], numbers[:, 1], numbers[:, 2])


def to_paths(labels: PackedLabels | None) -> list[Path]:
    """The paths in the order in which they were delivered."""
    if labels is None:
        return []
    names = ("partition", "sequence", "row", "value")
    table = labels.labels().table
    columns = [table.column(name).to_pylist() for name in names]
    return list(zip(*columns, strict=True))
