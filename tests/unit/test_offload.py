"""Work in steps: what stays on the event loop, and what leaves it."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from galileo.offload import INLINE_STEPS_MAX, offload

CALLER: ContextVar[str] = ContextVar("CALLER", default="")


@pytest.mark.parametrize(("steps", "is_inline"), [(INLINE_STEPS_MAX, True), (1 << 20, False)])
async def test_offload_calls_long_functions_in_a_thread(steps: int, is_inline: bool) -> None:
    CALLER.set("alice")

    def work(first: int, *, second: int) -> tuple[int, int, str, int]:
        return first, second, CALLER.get(), threading.get_ident()

    *arguments, caller, thread = await offload(steps, work, 1, second=2)
    assert arguments == [1, 2]
    assert caller == "alice"
    assert (thread == threading.get_ident()) is is_inline


@pytest.mark.parametrize("steps", [0, 1 << 20])
async def test_offload_raises_the_error_of_the_function(steps: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await offload(steps, divmod, 1, 0)
