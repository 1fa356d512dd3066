"""Checks the footer and the headers of the pages of a Parquet body, before Arrow reads it.

Arrow allocates what they say: a structure for each entry of the footer, the unpacked size of each
page, and the number of texts of some encodings. Both are in the compact protocol of Thrift
(parquet.thrift), of which a reader is here: Arrow's own objects for a footer end the process
where a column lacks its metadata.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.columns import COLUMNS_MAX
from galileo.packing.arrow_streams import check_unpacked

STRUCTURES_MAX = 1 << 15
"""Of a footer; each takes up to a kilobyte."""
VALUES_MAX = 1 << 18
PAGES_MAX = 1 << 16
NESTING_MAX = 16
_COUNTED_TEXTS = (6, 7)
"""Encodings of texts whose number Arrow believes: DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY."""
_SCHEMA, _GROUPS, _TEXTS, _COLUMNS, _COLUMN = 2, 4, 5, 1, 3
_NAMES, _VALUES, _FIRST_PAGE, _DICTIONARY_PAGE = 3, 5, 9, 11
_UNPACKED, _PACKED, _DATA, _DICTIONARY, _DATA_2 = 2, 3, 5, 7, 8
_BINARY, _LISTS, _MAP, _STRUCTURE = 8, (9, 10), 11, 12
_MAGIC = b"PAR1"


def check_parquet(data: pa.Buffer, *, bytes_max: int) -> None:
    """Raises InputError if the pages that are needed at a time unpack to more than `bytes_max`.

    Raises:
        InputError: they do, or have an encoding that cannot be bounded; or the footer is too large.
        ValueError: it is no Parquet file.
    """
    view = memoryview(data).cast("B")
    size = int.from_bytes(view[-8:-4], "little")
    if bytes(view[-4:]) != _MAGIC or size > len(view) - 12:
        raise ValueError("the footer is cut off")
    footer = _Thrift(view[len(view) - 8 - size : len(view) - 8]).structure()
    try:
        _check_footer(footer, view, bytes_max)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the footer or a page lacks a value: {error!r}") from error


def _check_footer(footer: dict[int, Any], view: memoryview, bytes_max: int) -> None:
    if len(footer[_SCHEMA]) > 2 * COLUMNS_MAX:
        raise _refusal("columns", f"at most {COLUMNS_MAX:,} columns", "more")
    for text in footer.get(_TEXTS) or ():
        if text.get(1) == b"ARROW:schema":
            check_unpacked(pa.py_buffer(base64.b64decode(text.get(2, b""))), bytes_max=bytes_max)
    pages = 0
    for group in footer[_GROUPS]:
        unpacked = 0
        for chunk in group[_COLUMNS]:
            most, count = _unpacked_bytes(view, chunk[_COLUMN])
            unpacked, pages = unpacked + most, pages + count
            if unpacked > bytes_max:
                raise _refusal(
                    "page_bytes", f"pages of at most {bytes_max:,} bytes unpacked", f"{unpacked:,}"
                )
            if pages > PAGES_MAX:
                raise _refusal("pages", f"at most {PAGES_MAX:,} pages", "more")


def _unpacked_bytes(view: memoryview, column: dict[int, Any]) -> tuple[int, int]:
    """The unpacked size of the dictionary and the largest page of a column, and its pages."""
    starts = [column[_FIRST_PAGE], column.get(_DICTIONARY_PAGE) or 0]
    place, values, pages, largest, dictionary = min(filter(None, starts), default=0), 0, 0, 0, 0
    if place < 0:
        raise ValueError("a page has a negative place")
    while values < column[_VALUES] and place < len(view) and pages <= PAGES_MAX:
        header = _Thrift(view[place:])
        page = header.structure()
        unpacked, packed = page.get(_UNPACKED, 0), page.get(_PACKED, 0)
        data = page.get(_DATA) or page.get(_DATA_2) or {}
        # Arrow gives 16 bytes to each text of a dictionary.
        texts = 16 * (page.get(_DICTIONARY) or {}).get(1, 0)
        if min(unpacked, packed, texts, data.get(1, 0)) < 0:
            raise ValueError("a page has a negative size")
        if data.get(4 if _DATA_2 in page else 2) in _COUNTED_TEXTS:
            name = b".".join(column[_NAMES]).decode(errors="replace")
            raise _refusal(
                "encoding",
                f"texts of {name!r:.100} in the encoding PLAIN or RLE_DICTIONARY",
                "DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY",
            )
        place, pages, values = place + header.place + packed, pages + 1, values + data.get(1, 0)
        dictionary += (unpacked + texts) * (_DICTIONARY in page)
        largest = max(largest, unpacked)
    return dictionary + largest, pages


def _refusal(kind: str, expected: str, got: str) -> InputError:
    return InputError(
        f"expected a Parquet body with {expected}, got {got}; write smaller pages and row groups, "
        "or send Arrow or JSON lines",
        expected=kind,
    )


class _Thrift:
    """Reads structures as dicts by the numbers of their fields, and counts what it reads.

    Attributes:
        place: behind what was read.
    """

    def __init__(self, data: memoryview) -> None:
        self.place = 0
        self._data = data
        self._values, self._structures = VALUES_MAX, STRUCTURES_MAX

    def structure(self, depth: int = 0) -> dict[int, Any]:
        self._structures -= 1
        if self._structures < 0 or depth > NESTING_MAX:
            raise _refusal("footer", f"at most {STRUCTURES_MAX:,} entries in its footer", "more")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            fields[number] = kind == 1 if kind <= 2 else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self._values -= 1
        if self._values < 0:
            raise _refusal("footer", f"at most {VALUES_MAX:,} values in its footer", "more")
        if kind <= 3:
            return self._byte()
        if kind <= 6:
            return self._number()
        if kind == _STRUCTURE:
            return self.structure(depth + 1)
        if kind in _LISTS:
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15, depth) for _ in range(size)]
        if kind == _MAP or kind > _STRUCTURE:
            raise ValueError(f"a value of the unknown kind {kind}")
        size = self._unsigned() if kind == _BINARY else 8
        self.place += size
        if self.place > len(self._data):
            raise ValueError("the footer or a page is cut off")
        return bytes(self._data[self.place - size : self.place])

    def _byte(self) -> int:
        self.place += 1
        if self.place > len(self._data):
            raise ValueError("the footer or a page is cut off")
        return self._data[self.place - 1]

    def _number(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number is too long")
