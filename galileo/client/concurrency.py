"""Runs coroutines concurrently, and cancels the rest when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in the order of the calls; where one fails, the others are over first."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Returns when none of them goes on any more, whatever becomes of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
