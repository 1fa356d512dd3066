"""Calls from a thread of a node, such as that of retention, to the node's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from galileo.errors import GalileoError

T = TypeVar("T")


def call_in_loop(
    loop: asyncio.AbstractEventLoop,
    call: Callable[[], Coroutine[Any, Any, T]],
    *,
    timeout_s: float,
    otherwise: T,
) -> T:
    """The result of a coroutine function that runs in an event loop; blocks this thread.

    Args:
        loop: of another thread.
        call: without arguments.
        timeout_s: how long to wait.
        otherwise: the result if the loop is closed, or the call fails or does not end in time.
    """
    if loop.is_closed():
        return otherwise
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result(timeout_s)
    except (CancelledError, FutureTimeout, GalileoError):
        future.cancel()
        return otherwise
