"""A log of very many small durable values by name, with as few syncs as possible.

Values are written in batches, each a record of its own (`galileo.storage.metadata_files`) under the
next number, so a batch is stored as a whole or not at all. The newest batch with a name has its
value; a deletion is an entry without a value. Many batches are merged: the current values of small
and of mostly outdated batches are written into a new one, then those are deleted. So a crash
changes no value, and the space is about twice that of the current values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from galileo.errors import CorruptData
from galileo.storage.disk import Disk
from galileo.storage.metadata_files import MetadataFiles, record_name
from galileo.storage.segment import corrupt_error

BATCH_BYTES_MAX = 8 << 20
"""Values of one batch; a single one may exceed it."""
BATCHES_MAX = 256
"""Number of new batches after which batches are merged again."""
SMALL_BYTES = 1 << 20
"""Batches with fewer bytes are always merged."""

_ENTRY = struct.Struct("<Hq")  # bytes of the name and of the value; -1: deleted
_DELETED = -1

Values = Mapping[str, bytes | None]


@dataclass(slots=True)
class _Batch:
    """A batch on disk: its bytes, and the names of which it has the newest entry."""

    size: int
    live_bytes: int = 0
    names: dict[str, int] = field(default_factory=dict)


class MetadataLog:
    """The batches of one directory. One thread at a time may use it.

    Raises:
        CorruptData: a batch fails its checksum.
    """

    def __init__(self, directory: Path, disk: Disk, *, batches_max: int = BATCHES_MAX) -> None:
        self._path = directory
        self._files = MetadataFiles(directory, disk)
        self._batches_max = batches_max
        self._batches: dict[int, _Batch] = {}
        self._newest: dict[str, int] = {}
        self._merged = 0
        for name, data in self._files.load_all().items():
            self._index_batch(self._number(name), dict(self._entries(name, data)), len(data))
        self._last = max(self._batches, default=0)
        self._delete_empty()

    def __contains__(self, name: str) -> bool:
        """Whether there is an entry, be it that it was deleted."""
        return name in self._newest

    def load_all(self) -> dict[str, bytes]:
        """All values by name."""
        records: dict[str, bytes] = {}
        for number, batch in sorted(self._batches.items()):
            stored = self._read(number).items()
            records |= {n: v for n, v in stored if n in batch.names and v is not None}
        return records

    def save(self, values: Values) -> None:
        """Writes values, and deletes those that are None; durable on return.

        Raises:
            InputError: a name is not allowed.
            PartitionReadOnly: the disk refuses; some of the values may be stored.
        """
        for name in values:
            record_name(name)
        known = {n: v for n, v in values.items() if v is not None or n in self._newest}
        for part in _parts(known):
            self._write(part)
        if len(self._batches) - self._merged > self._batches_max:
            self._merge()

    # --- inside ------------------------------------------------------------------------------

    def _write(self, values: Values) -> None:
        data = b"".join(_encode_entry(name, value) for name, value in values.items())
        self._files.save(f"{self._last + 1:016d}", data)
        self._last += 1
        self._index_batch(self._last, values, len(data))

    def _index_batch(self, number: int, values: Values, size: int) -> None:
        """A batch has come that is newer than all others."""
        batch = self._batches[number] = _Batch(size)
        for name, value in values.items():
            before = self._newest.get(name)
            if before is not None:
                old = self._batches[before]
                old.live_bytes -= old.names.pop(name)
            batch.names[name] = _ENTRY.size + len(name) + len(value or b"")
            batch.live_bytes += batch.names[name]
            self._newest[name] = number

    def _merge(self) -> None:
        chosen = [
            number
            for number, batch in self._batches.items()
            if batch.size < SMALL_BYTES or 2 * batch.live_bytes < batch.size
        ]
        # A deletion has to stay as long as an older batch may have the name.
        oldest_left = min((n for n in self._batches if n not in chosen), default=self._last + 1)
        values: dict[str, bytes | None] = {}
        for number in chosen:
            live = self._batches[number].names
            for name, value in self._read(number).items():
                if name in live and (value is not None or number > oldest_left):
                    values[name] = value
                elif name in live:
                    del self._newest[name], live[name]
        for part in _parts(values):
            self._write(part)
        self._delete_empty()
        self._merged = len(self._batches)

    def _delete_empty(self) -> None:
        """Deletes the batches of which nothing counts, the oldest first."""
        for number in [n for n, batch in sorted(self._batches.items()) if not batch.names]:
            self._files.delete(f"{number:016d}")
            del self._batches[number]

    def _read(self, number: int) -> dict[str, bytes | None]:
        name = f"{number:016d}"
        data = self._files.load(name)
        if data is None:
            raise corrupt_error(self._path / f"{name}.record", 0, reason="the file is missing")
        return dict(self._entries(name, data))

    def _entries(self, name: str, data: bytes) -> Iterator[tuple[str, bytes | None]]:
        at = 0
        try:
            while at < len(data):
                name_bytes, value_bytes = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size + name_bytes
                if value_bytes < _DELETED:
                    raise self._unexpected_file(name, f"a value claims {value_bytes} bytes")
                key = data[at - name_bytes : at].decode()
                value = None if value_bytes == _DELETED else data[at : at + value_bytes]
                at += max(0, value_bytes)
                yield key, value
        except (struct.error, UnicodeDecodeError) as error:
            raise self._unexpected_file(name, str(error)) from error
        if at != len(data):
            raise self._unexpected_file(name, "its last value is cut off")

    def _number(self, name: str) -> int:
        if not name.isdecimal():
            raise self._unexpected_file(name, "it is not named by a number")
        return int(name)

    def _unexpected_file(self, name: str, reason: str) -> CorruptData:
        return corrupt_error(self._path / f"{name}.record", 0, reason=reason)


def _encode_entry(name: str, value: bytes | None) -> bytes:
    size = _DELETED if value is None else len(value)
    return _ENTRY.pack(len(name), size) + name.encode() + (value or b"")


def _parts(values: Values) -> Iterator[dict[str, bytes | None]]:
    """The values in batches of bounded size."""
    part: dict[str, bytes | None] = {}
    size = 0
    for name, value in values.items():
        part[name] = value
        size += len(value or b"")
        if size >= BATCH_BYTES_MAX:
            yield part
            part, size = {}, 0
    if part:
        yield part
