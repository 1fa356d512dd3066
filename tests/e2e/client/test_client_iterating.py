"""Iterators of the blocking client, which are closed however they are left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import galileo


def test_iterator_interrupted_before_it_waits_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python may raise it between any two instructions."""
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    schedule = asyncio.run_coroutine_threadsafe
    with galileo.connect("127.0.0.1:1") as client:

        def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", schedule)
            schedule(work, loop)
            assert begun.wait(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(client._iterate(endless()))
        assert ended.is_set()
