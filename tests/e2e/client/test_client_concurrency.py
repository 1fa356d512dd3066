"""Calls that are made together, of which one fails."""

from __future__ import annotations

import asyncio

import pytest

from galileo.client.queries import gather_or_cancel
from galileo.errors import InvalidToken


async def test_gather_or_cancel_cancels_the_others_after_a_failure() -> None:
    over = []

    async def endless(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append(number)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise InvalidToken("made up")

    with pytest.raises(InvalidToken):
        await gather_or_cancel([endless(1), failing(), endless(2)])
    assert sorted(over) == [1, 2]


async def test_gather_or_cancel_returns_results_in_order() -> None:
    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_or_cancel(map(later, [5, 1, 3])) == [5, 1, 3]
    assert await gather_or_cancel([]) == []
