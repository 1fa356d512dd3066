"""Labels of many continuous queries packed together.

Packing costs some milliseconds however few labels there are, and a cycle can find a few for each of
very many CCQs. So their labels are packed as one, and each CCQ's pack names its commits in it. The
memory is given back when the last of them lets go; a CCQ that gathers many small chunks packs its
own anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.ccq.packs import Pack, PackedLabels, pack_labels
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.packing import pack

SHARED_ROWS = 8_192
"""Labels that are packed together, about; more of one CCQ are packed by themselves."""

Rows = npt.NDArray[np.int64]


def pack_many(
    schema: Schema, table: pa.Table, starts: Rows, *, compressed: bool
) -> list[PackedLabels]:
    """The labels of each of several CCQs.

    Args:
        schema: of their dataset.
        table: those of one CCQ behind those of another, each in commit order.
        starts: first row of each, ascending from 0 on; each has one at least.
        compressed: whether packs are compressed with LZ4.
    """
    stops = np.append(starts[1:], table.num_rows)
    shared = np.flatnonzero(stops - starts <= SHARED_ROWS)
    found: dict[int, PackedLabels] = {}
    for numbers in _together(shared, stops - starts):
        found |= _packed(
            schema, table, numbers=numbers, starts=starts, stops=stops, compressed=compressed
        )
    for number, start, stop in zip(
        range(len(starts)), starts.tolist(), stops.tolist(), strict=True
    ):
        if number not in found:
            alone = pack_labels(
                LabelSet(schema, table.slice(start, stop - start)), compressed=compressed
            )
            assert alone is not None, "a CCQ without labels"
            found[number] = alone
    return [found[number] for number in range(len(starts))]


def _together(numbers: Rows, sizes: Rows) -> Iterator[Rows]:
    """As many at a time as have `SHARED_ROWS` rows, about."""
    if len(numbers):
        before = np.cumsum(sizes[numbers]) - sizes[numbers]
        yield from np.split(numbers, np.flatnonzero(np.diff(before // SHARED_ROWS)) + 1)


def _packed(
    schema: Schema,
    table: pa.Table,
    *,
    numbers: Rows,
    starts: Rows,
    stops: Rows,
    compressed: bool,
) -> dict[int, PackedLabels]:
    """The labels of some neighbours, which may have others between them."""
    sizes = stops[numbers] - starts[numbers]
    first = np.cumsum(sizes) - sizes
    parts = [
        table.slice(start, size) for start, size in _stretches(starts[numbers], stops[numbers])
    ]
    together = pa.concat_tables(parts).combine_chunks()
    data = pack(together, compressed=compressed)
    commits, ends = _commits(LabelSet(schema, together), first)
    found: dict[int, PackedLabels] = {}
    begin = 0
    for number, size, end in zip(numbers.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        one = Pack(data, together.num_rows, commits[:, begin:end], share=size)
        found[number] = PackedLabels(schema, (one,))
        begin = end
    return found


def _stretches(starts: Rows, stops: Rows) -> Iterator[tuple[int, int]]:
    """Start and size of rows that lie one behind the other."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = starts[np.append(0, breaks)]
    lasts = stops[np.append(breaks - 1, len(stops) - 1)]
    yield from zip(firsts.tolist(), (lasts - firsts).tolist(), strict=True)


def _commits(labels: LabelSet, first: Rows) -> tuple[npt.NDArray[np.int64], Rows]:
    """As `Pack.commits`, those of each CCQ apart; and where each CCQ's end."""
    partitions, sequences = labels.partitions, labels.sequences
    begins = np.zeros(len(labels), dtype=np.bool_)
    begins[first] = True
    begins[1:] |= (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(labels)))
    commits = np.stack((partitions[starts], sequences[starts], starts, counts)).astype(np.int64)
    return commits, np.searchsorted(starts, np.append(first[1:], len(labels)))
