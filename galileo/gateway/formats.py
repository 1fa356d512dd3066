"""Formats of answers: what a client prefers, and tables in pieces of bytes."""

from __future__ import annotations

import asyncio
import functools
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from galileo.client.geo_files import GeoJsonWriter, Writer
from galileo.client.table_formats import WRITERS, GroupedWriter
from galileo.errors import InputError
from galileo.gateway.options import ENCODERS, ENCODINGS_WAITING_MAX, IDLE_TIMEOUT_S
from galileo.shares import SHARE_HOLDER
from galileo.turns import FairTurns

MEDIA_TYPES = {
    "geojson": "application/geo+json",
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
    "geoparquet": "application/vnd.apache.parquet; profile=geo",
}
"""Of observations, by the name of the format; the first is the default."""
GROUP_FORMATS = {
    "json": "application/json",
    "csv": MEDIA_TYPES["csv"],
    "arrow": MEDIA_TYPES["arrow"],
}
"""Of groups of observations; the first is the default."""
LATEST_FORMATS = {"geojson": MEDIA_TYPES["geojson"], **GROUP_FORMATS}
"""Of the newest observations; the first is the default."""
TEXT_ROWS = 4_096
"""Rows that become text together."""
GROUP_ROWS = 32_768
"""Rows of a row group or of a record batch."""
INLINE_BYTES = 32 << 10
"""Of a table that becomes a document in the event loop."""
_BINARY = ("arrow", "parquet", "geoparquet")

T = TypeVar("T")


def preferred(given: str | None, accept: str, offered: Mapping[str, str]) -> str:
    """The format that the parameter `f` names, or else the one that the client prefers.

    A client that accepts none of them gets the first one, as HTTP allows. GeoJSON is "json", too,
    where there is no other JSON.

    Raises:
        InputError: there is no format of that name.
    """
    if given is not None:
        if given == "json" and "json" not in offered and "geojson" in offered:
            return "geojson"
        if given not in offered:
            raise InputError(
                f"expected f as one of {', '.join(offered)}, got {given!r}", parameter="f"
            )
        return given
    names = {
        media_type.partition(";")[0]: name for name, media_type in reversed(list(offered.items()))
    }
    ranges = sorted(map(_media_range, accept.split(",")), key=lambda pair: -pair[1])
    for media_type, quality in ranges:
        if quality > 0 and media_type in names:
            return names[media_type]
    return str(next(iter(offered)))


def _media_range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in text.split(";"))
    quality = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    try:
        return name.lower(), float(quality)
    except ValueError:
        return name.lower(), 0.0


class Encoders:
    """Threads that encode pieces of answers, so that the event loop serves others meanwhile."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(ENCODERS, thread_name_prefix="galileo-encode")
        self._turns = FairTurns(ENCODERS, what="answers", waiting_max=ENCODINGS_WAITING_MAX)

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function, called in a thread; callers take turns.

        Raises:
            Overloaded: too many wait, or the turn does not come in time.
        """
        async with self._turns.acquire(SHARE_HOLDER.get(), within_s=IDLE_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def encode_whole(self, encoder: TableEncoder, table: pa.Table) -> bytes:
        """A table as one document; errors as `run`.

        A small one, such as a page of few observations, takes less time than a thread.
        """
        if table.nbytes <= INLINE_BYTES:
            return encoder.write(table) + encoder.close()
        return await self.run(lambda: encoder.write(table) + encoder.close())

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


ID_COLUMN = "#id"
"""A column of ids of features, named as no feature can be."""


class TableEncoder:
    """Encodes tables of one schema, piece by piece; used by one thread at a time.

    Args:
        format: of `MEDIA_TYPES`.
        schema: of the tables.
        members: of a GeoJSON document, but for the number of features.
        id_column: of a GeoJSON document, see `GeoJsonWriter`.
        constants: members of the properties of each feature of a GeoJSON document.
    """

    def __init__(
        self,
        format: str,
        schema: pa.Schema,
        *,
        members: Mapping[str, Any] | None = None,
        id_column: str = "",
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self._sink = _Sink()
        self._members = dict(members or {})
        self._rows = 0
        self._schema = schema
        self._inner = WRITERS[format](self._sink, schema)  # type: ignore[arg-type]
        if isinstance(self._inner, GeoJsonWriter):
            self._inner.id_column = id_column
            self._inner.constants = json.dumps(dict(constants or {}))[1:-1]
        is_binary = format in _BINARY
        rows_max = GROUP_ROWS if is_binary else 1
        self._writer: Writer = GroupedWriter(self._inner, schema, rows_max=rows_max)
        self.rows_at_once = GROUP_ROWS if is_binary else TEXT_ROWS

    def write(self, table: pa.Table) -> bytes:
        """The bytes that are complete with a table; may be empty."""
        self._rows += table.num_rows
        self._writer.write(table)
        return self._sink.take()

    def close(self) -> bytes:
        """The last bytes."""
        if isinstance(self._inner, GeoJsonWriter):
            self._inner.members = {**self._members, "numberReturned": self._rows}
        self._writer.close()
        return self._sink.take()

    async def encode(
        self, tables: AsyncIterator[pa.Table], encoders: Encoders
    ) -> AsyncIterator[bytes]:
        """The pieces of the whole answer."""
        async for table in tables:
            for start in range(0, table.num_rows, self.rows_at_once):
                piece = table.slice(start, self.rows_at_once)
                if encoded := await encoders.run(functools.partial(self.write, piece)):
                    yield encoded
        yield await encoders.run(self.close)
