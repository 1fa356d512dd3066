"""The disk of a simulated node for spilled caches."""

from __future__ import annotations

from galileo.ccq.pack_codec import from_bytes, to_bytes
from galileo.errors import CorruptData
from galileo.packing import Compression
from galileo.packs import PackedLabels
from simulator.logs import SCHEMA
from simulator.loop import Loop


class SpillDisk:
    """Files of packs; some cannot be written, others are corrupt when read."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._files: dict[int, bytes] = {}

    def clear(self) -> None:
        """Delete files of earlier runs."""
        self._files = {}

    def write(self, number: int, labels: PackedLabels, fails: float) -> int | None:
        """Write a file; return its size, None if the disk refuses."""
        assert number not in self._files, f"file {number} is written twice"
        if self._loop.chance(fails):
            self._loop.counters["packs not spilled"] += 1
            return None
        self._loop.counters["packs spilled"] += 1
        self._files[number] = to_bytes(labels, Compression.NONE)
        return len(self._files[number])

    def read(self, number: int, fails: float) -> PackedLabels | None:
        """The labels of a file; None if it is lost or corrupt."""
        data = self._files.get(number)
        if data is None:
            return None
        if self._loop.chance(fails):
            self._loop.counters["spill files damaged"] += 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        try:
            labels = from_bytes(data, SCHEMA)
        except CorruptData:
            return None
        self._loop.counters["packs loaded"] += 1
        return labels

    def drop(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            del self._files[number]
