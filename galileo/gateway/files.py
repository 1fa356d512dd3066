"""Answers that are files: tables that are encoded while they are sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import pyarrow as pa

from galileo.gateway.formats import Encoders, TableEncoder
from galileo.gateway.streamed import Streamed


async def file_answer(
    tables: AsyncIterator[pa.Table],
    encoder: TableEncoder,
    encoders: Encoders,
    *,
    media_type: str,
    held: contextlib.AsyncExitStack,
    headers: Mapping[str, str] | None = None,
) -> Streamed:
    """The tables as one file.

    The first table is awaited, so that an error before it has a status of its own.

    Args:
        tables: that the encoder takes.
        encoder: of the file.
        encoders: in which it works.
        media_type: of the file.
        held: what the answer needs; the answer takes it over.
        headers: further ones.
    """
    first = [table async for table in _first(tables)]
    pieces = encoder.encode(_joined(first, tables), encoders)
    return Streamed(pieces, media_type, held=held.pop_all(), headers=headers)


async def _first(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    """The first table, if there is one."""
    async for table in tables:
        yield table
        return


async def _joined(first: list[pa.Table], rest: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    while first:  # The table is not kept while it is sent.
        yield first.pop()
    async for table in rest:
        yield table
