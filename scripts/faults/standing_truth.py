"""What standing queries had to find, read from the disks of nodes that have ended.

No node is asked and no predicate of Galileo's is used: the commits are read from the files, and
each path is judged by the few lines below. Only samples are drawn with the sampler itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fault_injection.ccq_readers import Reader
from fault_injection.damage import read_all
from fault_injection.ledger import numbered_schema

from faults.registry import Trial
from galileo import samplers
from galileo.labels import LabelSet

Flags = npt.NDArray[np.bool_]
Predicate = Callable[[LabelSet], Flags]


def warm_within_box(labels: LabelSet) -> Flags:
    """temperature > 265 AND S_INTERSECTS(geometry, BBOX(-150, -60, 120, 70))"""
    south, north, west, east = _bounds(labels)
    inside = (east > -150) & (west < 120) & (north > -60) & (south < 70)
    return np.asarray(inside & (_temperatures(labels) > 265))


def warm(labels: LabelSet) -> Flags:
    """temperature > 260"""
    return np.asarray(_temperatures(labels) > 260)


def mild_or_in_cell_s(labels: LabelSet) -> Flags:
    """temperature BETWEEN 255 AND 290 OR geohash LIKE 's%'"""
    values = _temperatures(labels)
    south, _, west, _ = _bounds(labels)
    in_s = (south >= 0) & (south < 45) & (west >= 0) & (west < 45)
    return np.asarray(((values >= 255) & (values <= 290)) | in_s)


def judge(
    trial: Trial,
    directories: Sequence[Path],
    readers: Sequence[Reader],
    *,
    dataset: str,
    predicates: Mapping[str, Predicate],
    sent: int,
) -> None:
    """Compares what each reader was handed with the logs; `sent` observations must be there."""
    stored, labels = _stored(trial, directories, dataset)
    trial.counts["commits read from disk"] += stored
    found = int(labels.table.column("rows").to_numpy().sum())
    trial.expect(found == sent, f"sent {sent} observations, the disks have {found}")
    for reader in readers:
        wanted = labels.where(predicates[reader.way](labels))
        spec = reader.ccq.info.sampler
        if spec is not None:
            wanted = samplers.apply(samplers.load(spec), wanted, seed=spec.seed)
        audit = reader.deliveries.audit(wanted)
        trial.counts["labels due by the disks"] += len(wanted)
        told = f"reader by {reader.way}, by the disks: {audit.wrong} of {audit}"
        trial.expect(not audit.wrong, told)


def _stored(trial: Trial, directories: Sequence[Path], dataset: str) -> tuple[int, LabelSet]:
    """How many commits all nodes have, and a label for each path in them."""
    schema = numbered_schema(dataset)
    tables, commits = [schema.label_schema.empty_table()], 0
    for directory in directories:
        reading = read_all(directory)
        trial.expect(not reading.refusals, f"{directory.name}: {reading.refusals[:3]}")
        for (name, partition, sequence), (_, paths) in reading.commits.items():
            if name == dataset:
                tables.append(_labels(paths, partition, sequence, schema.label_schema))
                commits += 1
    return commits, LabelSet(schema, pa.concat_tables(tables).combine_chunks())


def _labels(paths: pa.RecordBatch, partition: int, sequence: int, schema: pa.Schema) -> pa.Table:
    count = paths.num_rows
    places = [pa.array(np.full(count, partition, np.int32)), pa.array(np.full(count, sequence))]
    return pa.Table.from_arrays([*paths.columns, *places], schema=schema)


def _temperatures(labels: LabelSet) -> npt.NDArray[np.float64]:
    return np.asarray(labels.table.column("temperature").to_numpy())


def _bounds(labels: LabelSet) -> tuple[npt.NDArray[np.float64], ...]:
    """South, north, west and east of each label's geohash cell, in degrees.

    A geohash halves the world again and again, from east to west first.
    """
    cells = labels.table.column("cell").to_numpy()
    bits = 5 * labels.schema.geohash_precision
    low = [np.full(len(cells), -90.0), np.full(len(cells), -180.0)]
    size = [180.0, 360.0]
    for number in range(bits):
        axis = 1 - number % 2
        size[axis] /= 2
        is_upper = (cells >> np.uint64(bits - 1 - number)) & np.uint64(1)
        low[axis] += size[axis] * is_upper
    return low[0], low[0] + size[0], low[1], low[1] + size[1]
