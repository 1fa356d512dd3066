"""The disks of a simulated node for records and spilled caches."""

from __future__ import annotations

from galileo.ccq.model import Record
from galileo.ccq.pack_codec import from_bytes, to_bytes
from galileo.ccq.packs import PackedLabels
from galileo.errors import CorruptData
from galileo.packing import Compression
from simulator.logs import SCHEMA
from simulator.loop import Loop


class RecordDisk:
    """Writes are ordered; a suffix of those not synced may be lost."""

    def __init__(self) -> None:
        self._synced: dict[str, Record] = {}
        self._unsynced: list[tuple[str, Record | None]] = []

    def save(self, record: Record, *, durable: bool) -> None:
        self._unsynced.append((record.ccq.id, record))
        if durable:
            self._sync(len(self._unsynced))

    def purge(self, ccq_id: str) -> None:
        self._unsynced.append((ccq_id, None))

    def crash(self, loop: Loop) -> None:
        kept = loop.random.randint(0, len(self._unsynced))
        loop.counters["records lost"] += kept < len(self._unsynced)
        self._sync(kept)
        self._unsynced = []

    def restore(self) -> tuple[Record, ...]:
        self._sync(len(self._unsynced))
        return tuple(self._synced.values())

    @property
    def kept(self) -> tuple[Record, ...]:
        """The records that a crash leaves at least."""
        return tuple(self._synced.values())

    def synced(self, ccq_id: str) -> Record | None:
        """The record after a restart."""
        return self._synced.get(ccq_id)

    def synced_term(self, ccq_id: str) -> int:
        """The term after a restart, 0 for none."""
        record = self._synced.get(ccq_id)
        return record.term if record else 0

    def _sync(self, count: int) -> None:
        for ccq_id, record in self._unsynced[:count]:
            if record is None:
                self._synced.pop(ccq_id, None)
            else:
                self._synced[ccq_id] = record
        del self._unsynced[:count]


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
