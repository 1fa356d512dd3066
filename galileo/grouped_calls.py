"""Calls that share a costly step: what arrives while one group is carried out is the next group.

A log commits in the same way what many writers append with one sync. A call that comes alone waits
for nothing. After a group of several calls their callers often call again, one after the other. The
next group therefore waits until as many have come, but no longer than a fifth of the time that the
last group took: else the first of them would be a group of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

GATHERED_PART = 5
"""A group waits for the callers of the last one for this part of the time that it took."""


@dataclass(slots=True)
class _Call(Generic[Item, Result]):
    """A call that waits for its result; `context` has its trace."""

    item: Item
    result: asyncio.Future[Result]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class GroupedCalls(Generic[Item, Result]):
    """Calls of one kind, from the tasks of one event loop.

    Args:
        carry_out: a group of items; returns a result or an error for each, in their order. What it
            raises is raised by all calls of the group. It runs in the context of the first call.
        wait_s: the longest that a group waits for the one before, which may be slow; None for
            groups one after the other.
        items_max: of a group; of weights, if items have some.
        weight: of an item. One that is heavier than a group may be is a group of its own.
    """

    def __init__(
        self,
        carry_out: Callable[[tuple[Item, ...]], Awaitable[Sequence[Result | Exception]]],
        *,
        wait_s: float | None,
        items_max: int,
        weight: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        self._carry_out = carry_out
        self._wait_s = wait_s
        self._items_max = items_max
        self._weight = weight
        self._waiting: deque[_Call[Item, Result]] = deque()
        self._expected = 0
        self._gathered = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def call(self, item: Item) -> Result:
        """The result of one item. A cancelled call leaves the others of its group alone."""
        return await self.begin(item)

    def begin(self, item: Item) -> asyncio.Future[Result]:
        """Begins a call without a task of its own; cancel the future if it is not awaited."""
        call = _Call[Item, Result](item, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._waiting) >= self._expected:
            self._gathered.set()
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_groups())
        return call.result

    async def _start_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while group := self._next_group():
            running = asyncio.create_task(self._run(group), context=group[0].context)
            self._running.add(running)
            running.add_done_callback(self._running.discard)
            begun = loop.time()
            await asyncio.wait({running}, timeout=self._wait_s)
            if len(group) > 1:
                await self._gather(len(group), (loop.time() - begun) / GATHERED_PART)

    def _next_group(self) -> list[_Call[Item, Result]]:
        """Takes the calls of the next group; leaves out those that were cancelled."""
        group, weight = list[_Call[Item, Result]](), 0
        while self._waiting:
            call = self._waiting[0]
            if not call.result.done():
                weight += self._weight(call.item)
                if group and weight > self._items_max:
                    break
                group.append(call)
            self._waiting.popleft()
        return group

    async def _gather(self, count: int, longest_s: float) -> None:
        """Returns when so many calls wait, or after some time."""
        self._expected = count
        if len(self._waiting) >= count:
            return
        self._gathered.clear()
        timer = asyncio.get_running_loop().call_later(longest_s, self._gathered.set)
        await self._gathered.wait()
        timer.cancel()

    async def _run(self, group: Sequence[_Call[Item, Result]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._carry_out(tuple(call.item for call in group))
        except Exception as error:
            results = [error] * len(group)
        for call, result in zip(group, results, strict=True):
            if call.result.done():
                continue  # It was cancelled.
            if isinstance(result, Exception):
                call.result.set_exception(result)
            else:
                call.result.set_result(result)
