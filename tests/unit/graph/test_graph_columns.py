from __future__ import annotations

import numpy as np
import pyarrow as pa
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InternalError
from galileo.graph.columns import (
    Commits,
    Paths,
    StringDictionary,
    columns_from_batch,
    paths_from_batch,
    to_labels,
)

SEEDS = st.integers(0, 2**32)


def _paths(world, batch, *, commit=0, texts=None):
    texts = StringDictionary() if texts is None else texts
    return paths_from_batch(
        columns_from_batch(world.schema, batch), batch, commit=commit, texts=texts
    )


@given(seed=SEEDS, size=st.integers(0, 40))
def test_to_labels_random_batch_round_trips(world, seed, size):
    batch, texts = world.batch(seed, size), StringDictionary()
    commits = Commits(np.array([7], dtype=np.int32), np.array([12], dtype=np.int64))
    paths = _paths(world, batch, texts=texts)
    labels = to_labels(world.schema.label_schema, paths, commits=commits, texts=texts)
    place = {"partition": 7, "sequence": 12}
    assert labels.schema == world.schema.label_schema
    assert labels.to_pylist() == [row | place for row in batch.to_pylist()]


@given(seed=SEEDS, sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_string_dictionary_many_batches_keep_codes(world, seed, sizes):
    texts = StringDictionary()
    batches = [world.batch(seed + number, size) for number, size in enumerate(sizes)]
    parts = [_paths(world, batch, texts=texts) for batch in batches]
    bound = texts.bind(Paths.concat(parts).columns)
    expected = [row["station"] for batch in batches for row in batch.to_pylist()]
    assert bound.features["station"].to_arrow().to_pylist() == expected


def test_string_dictionary_bind_few_rows_gives_small_dictionary(world):
    texts = StringDictionary()
    many = pa.array([f"s{number}" for number in range(1000)])
    batch = world.batch(1, 1000)
    batch = batch.set_column(batch.schema.get_field_index("station"), "station", many)
    paths = _paths(world, batch, texts=texts)
    column = texts.bind(paths.columns.take(np.array([998, 3, 3]))).features["station"]
    assert column.to_arrow().to_pylist() == ["s998", "s3", "s3"]
    assert len(column.dictionary) == 2
    assert texts.code("s3") == 3
    assert texts.code("nowhere") == len(texts) == 1000


def test_paths_from_arrays_round_trip_shares_arrays(world):
    paths = _paths(world, world.batch(3, 20))
    again = Paths.from_arrays(world.schema, paths.arrays())
    assert all(a is b for a, b in zip(paths.arrays(), again.arrays(), strict=True))


def test_columns_from_batch_missing_column_raises(world):
    batch = world.batch(1, 3)
    with raises(InternalError, expected="path_columns", dataset="obs"):
        columns_from_batch(world.schema, batch.drop_columns(["station"]))
