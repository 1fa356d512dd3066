"""Bombs as data: small requests that would become large, for nodes and for gateways.

`NODE_BOMBS` are calls. `BODIES` are bodies of at most a megabyte: each format in the shapes that it
can have. They refer to the datasets "numbered" and "notes", and to the channel "hot".
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import socket
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fault_injection.ledger import numbered
from galileo.model.schema import Feature, Schema
from galileo.sampler_package import MANIFEST
from galileo.wire.channel import InstrumentedChannel
from galileo.wire.v1 import cluster_pb2, continuous_pb2, query_pb2, samplers_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk, encode

MIB = 1 << 20
DATASET, CHANNEL = "numbered", "hot"
TIMEOUT_S = 60.0
DEEP = 100_000
LARGE_BYTES = 60 * MIB
PACKAGE = "/galileo.v1."
BODY_BYTES = 900_000
"""About the size of the bodies of texts."""
UNSENT_BYTES = 63 * MIB
HELD_S = 3.0
"""How long a body that is announced and not sent is held."""
NOTES = Schema("notes", [Feature("temperature"), Feature("note", type="text")])
"""Of the dataset that bodies and SPARQL queries are for; nothing is stored meanwhile."""
ITEMS = f"/collections/{NOTES.name}/items"
SUBSCRIPTIONS = f"/channels/{CHANNEL}/subscriptions"
SPARQL = f"/collections/{NOTES.name}/sparql"
FORMATS = {
    "CSV": (ITEMS, "text/csv"),
    "JSON lines": (ITEMS, "application/x-ndjson"),
    "GeoJSON": (ITEMS, "application/geo+json"),
    "Arrow stream": (ITEMS, "application/vnd.apache.arrow.stream"),
    "Arrow file": (ITEMS, "application/vnd.apache.arrow.file"),
    "Parquet": (ITEMS, "application/vnd.apache.parquet"),
    "subscriptions as CSV": (SUBSCRIPTIONS, "text/csv"),
    "subscriptions as lines": (SUBSCRIPTIONS, "application/x-ndjson"),
    "subscriptions as JSON": (SUBSCRIPTIONS, "application/json"),
    "SPARQL": (SPARQL, "application/sparql-query"),
}
"""Path and media type of a body."""
LABELS = "temperature > 309"
"""The filter of SPARQL queries."""


@dataclass(frozen=True, slots=True)
class Bomb:
    """A call of a node.

    Attributes:
        name: in words.
        method: that it is sent to.
        made: its bytes; made before anything is measured.
        streams: whether the answer is a stream.
        compression: of gRPC's own.
        unpacked: bytes that it would become where they are known.
    """

    name: str
    method: str
    made: Callable[[], bytes]
    streams: bool = False
    compression: grpc.Compression = grpc.Compression.NoCompression
    unpacked: int = 0

    def content(self) -> bytes:
        return self.made()

    def send(self, address: str, token: str = "", *, content: bytes | None = None) -> str:
        """How the node answered: the name of a status. Large bombs are sent in pieces."""
        data = self.content() if content is None else content
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=options) as plain:
            channel = InstrumentedChannel(plain, token)
            kind = channel.unary_stream if self.streams else channel.unary_unary
            try:
                reply = kind(PACKAGE + self.method)(
                    data, timeout=TIMEOUT_S, compression=self.compression
                )
                if self.streams:
                    for _ in reply:
                        pass
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"


@dataclass(frozen=True, slots=True)
class Body:
    """A request of a gateway.

    Attributes:
        format: of `FORMATS`, which have the path and the media type.
        shape: why it is a bomb.
        made: its bytes or its text; made before anything is measured.
        unpacked: bytes that it would become where that is more than it has.
        encoding: of the content; "" for none.
        unsent: bytes that are announced beyond it and never sent.
    """

    format: str
    shape: str
    made: Callable[[], bytes | str]
    unpacked: int = 0
    encoding: str = ""
    unsent: int = 0

    @property
    def name(self) -> str:
        return f"{self.format}, {self.shape}"

    def content(self) -> bytes:
        made = self.made()
        return made.encode() if isinstance(made, str) else made

    def head(self, size: int, token: str = "") -> bytes:
        """The head of the request with a content of some bytes."""
        path, media_type = FORMATS[self.format]
        proof = f"Authorization: Bearer {token}\r\n" if token else ""
        encoding = f"Content-Encoding: {self.encoding}\r\n" if self.encoding else ""
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n{proof}"
            f"{encoding}Content-Length: {size + self.unsent}\r\n\r\n"
        ).encode()

    def send(self, address: str, token: str = "", *, content: bytes | None = None) -> str:
        """The status of the answer; "none" if the gateway waits for the rest of the body."""
        content = self.content() if content is None else content
        host, _, port = address.rpartition(":")
        timeout_s = HELD_S if self.unsent else TIMEOUT_S
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            # The answer can come before the body has been sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(self.head(len(content), token) + content)
            try:
                with connection.makefile("rb") as answer:
                    return answer.readline()[9:12].decode()
            except (TimeoutError, ConnectionResetError) as error:
                return "none" if isinstance(error, TimeoutError) else "reset"


# --- Arrow -------------------------------------------------------------------------------------


def _ingest(table: pa.Table, compression: str | None = None, *, times: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for _ in range(times):
            writer.write_table(table)
    head = storage_pb2.IngestRequest(dataset=DATASET, producer="bomb", batch=1)
    return encode(Bulk(head, sink.getvalue()))


def _zeros(compression: str) -> bytes:
    return _ingest(pa.table({"latitude": np.zeros(100_000_000)}), compression)


def _one_text_for_all() -> bytes:
    rows = numbered(0, 1_000_000)
    coded = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(rows), np.int8)), pa.array(["x" * 100_000])
    )
    place = rows.schema.get_field_index("temperature")
    return _ingest(rows.set_column(place, "temperature", coded))


def _coded_zeros() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x" * 800 * MIB]))
    return _ingest(pa.table({"latitude": texts}), "zstd")


def _nothing_at_all() -> bytes:
    return _ingest(pa.table({"latitude": pa.nulls(10**9)}))


def _empty_batches() -> bytes:
    sink = pa.BufferOutputStream()
    empty = numbered(0, 1).to_batches()[0].slice(0, 0)
    with pa.ipc.new_stream(sink, empty.schema) as writer:
        for _ in range(150_000):
            writer.write_batch(empty)
    head = storage_pb2.IngestRequest(dataset=DATASET, producer="bomb", batch=1)
    return encode(Bulk(head, sink.getvalue()))


def _many_columns() -> bytes:
    schema = pa.schema([pa.field(f"a{number}", pa.null()) for number in range(400_000)])
    return _ingest(schema.empty_table())


# --- protobuf, JSON, CQL2, zip -------------------------------------------------------------------


def _parts(size: int) -> bytes:
    """Empty messages in field 1, two bytes each."""
    return b"\x0a\x00" * (size // 2)


def _groups() -> bytes:
    """A field of no known message that opens a group in a group, and so on."""
    return b"\x7b" * DEEP + b"\x7c" * DEEP


def _query(text: str) -> bytes:
    return query_pb2.QueryRequest(dataset=DATASET, query=text).SerializeToString()


def _deep_json() -> bytes:
    leaf = '{"op": ">", "args": [{"property": "temperature"}, 1]}'
    return _query('{"op": "not", "args": [' * 20_000 + leaf + "]}" * 20_000)


def _deep_schema() -> bytes:
    text = '{"name": "deep", "features": ' + "[" * DEEP + "]" * DEEP + "}"
    return cluster_pb2.CreateDatasetRequest(schema_json=text).SerializeToString()


def _wide_polygon() -> bytes:
    ring = ", ".join(f"{number / 1e4} {number % 2}" for number in range(60_000))
    return _query(f"S_INTERSECTS(geometry, POLYGON(({ring}, 0 0)))")


def _many_windows() -> bytes:
    window = json.dumps({"kind": "sliding", "size": "1000d", "slide": "1us"})
    return continuous_pb2.SubmitRequest(
        dataset=DATASET, query="temperature > 0", interval_s=1, expiration_s=60, window_json=window
    ).SerializeToString()


def _zip() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr(MANIFEST, json.dumps({"format": 1}))
        file.writestr("a.py", b"\n" * (600 * MIB))
    return samplers_pb2.UploadSamplerRequest(archive=sink.getvalue()).SerializeToString()


def _zip_of_many() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        for number in range(18_000):
            file.writestr(f"a{number}.py", b"")
    return samplers_pb2.UploadSamplerRequest(archive=sink.getvalue()).SerializeToString()


_zeros_bytes = functools.partial(bytes, LARGE_BYTES)

NODE_BOMBS = (
    Bomb("gzip by gRPC", "Query/Run", _zeros_bytes, True, grpc.Compression.Gzip),
    Bomb("deflate by gRPC", "Storage/Ingest", _zeros_bytes, False, grpc.Compression.Deflate),
    Bomb("60 MB for a small call", "Cluster/Status", _zeros_bytes),
    Bomb("Arrow, lz4", "Storage/Ingest", functools.partial(_zeros, "lz4")),
    Bomb("Arrow, zstd", "Storage/Ingest", functools.partial(_zeros, "zstd")),
    Bomb("Arrow, zstd in a dictionary", "Storage/Ingest", _coded_zeros),
    Bomb("Arrow, one text for a million rows", "Storage/Ingest", _one_text_for_all),
    Bomb("Arrow, a billion nulls", "Storage/Ingest", _nothing_at_all),
    Bomb("Arrow, 150,000 empty batches", "Storage/Ingest", _empty_batches),
    Bomb("Arrow, 400,000 columns", "Storage/Ingest", _many_columns),
    Bomb("protobuf, 2 M parts in 4 MB", "Storage/Scan", lambda: _parts(4 * MIB), True),
    Bomb("protobuf, 30 M parts in 60 MB", "Storage/Scan", lambda: _parts(LARGE_BYTES), True),
    Bomb("protobuf, groups in groups", "Cluster/Status", _groups),
    Bomb("CQL2, a million brackets", "Query/Run", lambda: _query("(" * 999_999), True),
    Bomb("CQL2, NOT a hundred thousand times", "Query/Run", lambda: _query("NOT " * DEEP), True),
    Bomb("CQL2 in JSON, 20,000 levels", "Query/Run", _deep_json, True),
    Bomb("polygon that crosses itself 60,000 times", "Query/Run", _wide_polygon, True),
    Bomb("JSON, 100,000 levels", "Cluster/CreateDataset", _deep_schema),
    Bomb("windows without number", "Continuous/Submit", _many_windows, True),
    Bomb("zip of 600 MB", "Samplers/Upload", _zip),
    Bomb("zip of 18,000 members", "Samplers/Upload", _zip_of_many),
)

# --- bodies of HTTP ------------------------------------------------------------------------------

_CSV = "latitude,longitude,time,temperature,note\n"
_ZEROS = 256 * MIB
_LONG = "x" * BODY_BYTES
_LINE = '{"latitude":1,"longitude":2,"time":"2026-05-02T12:00Z"'
_NAMED = '{"type":"Feature","geometry":null,"properties":{"a%d":1}}'


def _many(piece: str, *, between: str = ",") -> str:
    """Pieces with numbers of their own, of the size of a body together."""
    return between.join(piece % number for number in range(BODY_BYTES // (len(piece) + 5)))


def _nested(opening: str, closing: str) -> str:
    count = BODY_BYTES // len(opening + closing)
    return opening * count + closing * count


def _geojson(
    properties: str = "{}", kind: str = "Point", place: str = "[1,2]", times: int = 1
) -> str:
    geometry = f'{{"type":"{kind}","coordinates":{place}}}'
    features = f'{{"type":"Feature","geometry":{geometry},"properties":{properties}}},' * times
    return _collection(features[:-1])


def _collection(features: str) -> str:
    return f'{{"type":"FeatureCollection","features":[{features}]}}'


def _wide_json(name: str = '"a%d":1') -> str:
    return '{"id":"a",' + _many(name) + "}"


def _arrow(batches: list[pa.RecordBatch], format: str) -> bytes:
    sink = pa.BufferOutputStream()
    opened = pa.ipc.new_file if format == "Arrow file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with opened(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _written(table: pa.Table, format: str, **options: Any) -> bytes:
    if format != "Parquet":
        return _arrow(table.to_batches(), format)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def _empty_batches_of_http() -> bytes:
    return _arrow([_columns(1).to_batches()[0].slice(0, 0)] * 4_000, "Arrow stream")


def _columns(count: int) -> pa.Table:
    return pa.table({f"a{number}": pa.nulls(1, pa.int8()) for number in range(count)})


def _deep_column() -> pa.Table:
    kind = functools.reduce(lambda inner, _: pa.list_(inner), range(60), pa.int8())
    return _observations(1, temperature=pa.nulls(1, kind))


def _observations(count: int, **features: Any) -> pa.Table:
    zeros = np.zeros(count)
    times = pa.array(zeros.astype("M8[us]"), pa.timestamp("us", "UTC"))
    return pa.table({"latitude": zeros, "longitude": zeros, "time": times, **features})


def _zero_rows() -> pa.Table:
    count = _ZEROS // 8
    return _observations(count, temperature=np.zeros(count))


def _shared_text() -> pa.Table:
    codes = pa.array(np.zeros(1_000_000, np.int8))
    texts = pa.DictionaryArray.from_arrays(codes, ["x" * 100_000])
    return _observations(1_000_000, note=texts)


def _tables(format: str) -> tuple[Body, ...]:
    """Bodies of a format of tables."""

    def made(shape: str, table: Callable[[], pa.Table], unpacked: int = 0, **options: Any) -> Body:
        return Body(format, shape, lambda: _written(table(), format, **options), unpacked)

    one_page = {"use_dictionary": False, "data_page_size": 2 * _ZEROS}
    return (
        made("many names", lambda: _columns(4_000)),
        made("one long text", lambda: _observations(1, note=["x" * 2 * _ZEROS]), 2 * _ZEROS),
        made("deep", _deep_column),
        made("packed", _zero_rows, 4 * _ZEROS, **one_page),
        made("many rows", _zero_rows, 4 * _ZEROS),
        made("one text for a million rows", _shared_text, 33 * MIB),
    )


TEXT_BODIES = (
    Body("CSV", "many names", lambda: _many("a%d") + "\n1\n"),
    Body("CSV", "one long text", lambda: f"{_CSV}1,2,2026-05-02T12:00Z,3,{_LONG}\nmuch,,,,\n"),
    Body("CSV", "deep", lambda: _CSV + '"' * BODY_BYTES),
    Body("CSV", "wide", lambda: _CSV + "1," * (BODY_BYTES // 2)),
    Body("CSV", "many empty rows", lambda: _CSV + ",,,,\n" * (BODY_BYTES // 5)),
    Body("JSON lines", "many names", lambda: _many('{"a%d":1}', between="\n")),
    Body("JSON lines", "one long text", lambda: f'{_LINE},"note":"{_LONG}"}}\n{{"latitude":"x"}}'),
    Body("JSON lines", "one long name", lambda: f'{{"{_LONG}":1}}'),
    Body("JSON lines", "deep", lambda: _nested('{"a":', "}")),
    Body("JSON lines", "wide", _wide_json),
    Body("JSON lines", "many empty rows", lambda: "{}\n" * (BODY_BYTES // 3)),
    Body("GeoJSON", "many names", lambda: _collection(_many(_NAMED))),
    Body("GeoJSON", "one long text", lambda: _geojson(f'{{"note":"{_LONG}"}}')),
    Body("GeoJSON", "deep", lambda: _geojson(place=_nested("[", "]"))),
    Body("GeoJSON", "wide", lambda: _geojson(_wide_json())),
    Body(
        "GeoJSON",
        "many positions",
        lambda: _geojson(kind="MultiPoint", place=f"[{_many('[1,%d]')}]"),
    ),
    Body("GeoJSON", "many empty rows", lambda: _geojson(times=10_000)),
    Body("subscriptions as CSV", "many names", lambda: _many("a%d") + "\n1\n"),
    Body("subscriptions as lines", "many names", lambda: _many('{"a%d":1}', between="\n")),
    Body(
        "subscriptions as lines",
        "many lists",
        lambda: '{"id":[' + "[]," * (BODY_BYTES // 3) + "[]]}",
    ),
    Body("subscriptions as JSON", "many names", lambda: "[" + _many('{"a%d":1}') + "]"),
    Body("subscriptions as JSON", "one long text", lambda: f'[{{"id":"{_LONG}"}}]'),
    Body("subscriptions as JSON", "deep", lambda: _nested("[", "]")),
    Body("subscriptions as JSON", "wide", lambda: f"[{_wide_json()}]"),
    Body("subscriptions as JSON", "many short texts", lambda: '[{"id":[' + _many('"%d"') + "]}]"),
    Body(
        "subscriptions as JSON", "many empty rows", lambda: "[" + "{}," * (BODY_BYTES // 3) + "{}]"
    ),
)
"""Bodies that must be refused, and take milliseconds to make."""
BODIES = (
    *TEXT_BODIES,
    *(
        Body(format, f"packed, {how}", lambda: gzip.compress(bytes(_ZEROS), 6), _ZEROS, encoding)
        for format in ("CSV", "JSON lines", "GeoJSON")
        for how, encoding in (("announced", "gzip"), ("unannounced", ""))
    ),
    *(body for format in ("Arrow stream", "Arrow file", "Parquet") for body in _tables(format)),
    Body("Arrow stream", "many empty batches", _empty_batches_of_http),
    Body("SPARQL", "deep", lambda: "SELECT * " + _nested("{", "}")),
    Body("SPARQL", "one long text", lambda: f'SELECT * {{ ?a ?b "{_LONG}" }}'),
    Body("SPARQL", "wide", lambda: f"SELECT * {{ {_many('?a%d ?b ?c', between=' . ')} }}"),
    *(
        Body(format, "announced and not sent", lambda: " " * 1_024, unsent=UNSENT_BYTES)
        for format in ("CSV", "Parquet", "subscriptions as lines", "SPARQL")
    ),
)
