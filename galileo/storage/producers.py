"""The batches of each producer in a partition, to recognise repeated ones."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.storage.compacted_format import SegmentIndex

Numbers: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(slots=True)
class _Batches:
    """Batch numbers in ascending order, and the commit sequence of each."""

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    sequences: array[int] = field(default_factory=lambda: array("Q"))


class ProducerIndex:
    """Maps (producer, batch) to the commit sequence; 16 bytes a batch.

    Producers count upwards, so an insertion nearly always appends.
    """

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[str, _Batches] = {}

    def add(self, producer: str, batch: int, *, sequence: int) -> None:
        batches = self._producers.setdefault(producer, _Batches())
        place = bisect_left(batches.numbers, batch)
        batches.numbers.insert(place, batch)
        batches.sequences.insert(place, sequence)

    def add_many(self, producer: str, batches: Numbers, *, sequences: Numbers) -> None:
        """Adds batches of one producer; `batches` and `sequences` have one entry each."""
        if len(batches) == 0:
            return
        order = np.argsort(batches, kind="stable")
        numbers, places = batches[order].astype(np.uint64), sequences[order].astype(np.uint64)
        known = self._producers.setdefault(producer, _Batches())
        if known.numbers and known.numbers[-1] > int(numbers[0]):
            for batch, sequence in zip(numbers.tolist(), places.tolist(), strict=True):
                self.add(producer, batch, sequence=sequence)
        else:
            known.numbers.frombytes(numbers.tobytes())
            known.sequences.frombytes(places.tobytes())

    def add_merged(self, index: SegmentIndex) -> None:
        """Adds all batches of a merged segment."""
        sequences = np.arange(index.commits.num_rows) + index.first_sequence
        producers = index.commits.column("producer")
        codes, batches = producers.indices.to_numpy(), index.commits.column("batch").to_numpy()
        for code, producer in enumerate(producers.dictionary.to_pylist()):
            mine = codes == code
            self.add_many(producer, batches[mine], sequences=sequences[mine])

    def remove(self, producer: str, batch: int) -> None:
        """Removes a batch that is known."""
        batches = self._producers[producer]
        place = bisect_left(batches.numbers, batch)
        del batches.numbers[place], batches.sequences[place]
        if not batches.numbers:
            del self._producers[producer]

    def truncate(self, until: int) -> None:
        """Removes the batches of commits up to a sequence."""
        for producer, batches in list(self._producers.items()):
            sequences = np.array(batches.sequences, dtype=np.uint64)
            is_newer = sequences > until
            if is_newer.all():
                continue
            numbers = np.array(batches.numbers, dtype=np.uint64)[is_newer]
            if len(numbers):
                self._producers[producer] = _Batches(
                    array("Q", numbers.tobytes()), array("Q", sequences[is_newer].tobytes())
                )
            else:
                del self._producers[producer]

    def sequence_of(self, producer: str, batch: int) -> int | None:
        batches = self._producers.get(producer)
        if batches is None:
            return None
        place = bisect_left(batches.numbers, batch)
        if place == len(batches.numbers) or batches.numbers[place] != batch:
            return None
        return batches.sequences[place]

    def last_batch(self, producer: str) -> int | None:
        """The highest batch number of a producer, None where it has committed nothing."""
        batches = self._producers.get(producer)
        return batches.numbers[-1] if batches else None
