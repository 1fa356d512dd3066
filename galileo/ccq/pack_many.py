"""Packs labels of many continuous queries together.

Packing costs some milliseconds per pack, and a cycle can find a few labels for each of very many
CCQs. So their labels are packed as one, and each CCQ's pack lists its commits in it. The memory is
freed when the last of them is dropped; a CCQ with many small chunks packs its own anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.ccq.packs import Pack, PackedLabels, pack_labels
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.packing import Compression, pack

SHARED_ROWS = 8_192

Rows = npt.NDArray[np.int64]


def pack_many(
    schema: Schema,
    table: pa.Table,
    starts: Rows,
    *,
    compression: Compression,
    shared_rows: int = SHARED_ROWS,
) -> list[PackedLabels]:
    """The labels of each of several CCQs.

    Args:
        schema: of their dataset.
        table: the labels of the CCQs, one CCQ after the other, each in commit order.
        starts: first row of each, ascending from 0 on; each has one at least.
        compression: of the packs.
        shared_rows: about so many are packed together; a CCQ with more has its own pack.
    """
    stops = np.append(starts[1:], table.num_rows)
    shared = np.flatnonzero(stops - starts <= shared_rows)
    packs_by_number: dict[int, PackedLabels] = {}
    for numbers in _groups(shared, stops - starts, shared_rows):
        packs_by_number |= _pack_group(
            schema, table, numbers=numbers, starts=starts, stops=stops, compression=compression
        )
    for number, start, stop in zip(
        range(len(starts)), starts.tolist(), stops.tolist(), strict=True
    ):
        if number not in packs_by_number:
            alone = pack_labels(LabelSet(schema, table.slice(start, stop - start)), compression)
            assert alone is not None, "a CCQ without labels"
            packs_by_number[number] = alone
    return [packs_by_number[number] for number in range(len(starts))]


def _groups(numbers: Rows, sizes: Rows, rows: int) -> Iterator[Rows]:
    """Split `numbers` into groups of about `rows` rows."""
    if len(numbers):
        before = np.cumsum(sizes[numbers]) - sizes[numbers]
        yield from np.split(numbers, np.flatnonzero(np.diff(before // rows)) + 1)


def _pack_group(
    schema: Schema,
    table: pa.Table,
    *,
    numbers: Rows,
    starts: Rows,
    stops: Rows,
    compression: Compression,
) -> dict[int, PackedLabels]:
    """The labels of some CCQs; others may lie between them."""
    sizes = stops[numbers] - starts[numbers]
    first = np.cumsum(sizes) - sizes
    parts = [
        table.slice(start, size) for start, size in _adjacent_rows(starts[numbers], stops[numbers])
    ]
    table = pa.concat_tables(parts).combine_chunks()
    data = pack(table, compression)
    commits, ends = _commits(LabelSet(schema, table), first)
    packs_by_number: dict[int, PackedLabels] = {}
    begin = 0
    for number, size, end in zip(numbers.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        shared_pack = Pack(data, table.num_rows, commits[:, begin:end], share=size)
        packs_by_number[number] = PackedLabels(schema, (shared_pack,))
        begin = end
    return packs_by_number


def _adjacent_rows(starts: Rows, stops: Rows) -> Iterator[tuple[int, int]]:
    """Start and length of runs of adjacent rows."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = starts[np.append(0, breaks)]
    lasts = stops[np.append(breaks - 1, len(stops) - 1)]
    yield from zip(firsts.tolist(), (lasts - firsts).tolist(), strict=True)


def _commits(labels: LabelSet, first: Rows) -> tuple[npt.NDArray[np.int64], Rows]:
    """`Pack.commits`, split by CCQ; and where each CCQ's commits end."""
    partitions, sequences = labels.partitions, labels.sequences
    begins = np.zeros(len(labels), dtype=np.bool_)
    begins[first] = True
    begins[1:] |= (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(labels)))
    commits = np.stack((partitions[starts], sequences[starts], starts, counts)).astype(np.int64)
    return commits, np.searchsorted(starts, np.append(first[1:], len(labels)))
