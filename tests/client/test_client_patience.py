"""How long a client pauses between two tries, and when it gives up."""

from __future__ import annotations

import time

import pytest

from galileo.client.transport import Transport
from galileo.errors import Overloaded, Unavailable

ADVICE_S = 0.01


async def test_a_client_comes_back_when_it_was_told_to() -> None:
    """Seven tries would take more than three seconds with pauses of its own that grow."""
    tries = []

    async def attempt(channel: object) -> int:
        tries.append(channel)
        if len(tries) < 7:
            raise Unavailable("the continuous query is changing its coordinator", after_s=ADVICE_S)
        return len(tries)

    transport = Transport(["127.0.0.1:1"], patience_s=30.0)
    transport._knows_all = True
    started = time.monotonic()
    assert await transport.call(attempt) == 7
    assert time.monotonic() - started < 1.0
    await transport.close()


async def test_advice_beyond_its_patience_is_not_waited_for() -> None:
    async def attempt(channel: object) -> None:
        raise Overloaded("too many", after_s=60.0)

    transport = Transport(["127.0.0.1:1"], patience_s=5.0)
    started = time.monotonic()
    with pytest.raises(Overloaded):
        await transport.call(attempt)
    assert time.monotonic() - started < 1.0
    await transport.close()
