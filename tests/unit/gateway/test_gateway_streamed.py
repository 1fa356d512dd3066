"""Answers that are made while they are sent: a part is never taken for the whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response

from galileo.errors import Unavailable
from galileo.gateway.events import EventStream
from galileo.gateway.streamed import Streamed


@pytest.mark.parametrize("fails", [False, True])
async def test_answer_that_breaks_off_has_no_end(fails: bool) -> None:
    sent: list[Any] = []
    closed = []

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        if fails:
            raise Unavailable("a node went away")
        yield b"b"

    async def send(message: Any) -> None:
        sent.append(message)

    stack = contextlib.AsyncExitStack()
    stack.callback(closed.append, True)
    answer = Streamed(pieces(), "text/csv", held=stack)
    with pytest.raises(ConnectionAbortedError) if fails else contextlib.nullcontext():
        await answer({"type": "http", "method": "GET"}, None, send)
    assert closed == [True]
    assert [one.get("body") for one in sent[1:]] == ([b"a"] if fails else [b"a", b"b", b""])
    assert sent[-1]["more_body"] is fails


@pytest.mark.parametrize("has_events", [False, True])
async def test_answer_to_head_has_headers_and_makes_no_piece(has_events: bool) -> None:
    sent: list[Any] = []
    closed: list[str] = []

    async def pieces() -> AsyncGenerator[Any, None]:
        closed.append("a piece was made")
        yield None if has_events else b"a"

    async def send(message: Any) -> None:
        sent.append(message)

    stack = contextlib.AsyncExitStack()
    stack.callback(closed.append, "closed")
    answer: Response = (
        EventStream(pieces(), held=stack)
        if has_events
        else Streamed(pieces(), "text/csv", held=stack)
    )
    await answer({"type": "http", "method": "HEAD"}, None, send)
    assert closed == ["closed"]
    assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/")
    assert sent[1:] == [{"type": "http.response.body", "body": b"", "more_body": False}]
