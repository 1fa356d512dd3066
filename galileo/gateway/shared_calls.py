"""Equal calls at the same time are made once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Shared(Generic[Result]):
    task: asyncio.Task[Result]
    callers: int = 0


class SharedCalls(Generic[Key, Result]):
    """Calls by key, from the tasks of one event loop.

    A call runs while one of its callers waits for it, and is cancelled when the last one leaves.
    """

    def __init__(self) -> None:
        self._running: dict[Key, _Shared[Result]] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def call(self, key: Key, function: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result, or the error, of the running call with this key, else of a new one."""
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.create_task(function()))
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1
            is_over = shared.task.done() or shared.callers == 0
            if is_over and self._running.get(key) is shared:
                del self._running[key]
            if shared.callers == 0:
                shared.task.cancel()
