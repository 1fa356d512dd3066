from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from galileo.storage.producers import ProducerIndex

KEYS = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2**64 - 1) | st.integers(0, 20))


@given(st.lists(KEYS, unique=True, max_size=60), KEYS)
def test_it_answers_like_a_dictionary(keys: list[tuple[str, int]], other: tuple[str, int]) -> None:
    index, expected = ProducerIndex(), {}
    for sequence, (producer, batch) in enumerate(keys, start=1):
        index.add(producer, batch, sequence=sequence)
        expected[producer, batch] = sequence
    for producer, batch in [*keys, other]:
        assert index.sequence_of(producer, batch) == expected.get((producer, batch))
    for producer in "abc":
        batches = [batch for name, batch in keys if name == producer]
        assert index.last_batch(producer) == max(batches, default=None)
