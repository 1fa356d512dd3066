"""Work that leaves the event loop if it takes more than some milliseconds.

The work of a handler often grows with numbers that its caller chooses, and all other callers wait
while the event loop does it. Handlers pass such work to `offload`, with a bound of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

INLINE_STEPS_MAX = 4_096
"""Steps up to which the event loop does the work; a switch to a thread takes 100 to 200 of them."""


async def offload(
    steps: int, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
) -> T:
    """The result of a function, which a thread calls unless it takes few steps.

    A step is about a microsecond. The function uses nothing that belongs to the event loop.
    """
    if steps <= INLINE_STEPS_MAX:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)
