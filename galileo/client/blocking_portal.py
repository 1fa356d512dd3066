"""Runs coroutines in an event loop of a background thread for callers in other threads.

A call from the loop's own thread, after a fork (which copies no thread) or while the interpreter
ends would wait for ever. It raises InputError instead; an iterator that is dropped at such a
moment is closed without waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from galileo.errors import Cancelled, InputError
from galileo.wire import forks

CLOSE_TIMEOUT_S = 5.0
_OF_THE_PARENT = (
    "this client was made before its process was forked, and works only in the process that made "
    "it; connect again in this one"
)

Item = TypeVar("Item")
Result = TypeVar("Result")


class CallerThreadIterable(AsyncIterator[Item], Generic[Item]):
    """What a coroutine takes, one by one, out of an iterable of the thread that waits for it.

    The iterable may wait, use the client, or be bound to its thread; the loop goes on meanwhile.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._asked: queue.SimpleQueue[Future[tuple[Item, ...]] | None] = queue.SimpleQueue()

    async def __anext__(self) -> Item:
        answer: Future[tuple[Item, ...]] = Future()
        self._asked.put(answer)
        for item in await asyncio.wrap_future(answer):
            return item
        raise StopAsyncIteration

    def serve(self) -> None:
        """Gives what is asked for, in the thread of the iterable, until `stop`."""
        items = None
        while (answer := self._asked.get()) is not None:
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                items = iter(self._items) if items is None else items
                following = tuple(itertools.islice(items, 1))
            except Exception as error:
                answer.set_exception(error)
            else:
                answer.set_result(following)

    def stop(self) -> None:
        self._asked.put(None)


class BlockingPortal:
    """Runs coroutines for other threads, which block meanwhile.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._is_closed = False
        # What is dropped while the lock is held may be an iterator, whose end takes it, too.
        self._lock = threading.RLock()
        self._ends: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def run(
        self, work: Awaitable[Result], *, handed: CallerThreadIterable[Any] | None = None
    ) -> Result:
        """The result of `work`; Ctrl-C cancels it.

        Args:
            work: to be awaited in the loop.
            handed: what it takes out of this thread meanwhile.

        Raises:
            InputError: a wait here would never end, or the loop is closed.
            Cancelled: the loop was closed during the call.
        """
        task: asyncio.Task[Any] | None = None
        future: Future[Result] | None = None

        async def begun() -> Result:
            nonlocal task
            task = asyncio.current_task()
            return await work

        async def ended() -> None:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

        try:
            future = self._scheduled(begun, work)
            if handed is not None:
                future.add_done_callback(lambda _: handed.stop())
                handed.serve()
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            # It may come before the wait begins. The task must have ended before an iterator over
            # its result can be closed.
            asyncio.run_coroutine_threadsafe(ended(), self._loop).result(CLOSE_TIMEOUT_S)
            raise
        except CancelledError:
            raise Cancelled("the client was closed while this call waited") from None
        finally:
            # Both hold the error, whose traceback holds this frame and the caller's: an iterator
            # that has ended would be kept until garbage is collected.
            task = future = None

    def _scheduled(self, begun: Any, work: Awaitable[Result]) -> Future[Result]:
        with self._lock:  # What is scheduled before the loop is closed is ended by that.
            problem = self._problem()
            if problem:
                if isinstance(work, Coroutine):
                    work.close()
                raise InputError(problem)
            return asyncio.run_coroutine_threadsafe(begun(), self._loop)

    def _problem(self) -> str:
        """Why a call from this thread cannot wait; empty if it can."""
        if self._is_closed:
            return "this client is closed; connect again"
        if self._is_forked:
            return forks.FORKED if forks.is_cut_off() else _OF_THE_PARENT
        if self._is_inside:
            return (
                "a callback cannot use the client whose call it belongs to, for that waits for the "
                "callback; use another client there, or do it after the call"
            )
        if sys.is_finalizing():
            return "the interpreter is ending; use the client before that"
        return ""

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    @property
    def _is_inside(self) -> bool:
        return threading.current_thread() is self._thread

    def end(self, items: Any) -> None:
        """Closes an async generator, and waits for it where that is possible."""
        if self._is_closed or self._is_forked or sys.is_finalizing():
            return
        if self._is_inside:
            self._begin_end(items)
        else:
            self.run(items.aclose())

    def drop(self, items: Any) -> None:
        """Closes an async generator without waiting: for a finalizer.

        The garbage collector may run it in a thread for which the loop waits.
        """
        if self._is_closed or self._is_forked or sys.is_finalizing():
            return
        with suppress(RuntimeError):  # The loop has been closed in the meantime.
            self._loop.call_soon_threadsafe(self._begin_end, items)

    def _begin_end(self, items: Any) -> None:
        task = self._loop.create_task(items.aclose())
        self._ends.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._ends.discard(task)
        if not task.cancelled():
            task.exception()  # Where the generator is running, its own call gets the error.

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Ends all that is under way with `Cancelled`, runs `last`, and ends; again is harmless.

        Raises:
            InputError: a callback asks for it.
        """
        with self._lock:
            is_over = self._is_closed or self._is_forked or sys.is_finalizing()
            if not is_over and self._is_inside:
                if last is not None:
                    last.close()
                raise InputError(self._problem())
            self._is_closed = True
        if is_over:
            if last is not None:
                last.close()
            return
        asyncio.run_coroutine_threadsafe(_end(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)

    def abandon(self) -> None:
        """Ends as `close` does, without waiting: for a finalizer, which any thread may run."""
        with self._lock:
            if self._is_closed or self._is_forked or sys.is_finalizing():
                return
            self._is_closed = True
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        task = self._loop.create_task(_end(None))
        self._ends.add(task)
        task.add_done_callback(lambda _: self._loop.stop())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _end(last: Coroutine[Any, Any, None] | None) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last
