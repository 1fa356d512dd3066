"""Counters of callers: each is given back, however many callers come and go."""

from __future__ import annotations

import contextlib

import pytest
from starlette.requests import Request

from galileo.errors import Overloaded
from galileo.gateway import callers
from galileo.gateway.callers import Callers
from galileo.gateway.options import REQUESTS_OF_CALLER_MAX, GatewayOptions


def request_of(token: str) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]})


@pytest.fixture
def made() -> Callers:
    return Callers(GatewayOptions(nodes=("127.0.0.1:1",), connections_max=16))


async def test_callers_that_have_left_are_not_counted(
    made: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "CALLERS_MAX", 4)
    for number in range(20):
        async with made.client(request_of(f"t{number}")), made.reader(request_of(f"t{number}")):
            assert made.readers == 1
        with contextlib.suppress(ValueError):
            async with made.client(request_of("failing")):
                raise ValueError
    assert made.readers == 0
    await made.close()


async def test_requests_and_readers_of_a_caller_are_bounded(made: Callers) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(REQUESTS_OF_CALLER_MAX):
            await stack.enter_async_context(made.client(request_of("a")))
        await stack.enter_async_context(made.client(request_of("b")))
        with pytest.raises(Overloaded):
            await stack.enter_async_context(made.client(request_of("a")))
        for _ in range(6):
            await stack.enter_async_context(made.reader(request_of("a")))
        with pytest.raises(Overloaded):
            await stack.enter_async_context(made.reader(request_of("a")))
        for _ in range(6):
            await stack.enter_async_context(made.reader(request_of("b")))
        with pytest.raises(Overloaded):
            await stack.enter_async_context(made.reader(request_of("c")))
    async with made.client(request_of("a")), made.reader(request_of("a")):
        pass
    await made.close()
