"""The disk on which a simulated node keeps its records."""

from __future__ import annotations

from galileo.ccq.model import Record
from galileo.testing.simulator.loop import Loop


class RecordDisk:
    """Writes happen in order; those that were not synced may be lost from the end."""

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

    def synced_term(self, ccq_id: str) -> int:
        """The term that a restart would find, 0 for none."""
        record = self._synced.get(ccq_id)
        return record.term if record else 0

    def _sync(self, count: int) -> None:
        for ccq_id, record in self._unsynced[:count]:
            if record is None:
                self._synced.pop(ccq_id, None)
            else:
                self._synced[ccq_id] = record
        del self._unsynced[:count]
