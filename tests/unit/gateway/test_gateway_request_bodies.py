"""Room of bodies: it grows with what has arrived, and each caller has a share."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from expected_errors import raises
from starlette.requests import Request

from galileo.errors import InputError
from galileo.gateway.crs import CRS84
from galileo.gateway.problems import RequestRefused
from galileo.gateway.request_bodies import (
    DOCUMENT_BYTES_MAX,
    JSON_SHOWN_MAX,
    RequestBodies,
    check_change,
    document_of,
    start_of_json,
)
from galileo.shares import Pool, ShareHolder


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, HTTPStatus.LENGTH_REQUIRED),
        ({"transfer-encoding": "chunked"}, HTTPStatus.LENGTH_REQUIRED),
        ({"content-length": str(DOCUMENT_BYTES_MAX + 1)}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        *(
            ({"content-length": length}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            for length in ("-1", "\xb2", "9" * 5_000, "1_0", "+6")
        ),
    ],
)
async def test_document_of_unknown_or_excessive_length_is_not_read(
    headers: dict[str, str], expected: HTTPStatus
) -> None:
    async def receive() -> Any:
        raise AssertionError("the body is read")

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": raw}, receive)
    with pytest.raises(RequestRefused) as refused:
        await document_of(request)
    assert refused.value.status == expected


def test_precondition_without_a_meaning_is_refused() -> None:
    headers = [(b"if-match", b'"token"')]
    request = Request({"type": "http", "method": "POST", "headers": headers})
    check_change(request, systems=(CRS84,), headers=("If-Match",))
    with raises(InputError, parameter="If-Match"):
        check_change(request, systems=(CRS84,))
    request = Request({"type": "http", "method": "POST", "headers": [(b"if-none-match", b"*")]})
    with raises(InputError, parameter="If-None-Match"):
        check_change(request, systems=(CRS84,), headers=("If-Match",))


class Sender:
    """A client that sends a body in pieces, as a test says."""

    def __init__(self, bodies: RequestBodies, caller: ShareHolder) -> None:
        self.pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.received: list[bytes] = []
        self.task = asyncio.create_task(self._answer(bodies, caller))

    async def _receive(self) -> dict[str, Any]:
        body, has_more = await self.pieces.get()
        return {"type": "http.request", "body": body, "more_body": has_more}

    async def _answer(self, bodies: RequestBodies, caller: ShareHolder) -> None:
        request = Request({"type": "http", "headers": []}, self._receive)
        async with bodies.admitted(request, caller) as admitted:
            async for piece in admitted.stream():
                self.received.append(piece)

    async def send(self, body: bytes, *, has_more: bool = True) -> None:
        self.pieces.put_nowait((body, has_more))
        for _ in range(5):
            await asyncio.sleep(0)


def bodies_of(size: int, clock: Any) -> RequestBodies:
    made = RequestBodies()
    made._pool = Pool(size, kept=0, look_s=0.01, monotonic=clock)
    return made


async def test_slow_bodies_hold_no_others_up_and_end_while_others_wait() -> None:
    now = 0.0
    bodies = bodies_of(100_000, lambda: now)
    slow = [Sender(bodies, ShareHolder("h", f"slow {number}")) for number in range(4)]
    for sender in slow:
        await sender.send(b"x" * 100)
    quick = Sender(bodies, ShareHolder("h", "quick"))
    await quick.send(b"y" * 40_000, has_more=False)
    await quick.task
    assert bodies._pool.held == 400, "room for what has arrived"
    now = 30.0
    assert not any(sender.task.done() for sender in slow), "no other body waits"
    fast = Sender(bodies, ShareHolder("h", "fast"))
    await fast.send(b"y" * 49_000)
    waiting = Sender(bodies, ShareHolder("h", "waiting"))
    await waiting.send(b"z" * 60_000, has_more=False)
    assert not waiting.task.done()
    for sender in slow:
        with pytest.raises(RequestRefused) as refused:
            await asyncio.wait_for(sender.task, 10)
        assert refused.value.status == HTTPStatus.REQUEST_TIMEOUT
    assert not fast.task.done()
    await fast.send(b"", has_more=False)
    await asyncio.wait_for(waiting.task, 10)
    assert (bodies._pool.held, len(bodies._pool.arriving)) == (0, 0)


async def test_room_is_given_back_however_a_request_ends() -> None:
    bodies = bodies_of(100_000, lambda: 0.0)
    for end in ("whole", "cancelled", "failed"):
        sender = Sender(bodies, ShareHolder("h", "a"))
        await sender.send(b"x" * 1_000)
        assert bodies._pool.held == 1_000
        if end == "whole":
            await sender.send(b"y", has_more=False)
        elif end == "cancelled":
            sender.task.cancel()
        else:
            sender.pieces.put_nowait((None, True))  # type: ignore[arg-type]
        with contextlib.suppress(asyncio.CancelledError, TypeError):
            await sender.task
        assert (bodies._pool.held, len(bodies._pool.arriving)) == (0, 0), end


@pytest.mark.parametrize("value", [{}, {"a": [1, None, "x" * 500]}, [{"k": i} for i in range(99)]])
def test_start_of_json_is_the_start_of_the_whole(value: Any) -> None:
    assert start_of_json(value) == json.dumps(value)[:JSON_SHOWN_MAX]


def test_start_of_json_does_not_encode_the_rest() -> None:
    seen = list[int]()

    class Noted(list[int]):
        def __iter__(self) -> Iterator[int]:
            for one in super().__iter__():
                seen.append(one)
                yield one

    start_of_json(Noted(range(10_000)))
    assert 0 < len(seen) <= JSON_SHOWN_MAX
