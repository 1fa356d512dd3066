"""Reads several streams at once, as their items arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

Item = TypeVar("Item")


async def interleaved(
    streams: Iterable[AsyncGenerator[Item, None]], *, at_once: int
) -> AsyncGenerator[Item, None]:
    """The items of all streams as they arrive; at most `at_once` streams are open at a time.

    The error of a stream ends the others.
    """
    queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue(at_once)
    waiting = iter(streams)

    async def read_next() -> None:
        try:
            for stream in waiting:
                async with aclosing(stream) as items:
                    async for item in items:
                        await queue.put(item)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    running = [asyncio.create_task(read_next()) for _ in range(at_once)]
    left = len(running)
    try:
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        await cancel_all(running)


async def cancel_all(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels the tasks, and returns when all have ended.

    Where they have ended before, as in an iterator that is dropped after its loop was closed, it
    does not wait.
    """
    for task in tasks:
        task.cancel()
    if not all(task.done() for task in tasks):
        await asyncio.gather(*tasks, return_exceptions=True)
