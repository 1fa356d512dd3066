from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galileo.storage.producers import ProducerIndex

KEYS = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2**64 - 1) | st.integers(0, 20))


@given(st.lists(KEYS, unique=True, max_size=60), KEYS)
def test_producer_index_random_keys_equal_dict(
    keys: list[tuple[str, int]], other: tuple[str, int]
) -> None:
    index, expected = ProducerIndex(), {}
    for sequence, (producer, batch) in enumerate(keys, start=1):
        index.add(producer, batch, sequence=sequence)
        expected[producer, batch] = sequence
    for producer, batch in [*keys, other]:
        assert index.sequence_of(producer, batch) == expected.get((producer, batch))
    for producer in "abc":
        batches = [batch for name, batch in keys if name == producer]
        assert index.last_batch(producer) == max(batches, default=None)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2**64 - 1)), unique=True),
    st.integers(0, 20),
)
def test_producer_index_random_many_equal_single_adds(
    batches: list[tuple[str, int]], cut: int
) -> None:
    many, model = ProducerIndex(), {batch: n for n, batch in enumerate(batches, start=1)}
    for part in (batches[:cut], batches[cut:]):
        for producer in "ab":
            mine = [batch for batch in part if batch[0] == producer]
            many.add_many(
                producer,
                np.array([number for _, number in mine], dtype=np.uint64),
                sequences=np.array([model[batch] for batch in mine], dtype=np.int64),
            )
    for producer, number in batches:
        assert many.sequence_of(producer, number) == model[producer, number]
    for producer in "ab":
        mine = [number for name, number in batches if name == producer]
        assert many.last_batch(producer) == max(mine, default=None)
