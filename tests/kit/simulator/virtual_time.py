"""Runs asyncio programs, and their threads, in simulated time, one step after the other.

Whatever waits for time waits for the simulated clock, which jumps to the next event. What a thread
would do is one step at a random moment soon. So a program of seconds takes milliseconds, and the
same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
WALL_S = 1_400_000_000.0
LATE_MAX_S = 0.004
"""By which a thread may begin late."""


class Stopped(OSError):
    """The process of a thread has ended."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next event.

    Args:
        seed: of the moments at which threads begin.

    Attributes:
        is_in_thread: whether a thread works, which may wait for what it has the loop do.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.is_in_thread = False
        self._now = 0.0
        self._selector = self
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Lets time pass until the next event."""
        if timeout is None:
            raise AssertionError("all tasks wait for each other")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none from outside."""

    def _write_to_self(self) -> None:
        """Nothing wakes the loop from outside."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        if self.is_in_thread:
            callback(*args)
        else:
            return self.call_soon(callback, *args, context=context)
        return asyncio.Handle(callback, args, self)

    def in_thread(self, call: Callable[[], T]) -> T:
        """Does what a thread would do."""
        before, self.is_in_thread = self.is_in_thread, True
        try:
            return call()
        finally:
            self.is_in_thread = before

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, call: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        chosen = SimulatedThreads(self) if executor is None else executor
        return asyncio.wrap_future(chosen.submit(call, *args), loop=self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


class SimulatedClock:
    """The clocks of a process in a simulated loop."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.monotonic = loop.time

    def wall(self) -> float:
        return WALL_S + self.monotonic()


class SimulatedThreads(Executor):
    """Threads that do each call in one step, at a random moment soon."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._is_shut = False

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future[T]()
        self._waiting[future] = lambda: call(*args, **options)
        self._loop.call_later(self._loop.random.uniform(0.0, LATE_MAX_S), self._do, future)
        return future

    def _do(self, future: Future[Any]) -> None:
        call = self._waiting.pop(future, None)
        if call is None or not future.set_running_or_notify_cancel():
            return
        try:
            result = self._loop.in_thread(call)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        for future in list(self._waiting):
            self._do(future)


class ImmediateThreads(Executor):
    """Threads for which the caller waits."""

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        future = Future[T]()
        try:
            future.set_result(call(*args, **options))
        except BaseException as error:
            future.set_exception(error)
        return future


class BlockingThread:
    """A thread that may wait for the loop, and never runs at the same time as it.

    Args:
        work: what it does.
    """

    def __init__(self, loop: SimulatedLoop, work: Callable[[], object]) -> None:
        self._loop = loop
        self._may_work, self._is_waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._is_stopped = False
        self.done = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        loop.call_soon(self._resume)

    def wait(self, future: Future[T]) -> Future[T]:
        """Returns when a future is done; in this thread.

        Raises:
            Stopped: the process has ended.
        """
        if not future.done():
            future.add_done_callback(lambda _: self._loop.call_soon(self._resume))
            self._is_waiting.release()
            self._may_work.acquire()
        if self._is_stopped:
            raise Stopped("the process has ended")
        return future

    def stop(self) -> None:
        """Ends what it waits for."""
        self._is_stopped = True
        if not self.done.done():
            self._resume()

    def _resume(self) -> None:
        if not self.done.done():
            self._may_work.release()
            self._loop.in_thread(self._is_waiting.acquire)

    def _run(self, work: Callable[[], object]) -> None:
        self._may_work.acquire()
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._is_waiting.release()


class Process:
    """What runs in one context of a `PausingLoop`, with all that begins in it.

    Attributes:
        name: of it.
        context: for the first task.
        is_paused: whether nothing of it runs; its clock goes on.
    """

    _of: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

    def __init__(self, name: str, loop: PausingLoop) -> None:
        self.name = name
        self.is_paused = False
        self._loop = loop
        self._held: deque[_Deferred] = deque()
        self.context = contextvars.copy_context()
        self.context.run(self._of.set, self)

    @classmethod
    def of(cls, context: contextvars.Context) -> Process | None:
        """The process that a context belongs to."""
        return context.get(cls._of)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins a task of this process."""
        return self._loop.create_task(work, context=self.context)

    def hold(self, deferred: _Deferred) -> None:
        self._held.append(deferred)

    def resume(self) -> None:
        """Goes on with what has happened meanwhile, in this order."""
        self.is_paused = False
        while self._held:
            self._held.popleft().again(self._loop)


class _Deferred:
    """A callback that waits while its process is paused."""

    def __init__(
        self, process: Process, callback: Callable[..., object], context: contextvars.Context
    ) -> None:
        self.handle: asyncio.Handle
        self._process, self._callback, self._context = process, callback, context
        self._args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        if self._process.is_paused:
            self._args = args
            self._process.hold(self)
        elif not self.handle.cancelled():
            self._callback(*args)

    def again(self, loop: SimulatedLoop) -> None:
        SimulatedLoop.call_soon(loop, self, *self._args, context=self._context)


class PausingLoop(SimulatedLoop):
    """Has processes that can be paused, as by SIGSTOP or by a machine that swaps."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        process = Process.of(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        deferred = _Deferred(process, callback, context)
        deferred.handle = super().call_soon(deferred, *args, context=context)
        return deferred.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        process = Process.of(context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        deferred = _Deferred(process, callback, context)
        timer = super().call_at(when, deferred, *args, context=context)
        deferred.handle = timer
        return timer


L = TypeVar("L", bound=SimulatedLoop)


def run_simulated(
    seed: int,
    make: Callable[[L], Coroutine[Any, Any, T]],
    *,
    loop_type: type[L] = SimulatedLoop,  # type: ignore[assignment]
) -> T:
    """Runs a program in a loop of its own."""
    loop = loop_type(seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(make(loop))
