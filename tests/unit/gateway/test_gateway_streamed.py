"""Answers that are made while they are sent: a part is never taken for the whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from galileo.errors import Unavailable
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
