"""Ingest over HTTP: the body of a request is checked as a whole, and then stored.

A body lies once in memory, as a file that the readers of formats map or read in pieces. It is read
twice: a mistake anywhere in it is found before anything is stored, and what is decoded is bounded
by a batch however small the body is.

Nodes know a batch by its producer and number, so a request that is repeated under its key, at any
gateway, stores nothing twice. The content of a body is its key unless the dataset is keyed: there,
a body that was sent before may replace what another one has stored since.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import NamedTuple

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.client.ingestion import OneRequest
from galileo.client.results import Receipt
from galileo.errors import InputError, InvalidObservations
from galileo.formats.memory_file import MemoryFile
from galileo.formats.strict_source import StrictSource
from galileo.gateway import documents, parameters
from galileo.gateway.callers import Callers
from galileo.gateway.crs import CRS84, Crs, body_crs, check_columns_crs
from galileo.gateway.formats import Encoders
from galileo.gateway.keyed_datasets import token_header, unchanged_since
from galileo.gateway.request_bodies import decoding, format_of, received
from galileo.model.schema import Schema

OBSERVATIONS_MAX = 4_000_000
"""Observations of a request."""
DECODED_BYTES_MAX = 1 << 30
"""Size of the observations of a request as Arrow; a few bytes of Parquet can hold many."""
BATCHES_MAX = 1 << 10
"""Batches of a request: the numbers between those of two requests of a producer."""
NUMBER_MAX = (1 << 53) - 1
"""Of a request; nodes number batches up to 2^63 - 1."""
REQUEST_TYPES = {
    "application/geo+json": "geojson",
    "application/json": "geojson",
    "text/csv": "csv",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.apache.arrow.file": "arrow",
    "application/vnd.apache.parquet": "parquet",
}
"""Formats of bodies, by media type; HTML forms can send none of them."""
_KEY = re.compile(r"([A-Za-z0-9_.:-]{1,128})")
_NUMBERED = re.compile(r"(.+):([0-9]{1,128})")
_GZIP = b"\x1f\x8b"


class BatchKey(NamedTuple):
    """What identifies a request: a producer, and the number of the request."""

    producer: str
    number: int

    @property
    def first_batch(self) -> int:
        return self.number * BATCHES_MAX


class _Sent(NamedTuple):
    """A body, its format, and the coordinate reference system of its positions."""

    body: MemoryFile
    format: str
    system: Crs

    def opened(self, schema: Schema) -> StrictSource:
        with self.body.path.open("rb") as file:
            if file.read(len(_GZIP)) == _GZIP:
                raise InputError("expected a body that is not compressed", expected="plain_body")
        to_degrees = None if self.system is CRS84 else self.system.to_degrees
        return StrictSource(self.body.path, self.format, schema, to_degrees=to_degrees)


class IngestRoute:
    """Stores the bodies of requests; belongs to one event loop.

    Args:
        callers: of the gateway.
        encoders: of the gateway, which decode, too.
    """

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        self._callers = callers
        self._encoders = encoders

    async def store(self, request: Request) -> Response:
        """Stores the observations of a request, all of them or, for a mistake, none.

        Raises:
            GalileoError: the request is wrong, or nodes cannot store all of it.
            Refused: the body is too large or has another type.
        """
        parameters.single_values(request.query_params, ())
        key = batch_key(request.headers.get("idempotency-key", ""))
        format, system = format_of(request, REQUEST_TYPES), body_crs(request.headers)
        if format != "geojson":
            check_columns_crs(system, format, parameter="Content-Crs")
        async with self._callers.client(request) as client:
            schema = await client.schema(request.path_params["collectionId"])
            since = unchanged_since(request.headers, schema)
            async with received(request) as (body, digest):
                if key is None and not schema.is_keyed:
                    key = BatchKey(f"http-{format}-{system.code}-{digest}", 0)
                source = await self._source(client, schema.name, _Sent(body, format, system))
                tables = self._tables(source)
                receipt = await client.ingest(
                    schema.name,
                    OneRequest(tables) if key else tables,
                    producer=key and key.producer,
                    first_batch=key.first_batch if key else 0,
                    unchanged_since=since,
                )
        return _created(schema, receipt, key)

    async def _source(self, client: AsyncClient, dataset: str, sent: _Sent) -> StrictSource:
        """As `_checked`, also where another client has just added features to the dataset."""
        schema = await client.schema(dataset)
        try:
            return await self._checked(sent, schema)
        except InvalidObservations:
            await client.datasets()
            wider = await client.schema(dataset)
            if wider == schema:
                raise
        return await self._checked(sent, wider)

    async def _checked(self, sent: _Sent, schema: Schema) -> StrictSource:
        """The observations of a body without a mistake. Raises InputError if it has one."""
        with decoding(sent.body, sent.format):
            source = await self._encoders.run(functools.partial(sent.opened, schema))
            rows = size = 0
            async for table in self._tables(source):
                rows, size = rows + table.num_rows, size + table.nbytes
                _check_size(rows, size)
        return source

    async def _tables(self, source: StrictSource) -> AsyncIterator[pa.Table]:
        """The batches of a source, which are decoded in threads."""
        batches = source.batches()
        while (table := await self._encoders.run(functools.partial(_next, batches))) is not None:
            yield table


def batch_key(header: str) -> BatchKey | None:
    """The key of the header `Idempotency-Key`; None for an empty one.

    It is `producer:number`, or any other text of the letters of producers, which is number 0; it
    may be in quotation marks, as the header is a structured field.

    Raises:
        InputError: it is something else.
    """
    text = header.strip()
    if not text:
        return None
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    numbered = _NUMBERED.fullmatch(text)
    producer, number = (numbered[1], int(numbered[2])) if numbered else (text, 0)
    if not _KEY.fullmatch(producer) or number > NUMBER_MAX:
        raise InputError(
            "expected Idempotency-Key as producer:number, or as a text, of at most 128 letters, "
            f"digits, '_', '.', ':' and '-', and a number up to {NUMBER_MAX}, got {header[:150]!r}",
            parameter="Idempotency-Key",
        )
    return BatchKey(producer, number)


def _next(batches: Iterator[pa.Table]) -> pa.Table | None:
    return next(batches, None)


def _check_size(rows: int, size: int) -> None:
    if rows > OBSERVATIONS_MAX or size > DECODED_BYTES_MAX:
        raise InputError(
            f"expected at most {OBSERVATIONS_MAX:,} observations of {DECODED_BYTES_MAX:,} bytes in "
            "a request, got more; send several requests",
            bound=OBSERVATIONS_MAX,
        )


def _created(schema: Schema, receipt: Receipt, key: BatchKey | None) -> Response:
    document = {
        "observations": receipt.rows,
        "duplicates": receipt.duplicate_rows,
        **({"batch": f"{key.producer}:{key.number}"} if key else {}),
        "commits": {str(partition): sequence for partition, sequence in receipt.reached.items()},
    }
    headers = token_header(schema, receipt.reached)
    body = json.dumps(document)
    return Response(body, HTTPStatus.CREATED, headers=headers, media_type=documents.JSON)
