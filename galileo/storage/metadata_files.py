"""Small durable values by name, one checksummed file each, replaced as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from pathlib import Path

from galileo.errors import ConfigError, CorruptData, InputError, PartitionReadOnly
from galileo.storage.disk import Disk, make_directory, write_all
from galileo.storage.frame import checksum
from galileo.storage.segment import corrupt_error

SUFFIX = ".record"
TEMPORARY = ".tmp"
RECORD_BYTES_MAX = 64 << 20

FORMAT_VERSION = 1
"""Raised with each change of what any record contains."""
_MAGIC = b"\x89GLR\x0d\x0a\x1a"
_FRONT = struct.Struct("<7sBQ")  # magic, format version, length of the data
_CRC = struct.Struct("<I")  # of the front and the data
_HEADER_BYTES = _FRONT.size + _CRC.size
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_NAME = re.compile(r"[a-z0-9_.-]{1,64}(@[0-9]{1,19})?")


def record_name(name: str) -> str:
    """The name, if it is fit for a record.

    Raises:
        InputError: it is not.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            "expected 1 to 64 of a-z, 0-9, '_', '.' and '-', and a generation such as '@2' or "
            f"none, got {name!r}"
        )
    return name


class MetadataFiles:
    """The records of one directory, which is made when the first one is saved.

    Each operation is atomic and durable; two that change one record must not run at once.
    """

    __slots__ = ("_directory", "_disk", "_made")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._made = False

    def save(self, name: str, data: bytes) -> None:
        """Writes or replaces a record.

        Raises:
            InputError: the name or the size is not allowed.
            PartitionReadOnly: the disk refuses; the record is the old or the new one, whole.
        """
        path = self._path(name)
        if len(data) > RECORD_BYTES_MAX:
            raise InputError(
                f"expected a record of at most {RECORD_BYTES_MAX} bytes, got {len(data)}"
            )
        try:
            if not self._made:
                make_directory(self._disk, self._directory)
                self._made = True
            self._replace(path, data)
        except OSError as error:
            raise _not_saved(path, error) from error

    def load(self, name: str) -> bytes | None:
        """The data of a record, None where there is none.

        Raises:
            CorruptData: the file fails its checksum.
            ConfigError: it does not, and has another format.
        """
        return load_record(self._path(name))

    def load_all(self) -> dict[str, bytes]:
        """All records by name, in the order of names; errors as `load`."""
        loaded = {path: load_record(path) for path in record_paths(self._directory)}
        return {
            path.name.removesuffix(SUFFIX): data
            for path, data in loaded.items()
            if data is not None
        }

    def names(self) -> list[str]:
        """The names of all records, in order."""
        return [path.name.removesuffix(SUFFIX) for path in record_paths(self._directory)]

    def delete(self, name: str) -> None:
        """Deletes a record; nothing happens where there is none.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        path = self._path(name)
        try:
            path.unlink()
            self._disk.sync_directory(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _not_saved(path, error) from error

    def _path(self, name: str) -> Path:
        return self._directory / (record_name(name) + SUFFIX)

    def _replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY)
        temporary.unlink(missing_ok=True)
        descriptor = self._disk.create(temporary)
        try:
            front = _FRONT.pack(_MAGIC, FORMAT_VERSION, len(data))
            header = front + _CRC.pack(checksum([front, data]))
            write_all(self._disk, descriptor, [header, data], offset=0)
            self._disk.fdatasync(descriptor)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._disk.sync_directory(self._directory)


def is_full(error: PartitionReadOnly) -> bool:
    """Whether the disk may do later what it refused: it was full, or could only be read."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _FULL


def record_paths(directory: Path) -> list[Path]:
    """The files of the records in a directory, in the order of names."""
    return sorted(directory.glob(f"*{SUFFIX}")) if directory.exists() else []


def load_record(path: Path) -> bytes | None:
    """The data in a record's file, None where there is no such file; errors as `load`."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    return _decode(path, stored)


def _decode(path: Path, stored: bytes) -> bytes:
    if len(stored) < _HEADER_BYTES:
        raise _corrupt_record(path, f"expected at least {_HEADER_BYTES} bytes, got {len(stored)}")
    front, data = stored[: _FRONT.size], stored[_HEADER_BYTES:]
    magic, version, length = _FRONT.unpack(front)
    [crc] = _CRC.unpack_from(stored, _FRONT.size)
    if magic != _MAGIC or length != len(data) or crc != checksum([front, data]):
        raise _corrupt_record(path, "its magic, length or checksum is wrong")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"expected records of format {FORMAT_VERSION}, got {version} in {path}; start the "
            "version of Galileo that wrote them",
            expected="format_version",
            file=str(path),
        )
    return data


def _corrupt_record(path: Path, reason: str) -> CorruptData:
    return corrupt_error(path, 0, reason=reason)


def _not_saved(path: Path, error: OSError) -> PartitionReadOnly:
    return PartitionReadOnly(
        f"the disk refused to change {path}: {error}. Check the disk and its free space, "
        "then repeat the request",
        file=str(path),
    )
