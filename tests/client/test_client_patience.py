"""How long a client pauses between two tries, and when it gives up."""

from __future__ import annotations

import pytest

from galileo.client.backoff import SPREAD, BackoffClock
from galileo.client.bulk_submit import Submission, submit_many
from galileo.client.transport import Transport
from galileo.errors import Overloaded, Unavailable

ADVICE_S = 0.06


class Waits:
    """A clock that stands still but for the pauses, which it remembers."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.timing = BackoffClock(monotonic=lambda: sum(self.pauses), sleep=self._sleep)

    async def _sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)


async def test_a_client_comes_back_when_it_was_told_to() -> None:
    """And not after pauses of its own, which would grow."""
    tries, waits = [], Waits()

    async def attempt(channel: object) -> int:
        tries.append(channel)
        if len(tries) < 7:
            raise Unavailable("the continuous query is changing its coordinator", after_s=ADVICE_S)
        return len(tries)

    transport = Transport(["127.0.0.1:1"], patience_s=30.0, timing=waits.timing)
    transport._has_topology = True
    assert await transport.call(attempt) == 7
    assert len(waits.pauses) == 6
    assert all(ADVICE_S <= pause_s <= (1 + SPREAD) * ADVICE_S for pause_s in waits.pauses)
    await transport.close()


async def test_advice_beyond_its_patience_is_not_waited_for() -> None:
    waits = Waits()

    async def attempt(channel: object) -> None:
        raise Overloaded("too many", after_s=60.0)

    transport = Transport(["127.0.0.1:1"], patience_s=5.0, timing=waits.timing)
    with pytest.raises(Overloaded):
        await transport.call(attempt)
    assert waits.pauses == []
    await transport.close()


async def test_a_submission_of_many_waits_as_any_other_call_does() -> None:
    now, waits = [0.0], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    timing = BackoffClock(monotonic=lambda: now[0], sleep=sleep, random=lambda: 0.5)
    transport = Transport(["127.0.0.1:1"], patience_s=20.0, timing=timing)
    [done] = await submit_many(transport, [Submission("nam", id="one")], progress=None)
    assert isinstance(done.error, Unavailable)
    assert now[0] == sum(waits) <= 20.0
    await transport.close()
