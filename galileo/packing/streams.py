"""A writer and a reader of bytes; the reader checks every length."""

from __future__ import annotations

from galileo.errors import CorruptData

_SEVEN = 0x7F
_VARINT_BYTES_MAX = 10


class ByteWriter:
    """Collects bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def write(self, data: bytes | memoryview) -> None:
        self._parts.append(data)

    def write_number(self, number: int) -> None:
        """A number from 0 to 2**64 - 1, in 1 to 10 bytes of seven bits each, lowest first."""
        parts = bytearray()
        while number > _SEVEN:
            parts.append(number & _SEVEN | 0x80)
            number >>= 7
        parts.append(number)
        self._parts.append(bytes(parts))

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class ByteReader:
    """Reads what a `ByteWriter` collected.

    Raises CorruptData if it ends early or a number is out of range.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def read(self, count: int) -> memoryview:
        end = self._at + count
        if end > len(self._data):
            raise corrupt(f"{count} bytes at {self._at}", f"{len(self._data) - self._at}")
        data = self._data[self._at : end]
        self._at = end
        return data

    def read_rest(self) -> memoryview:
        return self.read(len(self._data) - self._at)

    def read_number(self, *, most: int = 2**64 - 1) -> int:
        at = self._at
        if at < len(self._data) and self._data[at] <= _SEVEN:  # Nearly all are small.
            number = self._data[at]
            self._at = at + 1
        else:
            number = self._read_long()
        if number > most:
            raise corrupt(f"a number of at most {most}", str(number))
        return number

    def _read_long(self) -> int:
        number = 0
        for position in range(_VARINT_BYTES_MAX):
            byte = self.read(1)[0]
            number |= (byte & _SEVEN) << 7 * position
            if byte <= _SEVEN:
                break
        return number


def corrupt(expected: str, came: str) -> CorruptData:
    return CorruptData(
        f"expected {expected} in packed labels, got {came}; they were damaged on the way or in "
        "memory. Fetch them again; if that does not help, look after the machine's memory"
    )
