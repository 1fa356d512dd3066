"""The bounds of JSON: what a scan counts is at least what a parser finds, and bombs are refused."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import json_scan
from galileo.formats.json_scan import _Scan, check_json, lines_of_array

NAMES = [
    "a",
    "bb",
    "with \\ slash",
    'quo"te',
    "long_name_of_a_column",
    "long_name_of_a_colunm",
    "é",
]
Path_ = tuple[str, ...]


def scanned(text: bytes, scan_bytes: int, monkeypatch: pytest.MonkeyPatch) -> _Scan:
    scans: list[_Scan] = []

    class Kept(_Scan):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            scans.append(self)

    monkeypatch.setattr(json_scan, "_Scan", Kept)
    check_json(Path("body"), pa.py_buffer(text), scan_bytes=scan_bytes)
    return scans[0]


def random_value(chance: random.Random, depth: int) -> Any:
    kind, several = chance.random(), range(chance.randrange(4))
    if depth < 5 and kind < 0.3:
        return {
            f"{chance.choice(NAMES)}{chance.randrange(3)}": random_value(chance, depth + 1)
            for _ in several
        }
    if depth < 5 and kind < 0.5:
        return [random_value(chance, depth + 1) for _ in several]
    return chance.choice([1, 2.5, None, True, "x,y", '{[\\"', '"', "a:b"])


def random_lines(chance: random.Random) -> list[dict[str, Any]]:
    values = [random_value(chance, 0) for _ in range(chance.randrange(1, 12))]
    return [value if isinstance(value, dict) else {"z": value} for value in values]


def paths_of(value: Any, around: Path_ = ()) -> set[Path_]:
    if isinstance(value, list):
        return set().union(*(paths_of(each, around) for each in value))
    if not isinstance(value, dict):
        return set()
    members = value.items()
    return {(*around, name) for name in value} | set().union(
        *(paths_of(each, (*around, name)) for name, each in members)
    )


def rows_of(lines: list[dict[str, Any]]) -> int:
    """The most rows of a column of Arrow: the lines, or the elements of lists with objects."""
    elements: Counter[Path_] = Counter()
    has_objects: set[Path_] = set()

    def add(value: Any, place: Path_) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                add(each, (*place, name))
        elif isinstance(value, list):
            elements[place] += len(value)
            has_objects.update([place] * any(isinstance(each, dict) for each in value))
            for each in value:
                add(each, (*place, "[]"))

    for line in lines:
        add(line, ())
    return max([len(lines), *(elements[place] for place in has_objects)])


@pytest.mark.parametrize("seed", range(30))
def test_no_row_and_no_name_is_missed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    lines = random_lines(chance)
    indent, separators = chance.choice([None, 1]), chance.choice([(",", ":"), (" , ", " : ")])
    texts = (json.dumps(line, indent=indent, separators=separators) for line in lines)
    text = "\n".join(texts).encode()
    counts = set()
    for scan_bytes in (300, 1_000, 1 << 20):
        scan = scanned(text, scan_bytes, monkeypatch)
        assert len(scan.paths) >= len(set().union(*map(paths_of, lines)))
        assert scan.rows >= rows_of(lines)
        counts.add((len(scan.paths), scan.rows))
    assert len(counts) == 1, "the pieces change nothing"


def test_usual_documents_are_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": number, "temperature": 1.5, "note": "a"} for number in range(40)]
    features = [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [1.5, 2.5]},
            "properties": row,
        }
        for row in rows
    ]
    collection = {"type": "FeatureCollection", "features": features}
    scan = scanned("\n".join(map(json.dumps, rows)).encode(), 500, monkeypatch)
    assert (scan.rows, len(scan.paths)) == (40, 3)
    scan = scanned(json.dumps(collection).encode(), 500, monkeypatch)
    assert (scan.rows, len(scan.paths)) == (41, 2 + 3 + 2 + 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("".join(f'{{"n{number}":1}}\n' for number in range(7_000)), "columns"),
        (json.dumps({f"n{number}": 1 for number in range(9_000)}), "columns"),
        (json.dumps({"a": [None] * 9_000 + [dict.fromkeys(map(str, range(999)), 1)]}), "columns"),
        ('{"%s":1}' % ("n" * 5_000), "name"),
        ('{"%s":1}' % ("n" * (1 << 20)), "name"),
        ('{"a"%s:1}' % (" " * (1 << 20)), "name"),
        ('{"a":"%s"}' % ("n" * (1 << 20)), ""),
    ],
)
def test_names_and_rows_are_bounded_before_parsing(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_scan, "SPARE_BYTES", 1 << 20)
    if not expected:
        check_json(Path("body"), pa.py_buffer(text.encode()))
        return
    with raises(InputError, expected=expected):
        check_json(Path("body"), pa.py_buffer(text.encode()))


def test_names_that_differ_in_escapes_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:08b}".replace("0", "\\").replace("1", '"') for number in range(256)]
    text = "\n".join(json.dumps({name: 1}) for name in names)
    assert len(scanned(text.encode(), 1 << 20, monkeypatch).paths) == 256


def laid_out(chance: random.Random, rows: list[dict[str, Any]]) -> bytes:
    """The text of an array with blanks at random places."""
    blank = ["", " ", "\n", " \t\r\n"]
    mark = b"\xef\xbb\xbf" if chance.random() < 0.2 else b""
    texts = [chance.choice(blank) + json.dumps(row) + chance.choice(blank) for row in rows]
    return mark + f"{chance.choice(blank)}[{','.join(texts)}]{chance.choice(blank)}".encode()


@pytest.mark.parametrize("seed", range(200))
def test_lines_of_array_are_its_objects(seed: int) -> None:
    chance = random.Random(seed)
    rows = random_lines(chance)
    text = laid_out(chance, rows)
    lines = lines_of_array(Path("x"), pa.py_buffer(text), scan_bytes=chance.randrange(1, 40))
    decoder, read, rest = json.JSONDecoder(), [], lines.to_pybytes().decode().lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        read, rest = [*read, value], rest[end:].lstrip()
    assert read == rows


@pytest.mark.parametrize("seed", range(200))
def test_lines_of_array_refuses_what_is_no_array_of_objects(seed: int) -> None:
    """A text that was changed in one place is refused only if it is no array of objects."""
    chance = random.Random(seed)
    text = bytearray(laid_out(chance, random_lines(chance)))
    place = chance.randrange(len(text))
    text[place : place + chance.randrange(2)] = chance.choice([b",", b"]", b"[", b"{", b"1", b'"'])
    try:
        value = json.loads(text.decode("utf-8-sig"))
        is_array = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    except ValueError:
        is_array = False
    data, scan_bytes = pa.py_buffer(bytes(text)), chance.randrange(1, 40)
    if is_array:
        lines_of_array(Path("x"), data, scan_bytes=scan_bytes)
        return
    with contextlib.suppress(InputError):  # What is left, Arrow refuses.
        check_json(Path("x"), lines_of_array(Path("x"), data, scan_bytes=scan_bytes))


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("[1]", 0),
        ("[[{}]]", 0),
        ("[[{}]", 0),
        ('["a"]', 0),
        ("[{},]", 1),
        ("[{},,{}]", 1),
        ("[{} {}]", 1),
        ("[,{}]", 0),
        ("[{}, {}", 2),
        ('[{"a": "]', 0),
        ("[{}] []", 1),
        ("[{}] {}", 1),
        ("[{}, null]", 1),
    ],
)
def test_lines_of_array_names_the_first_wrong_element(text: str, row: int) -> None:
    for scan_bytes in (1, 3, 100):
        with raises(InputError, expected="objects", row=row):
            lines_of_array(Path("x"), pa.py_buffer(text.encode()), scan_bytes=scan_bytes)


def test_lines_of_array_leaves_other_texts_as_they_are() -> None:
    data = pa.py_buffer(b'{"a": [1]}')
    assert lines_of_array(Path("x"), data) is data
