"""An event loop of asyncio whose time passes only while everything waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in one thread; what is handed to an executor runs at once."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._virtual_now

    def pass_time(self, seconds: float) -> None:
        self._virtual_now += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., Result], *arguments: Any
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class _Selector(selectors.SelectSelector):
    """Lets the time pass until the next timer, in place of waiting for it."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will happen")
        self._loop.pass_time(max(0.0, timeout))
        return []


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
