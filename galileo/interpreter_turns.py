"""Work of the interpreter that takes long: one piece at a time in a process, callers take turns.

Threads that run Python code wait for each other's interpreter lock, and so does the event loop. It
gets the lock after one other thread soon, but after as many as a caller sends requests late. So
work that takes no more than the interpreter, such as parsing, is done by one thread, and a caller
with much of it waits for itself (`galileo.turns`).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from galileo.offload import INLINE_STEPS_MAX
from galileo.shares import SHARE_HOLDER
from galileo.turns import FairTurns

P = ParamSpec("P")
T = TypeVar("T")

WAITING_MAX = 256
"""Pieces of work of all callers that wait for their turn."""
WITHIN_S = 30.0
"""Seconds after which a piece of work that waits is refused."""


class _Worker:
    """The thread of one event loop, and the turns of its callers."""

    def __init__(self) -> None:
        self.turns = FairTurns(1, what="texts to parse", waiting_max=WAITING_MAX)
        # A call that is cancelled leaves its turn, but its work goes on: the next one waits for
        # the only thread.
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="galileo-parse")


_WORKERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Worker] = WeakKeyDictionary()
"""By loop, because the interpreter lock is the process's and a process has one event loop."""


async def interpret(
    steps: int, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
) -> T:
    """As `offload`, of a function that holds the interpreter lock: long ones wait for their turn.

    Few steps do not wait.

    Raises:
        Overloaded: too many wait, or the turn does not come in time.
    """
    if steps <= INLINE_STEPS_MAX:
        return function(*arguments, **named)
    loop = asyncio.get_running_loop()
    if (worker := _WORKERS.get(loop)) is None:
        worker = _WORKERS[loop] = _Worker()
    context = contextvars.copy_context()
    call = functools.partial(context.run, functools.partial(function, *arguments, **named))
    async with worker.turns.acquire(SHARE_HOLDER.get(), within_s=WITHIN_S):
        return await loop.run_in_executor(worker.thread, call)
