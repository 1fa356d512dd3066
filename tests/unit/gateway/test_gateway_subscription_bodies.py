"""Bodies with subscriptions: each format gives the same rows, and mistakes have their row."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapely
from expected_errors import raises

from galileo.errors import InvalidObservations
from galileo.gateway import subscription_bodies
from galileo.gateway.problems import RequestRefused
from galileo.gateway.subscription_bodies import tables_of
from galileo.model.table import Table

TABLE = Table(
    "hot.subscriptions",
    {"id": "text", "broker": "text", "least": "float", "area": "geometry"},
    "id",
)
Rows = list[dict[str, Any]]


def read(path: Path, format: str, body: bytes) -> pa.Table:
    path.write_bytes(body)
    tables = list(tables_of(path, format, TABLE))
    return pa.concat_tables(tables, promote_options="permissive")


def random_rows(seed: int) -> Rows:
    chance = random.Random(seed)
    texts = ["anna", "2014-03-01", "7", "é", 'a"b', "x,y", "{}"]
    return [
        {
            "id": f"{chance.choice(texts)}{number}",
            "broker": chance.choice(texts),
            "least": chance.choice([1.5, 3.25, -2.0]),
        }
        for number in range(chance.randrange(1, 50))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_each_format_gives_the_same_rows(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_bodies, "PIECE_BYTES", 100)
    rows = random_rows(seed)
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    bodies = {
        "json": json.dumps(rows),
        "ndjson": "\n\n".join(map(json.dumps, rows)),
        "csv": lines.getvalue(),
    }
    for format, body in bodies.items():
        assert read(tmp_path / "body", format, body.encode()).to_pylist() == rows, format
    one = read(tmp_path / "body", "json", json.dumps(rows[0]).encode())
    assert one.to_pylist() == rows[:1]


def test_absent_members_are_null_and_whole_numbers_are_numbers(tmp_path: Path) -> None:
    body = b'{"id": "a", "least": 1}\n{"id": "b", "least": 2.5}\n{"id": "c", "broker": "x"}'
    table = read(tmp_path / "body", "ndjson", body)
    assert table["least"].to_pylist() == [1.0, 2.5, None]
    assert table["broker"].to_pylist() == [None, None, "x"]


@pytest.mark.parametrize("format", ["json", "ndjson"])
def test_unknown_names_are_refused_before_they_become_columns(tmp_path: Path, format: str) -> None:
    rows = [{"id": "a", f"least{number}": 1} for number in range(300)]
    text = json.dumps(rows) if format == "json" else "\n".join(map(json.dumps, rows))
    with raises(InvalidObservations, expected="columns_of_table", unknown_columns=["least0"]):
        read(tmp_path / "body", format, text.encode())


@pytest.mark.parametrize("value", ["[]", "{}", '{"type": 0}'])
def test_many_small_values_are_refused_before_they_are_parsed(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_bodies, "VALUES_MAX", 100)
    for body in (f'{{"id": [{value}' + f", {value}" * 100 + "]}", f"[{value}" + f",{value}" * 99):
        with pytest.raises(RequestRefused, match="at most 100 arrays, objects and members"):
            read(tmp_path / "body", "json", body.encode())


def test_geometries_become_texts(tmp_path: Path) -> None:
    shapes = [shapely.Point(1, 2), shapely.box(0, 0, 1, 1), shapely.LineString([(0, 0), (1, 1)])]
    rows: Rows = [
        {"id": str(number), "area": json.loads(shapely.to_geojson(shape))}
        for number, shape in enumerate(shapes)
    ]
    rows.append({"id": "wkt", "area": "POINT (3 4)"})
    table = read(tmp_path / "body", "json", json.dumps(rows).encode())
    *texts, wkt = table["area"].to_pylist()
    assert [shapely.from_geojson(text) for text in texts] == shapes
    assert wkt == "POINT (3 4)"


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_mistakes_have_their_row(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_bodies, "PIECE_BYTES", piece_bytes)
    good = b'{"id": "a"}\n' * 3
    for wrong in (b"{", b"[1]", b"7", b'"a"', b"null", b"[" * 5_000, b"\xff\xfe\xff"):
        with raises(InvalidObservations, expected="json", row=3):
            read(tmp_path / "body", "ndjson", good + wrong + b"\n" + good)
    with raises(InvalidObservations, expected="json", row=1):
        read(tmp_path / "body", "json", b'[{"id": "a"}, 7]')
    for value in ('"b"', "[]", str(1 << 70)):
        with raises(InvalidObservations, expected="column_type", column="least"):
            body = f'[{{"least": 1.5}}, {{"least": {value}}}, {{"least": true}}]'
            read(tmp_path / "body", "json", body.encode())


def test_subscription_bodies_of_large_rows_are_parsed_in_bounded_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_bodies, "JSON_BYTES_MAX", 100)
    line = json.dumps({"id": "a" * 60}).encode()
    assert len(read(tmp_path / "body", "ndjson", b"\n".join([line] * 9))) == 9
    for format, body in (
        ("json", b"[" + b",".join([line] * 9) + b"]"),
        ("ndjson", json.dumps({"id": "a" * 99}).encode()),
    ):
        with pytest.raises(RequestRefused, match="at most 100 bytes"):
            read(tmp_path / "body", format, body)
