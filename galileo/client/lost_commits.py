"""Readers whose commits were lost: they get the error once, with what they go on with.

A node names the positions that are affected (`HistoryChanged`). The client knows the whole cursor
or token, and adds to the error the one that goes on behind what is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from galileo.cursor import Cursor, continued
from galileo.errors import HistoryChanged
from galileo.wire import token as tokens

Item = TypeVar("Item")


@contextlib.contextmanager
def naming_cursor(*cursors: Cursor) -> Iterator[None]:
    """Adds to `HistoryChanged` the cursor to go on with in place of the first that is affected.

    It is `details["cursor"]`, and as text `details["token"]`.
    """
    try:
        yield
    except HistoryChanged as error:
        following = [(cursor, continued(cursor, error)) for cursor in cursors]
        named = next((after for before, after in following if after != before), following[0][1])
        token = tokens.encode(error.details["dataset"], named)
        error.details |= {"cursor": named, "token": token, "remedy": "lost_cursor"}
        raise


@contextlib.contextmanager
def naming_token(token: str, reader: str) -> Iterator[None]:
    """Adds to `HistoryChanged` the token to go on with, as `details["token"]`.

    Args:
        token: of the request.
        reader: the continuous query or the broker to which it belongs.
    """
    try:
        yield
    except HistoryChanged as error:
        if token:
            position = tokens.read(token, ccq_id=reader)
            if error.details.get("reset"):
                token = tokens.begin_anew(reader)
            elif position.place is None:
                position = replace(position, cursor=continued(position.cursor, error))
                token = position.encode(reader)
        error.details |= {"token": token, "remedy": "lost_token"}
        raise


class GoingOn(AsyncIterator[Item]):
    """Items behind a token; after `HistoryChanged` it can be asked for the next item as before.

    Args:
        begin: the items behind a token; its `HistoryChanged` names the one to go on with.
        token: where they begin.
    """

    def __init__(self, begin: Callable[[str], AsyncGenerator[Item, None]], token: str) -> None:
        self._begin = begin
        self._items = begin(token)

    async def __anext__(self) -> Item:
        try:
            return await anext(self._items)
        except HistoryChanged as error:
            self._items = self._begin(error.details["token"])
            raise

    async def aclose(self) -> None:
        """Ends it, at the nodes too."""
        await self._items.aclose()
