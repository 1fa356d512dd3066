"""Labels that are packed together are each CCQ's own all the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.packing import Compression
from galileo.packs import pack_labels, pack_many

SCHEMA = Schema("air", [Feature("t", "K")])
OWNERS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=12),
    min_size=1,
    max_size=8,
)


def labels_of(commits: list[tuple[int, int]]) -> LabelSet:
    """One label for each entry, in commit order."""
    partitions, sequences = (np.array(column) for column in zip(*sorted(commits), strict=True))
    count = len(commits)
    arrays = [
        pa.array(np.arange(count), pa.uint64()),
        times_from_micros(np.arange(count)),
        pa.array(np.arange(count) / 2),
        pa.array(np.arange(count), pa.int32()),
        pa.array(np.ones(count), pa.int32()),
        pa.array(partitions, pa.int32()),
        pa.array(sequences, pa.int64()),
    ]
    return LabelSet(SCHEMA, pa.Table.from_arrays(arrays, schema=SCHEMA.label_schema))


def together(owners, *, compression=Compression.NONE):
    sets = [labels_of(commits) for commits in owners]
    sizes = [len(labels) for labels in sets]
    table = pa.concat_tables([labels.table for labels in sets]).combine_chunks()
    starts = np.cumsum([0, *sizes[:-1]])
    return sets, pack_many(SCHEMA, table, starts, compression=compression, shared_rows=8)


@examples(25)
@given(
    OWNERS,
    st.sampled_from([Compression.NONE, Compression.LZ4]),
    st.dictionaries(st.integers(0, 2), st.integers(0, 5)),
    st.dictionaries(st.integers(0, 2), st.integers(0, 5)),
    st.integers(1, 6),
)
def test_pack_many_random_owners_equal_single_packs(owners, compression, after, until, labels_max):
    sets, found = together(owners, compression=compression)
    assert len(found) == len(owners)
    reached = Cursor(dict.fromkeys(range(3), 5))
    for labels, mine in zip(sets, found, strict=True):
        alone = pack_labels(labels, compression)
        assert len(mine) == len(alone)
        assert mine.labels().table.equals(labels.table)
        window = [one.after(Cursor(after)).until(Cursor(until)) for one in (mine, alone)]
        assert window[0].labels().table.equals(window[1].labels().table)
        cut, cut_alone = (one.cut(reached=reached, labels_max=labels_max) for one in (mine, alone))
        assert cut[1] == cut_alone[1]
        assert cut[0].labels().table.equals(cut_alone[0].labels().table)
        gathered = mine.compact(compression)
        assert gathered.is_whole
        assert gathered.labels().table.equals(labels.table)


def test_pack_many_shared_labels_are_counted_once():
    owners = [[(0, 1), (0, 2)]] * 4
    _, found = together(owners)
    assert len({id(mine.packs[0].data) for mine in found}) == 1
    data = len(found[0].packs[0].data)
    commits = sum(mine.packs[0].commits.nbytes for mine in found)
    assert sum(mine.size for mine in found) == pytest.approx(data + commits, abs=4)
    assert found[0].after(Cursor({0: 1})).size >= data // 4, "what is dropped is still held"


def test_pack_many_large_set_has_own_pack():
    owners = [[(0, 1)], [(0, n) for n in range(1, 10)], [(1, 1)]]
    sets, found = together(owners)
    assert found[1].is_whole
    assert found[0].packs[0].data is found[2].packs[0].data
    for labels, mine in zip(sets, found, strict=True):
        assert mine.labels().table.equals(labels.table)
