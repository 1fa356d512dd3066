"""What clients send: tokens, queries, documents, shapes, labels, archives, messages, HTTP."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from fuzzing.targets import Target
from galileo.cursor import Cursor
from galileo.errors import InputError, InternalError, QuerySyntaxError
from galileo.gateway.problems import RequestRefused
from galileo.gateway.sparql_protocol import Request, negotiate, query_text
from galileo.geo import cover, geohash, regions
from galileo.labels import level_texts, level_value, parse_label
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema
from galileo.model.times import seconds
from galileo.model.windows import Window, WindowProgress
from galileo.query.query import parse
from galileo.sampler_package import MANIFEST, SamplerArchive, archive_of
from galileo.samplers import SamplerSpec
from galileo.testing.conformance import sample_labels
from galileo.wire import token
from galileo.wire.codec import cursor_from_pb, kept_rows, windows_from_pb
from galileo.wire.status import error_from_pb
from galileo.wire.v1 import common_pb2, continuous_pb2
from galileo.wire.value_json import values_from_json, values_to_json

SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("levels", type="int"),
        Feature("station", type="text"),
        Feature("wind", "m/s", indexed=False),
        Feature("frozen", type="bool"),
    ],
    geohash_precision=4,
)
CCQ = "ccq-1"


def text_of(data: bytes) -> str:
    """What gRPC would hand on: text that is UTF-8, or nothing."""
    return data.decode("utf-8", "ignore")


def _token(data: bytes) -> None:
    text = text_of(data)
    position = token.read(text, ccq_id=CCQ)
    assert token.read(position.encode(CCQ), ccq_id=CCQ) == position


def _token_body(data: bytes) -> None:
    """What stands before the checksum, which is put right."""
    checksum: int = google_crc32c.value(data)
    _token(base64.urlsafe_b64encode(data + checksum.to_bytes(4, "big")).rstrip(b"="))


def _token_bodies() -> Iterator[bytes]:
    for text in _tokens():
        yield base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))[:-4]


def _tokens() -> Iterator[bytes]:
    for cursor in (Cursor(), Cursor({0: 1}), Cursor({3: 2**40, 900: 17})):
        yield token.encode(CCQ, cursor).encode()
        progress = WindowProgress(-5, ((-3, 2), (7, 1)))
        yield token.Position(cursor, progress).encode(CCQ).encode()


def _query(data: bytes) -> None:
    query = parse(text_of(data), SCHEMA)
    again = parse(query.to_json(), SCHEMA)
    assert again.to_json() == query.to_json(), "a query means another thing after a round trip"


def _queries() -> Iterator[bytes]:
    texts = [
        "temperature > 290 AND NOT (levels BETWEEN 1 AND 3 OR station LIKE 'a%_b')",
        "station IN ('x', 'y') OR temperature IS NOT NULL OR frozen = TRUE",
        "S_INTERSECTS(geometry, POLYGON((170 10, -170 10, -170 20, 170 20, 170 10)))",
        "DWITHIN(geometry, POINT(-105 40), 50000) AND geohash LIKE '9x%'",
        "T_DURING(datetime, INTERVAL('2014-03-01T00:00:00Z', '2014-03-02T00:00:00Z'))",
        "datetime >= TIMESTAMP('2014-03-05T00:00:00Z') AND S_INTERSECTS(geometry, BBOX(1,2,3,4))",
    ]
    for text in texts:
        yield text.encode()
        try:
            yield parse(text, SCHEMA).to_json().encode()
        except QuerySyntaxError:
            continue


def _document(data: bytes) -> None:
    """The small JSON documents, chosen by the first byte."""
    kind, text = data[:1], text_of(data[1:])
    if kind == b"s":
        spec = SamplerSpec.from_json(text)
        assert SamplerSpec.from_json(spec.to_json()) == spec
    elif kind == b"r":
        held = VersionedRetention.from_json(text)
        assert VersionedRetention.from_json(held.to_json()) == held
    elif kind == b"w":
        window = Window.from_json(text)
        assert Window.from_json(window.to_json()) == window
    elif kind == b"d":
        schema = Schema.from_json(text)
        assert Schema.from_json(schema.to_json()) == schema
    elif kind == b"t":
        seconds(text)
    else:
        values = values_from_json(text)
        assert values_to_json(values_from_json(values_to_json(values))) == values_to_json(values)


def _documents() -> Iterator[bytes]:
    yield b"s" + SamplerSpec("uniform", {"fraction": 0.5}, 7).to_json().encode()
    yield b"r" + VersionedRetention(3, Retention("1d")).to_json().encode()
    yield b"d" + SCHEMA.to_json().encode()
    yield b"t90m"
    yield b"v" + values_to_json(("9x", 1.5, None, 3, True)).encode()
    yield b"w" + Window.sliding("1h", slide="30m").to_json().encode()


PRECISION = 3
LABELS = sample_labels(seed=1).in_commit_order()


# --- shapes and labels -----------------------------------------------------------------------


def _shape(data: bytes) -> None:
    """A GeoJSON geometry; its cover must hold the cells of its corners and of points in it."""
    try:
        raw = json.loads(text_of(data))
    except (ValueError, RecursionError):
        raise InputError("no JSON") from None
    if isinstance(raw, list):
        region = regions.from_box(raw)
    elif isinstance(raw, dict):
        region = regions.from_geojson(raw)
    else:
        raise InputError("no geometry")
    found = cover.from_region(region, PRECISION)
    west, south, east, north = np.array(region.extents).T
    rng = np.random.default_rng(len(data))
    longitude = np.concatenate([west, rng.uniform(np.repeat(west, 16), np.repeat(east, 16))])
    latitude = np.concatenate([south, rng.uniform(np.repeat(south, 16), np.repeat(north, 16))])
    within = region.intersects_points(latitude, longitude)
    cells = geohash.encode(latitude[within], longitude[within], PRECISION)
    assert (found.relations(cells) != cover.CellRelation.OUTSIDE).all(), (
        "a point of a shape is outside of its cover"
    )


def _shapes() -> Iterator[bytes]:
    ring = [[170, 10], [190, 10], [190, 20], [170, 20], [170, 10]]
    hole = [[175, 12], [180, 12], [180, 15], [175, 12]]
    for kind, coordinates in (
        ("Point", [-105.25, 40.0]),
        ("MultiPoint", [[1, 2], [3, 4]]),
        ("LineString", [[-180, -90], [180, 90]]),
        ("MultiLineString", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        ("Polygon", [ring, hole]),
        ("MultiPolygon", [[ring, hole], [[[0, 0], [1, 0], [0, 1], [0, 0]]]]),
    ):
        yield json.dumps({"type": kind, "coordinates": coordinates}).encode()
    yield b"[170, -10, -170, 10]"


def _label(data: bytes) -> None:
    """A label of sampled data: what is read of it must be what its values are written as."""
    text = text_of(data)
    parts = parse_label(LABELS.schema, text)
    assert min(parts["partition"], parts["sequence"], parts["row"]) >= 0
    for feature in LABELS.schema.indexed:
        column = pa.array(
            [parts[feature.name]], LABELS.schema.label_schema.field(feature.name).type
        )
        (text,) = level_texts(column, feature).to_pylist()
        assert level_value(text, feature) == parts[feature.name]


def _label_texts() -> Iterator[bytes]:
    for text in LABELS.texts().slice(0, 12).to_pylist():
        yield text.encode()


# --- archives --------------------------------------------------------------------------------


def _archive(data: bytes) -> None:
    found = SamplerArchive.from_bytes(data)
    assert SamplerArchive.from_bytes(found.data) == found
    assert hashlib.sha256(found.data).hexdigest() == found.digest


def _archives() -> Iterator[bytes]:
    source = b"class Tenth:\n    def sample(self, labels, *, seed):\n        return labels.rows\n"
    made = archive_of({"tenth.py": source, "a/b.txt": b"b"}, name="tenth", entry="tenth:Tenth")
    yield made.data
    with zipfile.ZipFile(io.BytesIO(made.data)) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    assert MANIFEST in members
    yield buffer.getvalue()


# --- messages --------------------------------------------------------------------------------


def _kept(value: common_pb2.Cursor) -> None:
    kept_rows(LABELS.table.slice(0, 20), (list(value.partitions), list(value.sequences)))


def _error(value: common_pb2.Error) -> None:
    assert isinstance(error_from_pb(value).details, dict)


_CONVERSIONS: tuple[tuple[type[Message], Callable[[Any], object]], ...] = (
    (common_pb2.Cursor, cursor_from_pb),
    (continuous_pb2.Windows, windows_from_pb),
    (common_pb2.Error, _error),
    (common_pb2.Cursor, _kept),
)


def _conversion(data: bytes) -> None:
    """A message, chosen by the first byte, as the value that it stands for."""
    kind, convert = _CONVERSIONS[(data[0] if data else 0) % len(_CONVERSIONS)]
    try:
        message = kind.FromString(data[1:])
    except DecodeError:
        raise InputError("no message") from None
    convert(message)


def _conversions() -> Iterator[bytes]:
    cursor = common_pb2.Cursor(partitions=[0, 1], sequences=[4, 5])
    examples: tuple[Message, ...] = (
        cursor,
        continuous_pb2.Windows(
            clock_us=1, size_us=2, starts=bytes(16), labels=bytes(16), states=bytes(2)
        ),
        common_pb2.Error(kind="input", message="no", details_json='{"node": "a"}'),
        cursor,
    )
    for number, message in enumerate(examples):
        yield bytes([number]) + message.SerializeToString()


# --- HTTP ------------------------------------------------------------------------------------


def _http(data: bytes) -> None:
    """Lines: method, query of the URL, content type, accept; behind them the body."""
    method, query, kind, accept, body = (data.split(b"\n", 4) + [b""] * 5)[:5]
    headers = {"content-type": kind.decode("latin-1")} if kind else {}
    request = Request(method.decode("latin-1"), query.decode("latin-1"), headers, body)
    try:
        text = query_text(request)
        for answer in ("solutions", "boolean", "triples"):
            negotiate(accept.decode("latin-1"), answer)
    except RequestRefused as refusal:
        raise InputError(refusal.text) from None
    if not isinstance(text, str):
        raise InternalError(f"understood {text!r}")


def _https() -> Iterator[bytes]:
    yield b"GET\nquery=SELECT%20*\n\n*/*\n"
    yield b"POST\n\napplication/sparql-query; charset=utf-8\ntext/csv;q=0.5, */*\nASK {}"
    yield b"POST\n\napplication/x-www-form-urlencoded\n*/*\nquery=ASK+%7B%7D"


TARGETS = (
    Target("token", "resume tokens", _token, _tokens, 512, weight=2),
    Target(
        "token-body", "resume tokens, right checksum", _token_body, _token_bodies, 512, weight=3
    ),
    Target("query", "CQL2, text and JSON, bound to a schema", _query, _queries, 2048, weight=4),
    Target(
        "document",
        "samplers, retentions, windows, schemas, durations and values as text",
        _document,
        _documents,
        2048,
        weight=2,
    ),
    Target(
        "shape", "GeoJSON geometries and boxes, with their covers", _shape, _shapes, 1024, weight=4
    ),
    Target("label", "labels of paths as text", _label, _label_texts, 256, weight=2),
    Target("archive", "archives of samplers", _archive, _archives, 4096, weight=3),
    Target(
        "conversion",
        "messages as the values that they stand for",
        _conversion,
        _conversions,
        weight=3,
    ),
    Target("http", "requests with SPARQL queries", _http, _https, 1024, weight=1),
)
