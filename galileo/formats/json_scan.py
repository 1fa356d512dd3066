"""Counts the rows and names of a JSON text, before Arrow parses it, and makes lines of an array.

Arrow makes a column of each name and gives it a value in each row. Lines of which each has a name
of its own would take memory that grows with the square of their number. Here a text is scanned in
pieces of bounded size that end at a comma. The path of a name is its hash combined with that of the
path around it; the number of different paths bounds the columns. The elements of arrays
that can have objects, and the objects that are in none, bound the rows.
"""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.formats.memory_file import unpacked_bytes_max

NESTING_MAX = 64
"""Nested arrays and objects; deep nesting overflows the stack of Arrow's parser."""
PATHS_MAX = 8_192
"""Different names, each with the names around it."""
NAME_BYTES_MAX = 4_096
SCAN_BYTES = 1 << 19
VALUE_BYTES = 8
"""Of a value in a column, at most one for each row and path."""
BYTES_PER_BYTE = 16
"""Size of columns for each byte of a text. A row of few of many names takes more than its text."""
SPARE_BYTES = 16 << 20
"""Size of columns that any text may have."""

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
_SEEDS = np.array([secrets.randbits(64) | 1 for _ in range(NAME_BYTES_MAX // 8 + 1)], np.uint64)
"""Random, so that no sender can write names of one hash."""
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]], _STEPS[[ord("]"), ord("}")]] = 1, -1
_IS_BLANK = np.isin(np.arange(256), list(b" \t\r\n"))
_IS_BETWEEN = _IS_BLANK | (np.arange(256) == ord("}"))
"""Bytes outside of objects, with the last one of each."""
_PAIRS = np.array([256 * one + other for one, other in (b"[}", b"[]", b"},", b"}]", b",}")])
"""What may follow what in an array of objects, where the brace that closes one stands for it."""


def check_json(path: Path, data: pa.Buffer, *, scan_bytes: int = SCAN_BYTES) -> None:
    """Raises InputError for a text that Arrow's parser must not get; parses nothing.

    These are deep nesting, values besides objects, at which the parser can end the process, and
    more names or more values than the size of the text allows.
    """
    scan = _Scan(path)
    for piece in _without_escapes(_without_mark(data), scan_bytes):
        scan.add(piece)
    scan.add(b"", is_last=True)
    size = scan.rows * len(scan.paths) * VALUE_BYTES
    most = min(BYTES_PER_BYTE * len(data) + SPARE_BYTES, unpacked_bytes_max(path))
    if size > most:
        raise InputError(
            f"expected JSON whose columns take at most {most:,} bytes in {path}, got about "
            f"{scan.rows:,} rows with {len(scan.paths):,} names; leave out names that few rows "
            "have, or send fewer rows at a time",
            expected="columns",
            bound=most,
        )


def is_array(start: bytes) -> bool:
    """Whether a text begins with an array, after a byte order mark and blanks."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def lines_of_array(path: Path, data: pa.Buffer, *, scan_bytes: int = SCAN_BYTES) -> pa.Buffer:
    """The objects of an array, in lines of their own; other texts as they are.

    Raises:
        InputError: an array has other elements than objects, or is cut off.
    """
    view = _without_mark(data)
    if not is_array(bytes(view[:SCAN_BYTES])):
        return data
    lines = np.frombuffer(view, np.uint8).copy()
    depth, is_text, place, objects, last = 0, False, 0, 0, b""
    for piece in filter(None, _without_escapes(view, scan_bytes)):
        part = np.frombuffer(piece, np.uint8)
        in_text = np.logical_xor.accumulate(part == ord('"')) ^ is_text
        depths = depth + np.cumsum(_STEPS[part] * ~in_text, dtype=np.int32)
        between = np.flatnonzero((depths <= 1) & ~_IS_BLANK[part])
        marks = last + part[between].tobytes()
        codes = np.frombuffer(marks, np.uint8).astype(np.int64)
        wrong = np.flatnonzero(~np.isin(256 * codes[:-1] + codes[1:], _PAIRS))
        end = int(wrong[0]) + 1 if len(wrong) else len(marks)
        objects += marks.count(b"}", len(last), end)
        if len(wrong):
            raise _not_objects(path, objects, repr(chr(marks[end])))
        lines[place + between[part[between] != ord("}")]] = ord("\n")
        depth, is_text, place, last = (
            int(depths[-1]),
            bool(in_text[-1]),
            place + len(part),
            marks[-1:],
        )
    if depth or last != b"]":
        raise _not_objects(path, objects, "the end of the text")
    return pa.py_buffer(lines)


def _not_objects(path: Path, objects: int, got: str) -> InputError:
    return InputError(
        f"expected an array of objects, [{{...}}, {{...}}], in {path}, got {got} after "
        f"{objects:,} objects; correct or replace the file",
        expected="objects",
        row=objects,
    )


def _without_mark(data: pa.Buffer) -> memoryview:
    """A text without its byte order mark."""
    view = memoryview(data)
    return view[len(codecs.BOM_UTF8) :] if bytes(view[:3]) == codecs.BOM_UTF8 else view


def _without_escapes(view: memoryview, scan_bytes: int) -> Iterator[bytes]:
    """Pieces in which a quotation mark begins or ends a text, with a byte for each byte."""
    escaped = b""
    for start in range(0, len(view), scan_bytes):
        piece = escaped + bytes(view[start : start + scan_bytes])
        cut = len(piece) - (len(piece) - len(piece.rstrip(b"\\"))) % 2
        escaped = piece[cut:]
        yield piece[:cut].replace(rb"\\", b"\0\0").replace(rb"\"", b"\0\1")
    yield escaped


class _Scan:
    """The state between two pieces of a text.

    Attributes:
        paths: hashes of the paths that names have.
    """

    def __init__(self, path: Path) -> None:
        self.paths: set[int] = set()
        self._path = path
        self._kept = b""
        self._depth, self._is_text = 0, False
        self._commas, self._names, self._objects, self._arrays = np.zeros(
            (4, NESTING_MAX + 2), np.int64
        )
        self._around_depths, self._around = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        """The latest name of each depth, in their order."""

    @property
    def rows(self) -> int:
        """At least the rows of any column: objects in no array, and elements with objects."""
        elements = self._commas - self._names + self._objects + self._arrays
        has_objects = self._objects[2:] > 0
        return int(self._objects[1] + elements[1:-1][has_objects].sum())

    def add(self, piece: bytes, *, is_last: bool = False) -> None:
        """Counts a piece in which no character is escaped, up to its last comma."""
        data = self._kept + piece
        part = np.frombuffer(data, np.uint8)
        is_mark = part == ord('"')
        in_text = np.logical_xor.accumulate(is_mark) ^ self._is_text
        commas = np.flatnonzero((part == ord(",")) & ~in_text)
        end = int(commas[-1]) + 1 if len(commas) and not is_last else len(part)
        self._kept = data[end:]
        if not end:
            return
        part, in_text = part[:end], in_text[:end]
        depths = self._depth + np.cumsum(_STEPS[part] * ~in_text, dtype=np.int32)
        self._check_depths(part, depths)
        marks = np.flatnonzero(is_mark[:end])
        self._add_names(data[:end], marks, depths, is_last=is_last)
        self._commas += _by_depth(depths[commas[: None if is_last else len(commas)]])
        self._objects += _by_depth(depths[(part == ord("{")) & ~in_text])
        self._arrays += _by_depth(depths[(part == ord("[")) & ~in_text])
        self._depth, self._is_text = int(depths[-1]), bool(in_text[-1])

    def _check_depths(self, part: npt.NDArray[np.uint8], depths: npt.NDArray[np.int32]) -> None:
        if depths.max() > NESTING_MAX:
            raise InputError(
                f"expected at most {NESTING_MAX} nested arrays and objects in "
                f"{self._path}, got more; GeoJSON of points needs 5",
                expected="nesting",
                bound=NESTING_MAX,
            )
        if ((depths <= 0) & ~_IS_BETWEEN[part]).any():
            raise InputError(
                f"expected JSON objects in {self._path}, got others; an array of objects is read "
                "in the format ndjson",
                expected="objects",
            )

    def _add_names(
        self, data: bytes, marks: Integers, depths: npt.NDArray[np.int32], *, is_last: bool
    ) -> None:
        """Adds the paths of the texts that a colon follows.

        Args:
            data: of the piece.
            marks: places of its quotation marks.
            depths: of each byte.
            is_last: whether the text ends with it.
        """
        padded = np.frombuffer(data + bytes(9), np.uint8)
        # A text of an earlier piece is longer than a piece, since there was no comma before it.
        closing, opening = marks[1 - self._is_text :: 2], marks[self._is_text :: 2]
        follows = _after_blanks(padded, closing)
        is_too_long = bool(self._is_text and len(closing) and follows[0] == ord(":"))
        closing, follows = closing[self._is_text :], follows[self._is_text :]
        if len(opening) == len(closing) > 0 and not follows[-1] and not is_last:
            is_too_long = True  # More blanks than a piece has come before the colon.
        is_name = follows == ord(":")
        begins, ends = opening[: len(closing)][is_name] + 1, closing[is_name]
        if is_too_long or np.any(ends - begins > NAME_BYTES_MAX):
            raise InputError(
                f"expected names of at most {NAME_BYTES_MAX:,} bytes in {self._path}, got longer "
                "ones",
                expected="name",
                bound=NAME_BYTES_MAX,
            )
        levels = depths[begins].astype(np.int64)
        self._names += _by_depth(levels)
        levels = np.concatenate([self._around_depths, levels])
        paths = np.concatenate([self._around, _hashes(padded, begins, ends - begins)])
        known = len(self._around)
        places = np.arange(len(levels))
        for level in np.unique(levels[known:]):
            of_level, outside = places[known:][levels[known:] == level], places[levels < level]
            around = np.searchsorted(outside, of_level) - 1
            above = np.where(
                around < 0, np.uint64(0), paths[outside[around]] if len(outside) else 0
            )
            paths[of_level] = _mixed(paths[of_level], above, 0)
        self.paths.update(pc.unique(pa.array(paths[known:])).to_pylist())
        if len(self.paths) > PATHS_MAX:
            raise InputError(
                f"expected at most {PATHS_MAX:,} different names in {self._path}, got more; turn "
                "names into values of a column",
                expected="columns",
                bound=PATHS_MAX,
            )
        _, latest = np.unique(levels[::-1], return_index=True)
        kept = np.sort(len(levels) - 1 - latest)
        self._around_depths, self._around = levels[kept], paths[kept]


def _by_depth(depths: npt.NDArray[np.integer[Any]]) -> Integers:
    return np.bincount(np.maximum(depths, 0), minlength=NESTING_MAX + 2)


def _after_blanks(data: npt.NDArray[np.uint8], places: Integers) -> npt.NDArray[np.uint8]:
    """The first byte after each place that is no blank; the data ends with zeros."""
    follows = data[places + 1]
    is_blank = _IS_BLANK[follows]
    if is_blank.any():
        others = np.flatnonzero(~_IS_BLANK[data])
        follows[is_blank] = data[others[np.searchsorted(others, places[is_blank] + 1)]]
    return follows


def _hashes(data: npt.NDArray[np.uint8], begins: Integers, lengths: Integers) -> Hashes:
    """A hash of each text of some places, eight bytes at a time."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    hashes = lengths.astype(np.uint64)
    some = np.arange(len(begins))
    for number in range(-(-int(lengths.max(initial=0)) // 8)):
        some = some[lengths[some] > 8 * number]
        left = np.minimum(lengths[some] - 8 * number, 8)
        word = words[begins[some] + 8 * number] & _MASKS[left]
        hashes[some] = _mixed(hashes[some], word, number + 1)
    return hashes


def _mixed(hashes: Hashes, words: Hashes, seed: int) -> Hashes:
    mixed: Hashes = (hashes ^ (words * _SEEDS[-1])) * _SEEDS[seed]
    return mixed ^ (mixed >> np.uint64(29))
