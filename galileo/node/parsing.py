"""Queries are read in a thread where that may take long: nobody waits for another's polygon."""

from __future__ import annotations

import asyncio

from galileo.model.schema import Schema
from galileo.query import Query, parse
from galileo.query.query import CACHED_CHARACTERS_MAX


async def read_query(text: str, schema: Schema) -> Query:
    """As `galileo.query.parse`; short texts at once, they take less than a thread.

    Raises:
        InputError: as `parse`.
    """
    if len(text) <= CACHED_CHARACTERS_MAX:
        return parse(text, schema)
    return await asyncio.to_thread(parse, text, schema)
