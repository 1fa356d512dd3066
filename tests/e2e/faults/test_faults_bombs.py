"""Bombs: small requests that would unpack to large ones."""

from __future__ import annotations

import functools
import io
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import numpy as np
import pyarrow as pa
import pytest
from fault_injection.bystanders import (
    DATASET,
    PATIENCE,
    client_calls,
    fill,
    quantile_ms,
    repeated,
    weighed,
)
from fault_injection.ledger import numbered
from fault_injection.trial import Trial

from galileo.cluster import LocalCluster
from galileo.sampler_package import MANIFEST
from galileo.wire.channel import InstrumentedChannel
from galileo.wire.v1 import cluster_pb2, continuous_pb2, query_pb2, samplers_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk, encode

MIB = 1 << 20
ROWS = 1_000
OVER_MIB_MAX = 300
"""What the node may take for one: a message of 64 MiB has to be received before it can be refused,
and gRPC for Python has it twice for a moment."""
TAKES_MAX_S = 30.0
TIMEOUT_S = 60.0
DEEP = 100_000
LARGE_BYTES = 60 * MIB
HARMLESS = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION")
PACKAGE = "/galileo.v1."


@dataclass(frozen=True, slots=True)
class Bomb:
    """One of them.

    Attributes:
        name: in words.
        method: that it is sent to.
        made: its bytes; made before anything is measured.
        streams: whether the answer is a stream.
        compression: of gRPC's own.
    """

    name: str
    method: str
    made: Callable[[], bytes]
    streams: bool = False
    compression: grpc.Compression = grpc.Compression.NoCompression

    def send(self, channel: InstrumentedChannel) -> str:
        """How the node answered: the name of a status. Large bombs are sent in pieces."""
        kind = channel.unary_stream if self.streams else channel.unary_unary
        data = self.made()
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

BOMBS = (
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


@pytest.mark.fault(
    "bombs",
    "bombs",
    rounds=1,
    holds="small things that would become large (gzip, lz4, zstd, zip, protobuf, nesting): each "
    f"is refused within {OVER_MIB_MAX} MiB and {TAKES_MAX_S:.0f} s, and another client is served",
)
def test_bombs(trial: Trial) -> None:
    settings = {"samplers": {"uploads": "sandboxed"}}
    with LocalCluster(1, 1, trial.directory / "cluster", settings=settings) as cluster:
        fill(cluster.client(timeout=PATIENCE), ROWS)
        for _ in trial.each_round():
            for bomb in BOMBS:
                _one(trial, cluster, bomb)
        count = cluster.client(timeout=PATIENCE).count(DATASET)
        trial.expect(count >= ROWS, f"expected at least {ROWS} observations, got {count}")


def _one(trial: Trial, cluster: LocalCluster, bomb: Bomb) -> None:
    (node,) = cluster.nodes
    made = bomb.made()
    armed = Bomb(bomb.name, bomb.method, lambda: made, bomb.streams, bomb.compression)
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(node.address, options=options) as channel,
        weighed(node.pid) as memory,
        repeated(*client_calls(cluster.client(timeout=PATIENCE))) as waits_s,
    ):
        started = time.monotonic()
        answer = armed.send(InstrumentedChannel(channel))
        took_s = time.monotonic() - started
    trial.say(f"{bomb.name}: {answer} in {took_s:.2f} s, {memory.over_mib:.0f} MiB")
    trial.counts["bombs"] += 1
    trial.figures[f"{bomb.name}: MiB"] = round(memory.over_mib)
    trial.figures[f"{bomb.name}: s"] = round(took_s, 2)
    trial.figures[f"{bomb.name}: sent, KB"] = round(len(made) / 1e3, 1)
    if waits_s:
        trial.figures[f"{bomb.name}: p99 of another, ms"] = quantile_ms(waits_s, 0.99)
    trial.expect(node.running, f"{bomb.name}: the node is dead")
    trial.expect(answer in HARMLESS, f"{bomb.name}: expected a refusal, got {answer}")
    size = f"{memory.over_mib:.0f} MiB, {OVER_MIB_MAX} are allowed"
    trial.expect(memory.over_mib <= OVER_MIB_MAX, f"{bomb.name}: the node took {size}")
    trial.expect(took_s <= TAKES_MAX_S, f"{bomb.name}: it took {took_s:.1f} s")
