"""Texts that clients send: tokens, queries, samplers, durations, windows, schemas."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import google_crc32c

from fuzzing.targets import Target
from galileo.cursor import Cursor
from galileo.errors import QuerySyntaxError
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema
from galileo.model.times import seconds
from galileo.model.windows import Window, WindowProgress
from galileo.query.query import parse
from galileo.samplers import SamplerSpec
from galileo.wire import token
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
    cursor, told = token.read(text, ccq_id=CCQ)
    assert token.read(token.encode(CCQ, cursor, told), ccq_id=CCQ) == (cursor, told)


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
        yield token.encode(CCQ, cursor, WindowProgress(-5, ((-3, 2), (7, 1)))).encode()


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
)
