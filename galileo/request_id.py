"""The id of the current request, by which its lines in the logs of all nodes can be found.

The client creates it, calls carry it from node to node, and errors return it. It is stored in the
context of the task, which tasks and threads of asyncio inherit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

METADATA_KEY = "galileo-request"
DETAIL = "request"
"""Its key in the details of errors."""
_SOUND = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_current: ContextVar[str] = ContextVar("galileo_request", default="")


def current() -> str:
    """The id of the current request; empty if there is none."""
    return _current.get()


def new_id() -> str:
    return secrets.token_hex(8)


def sound(text: str | None) -> str:
    """Validates a received id; returns a new one if it is invalid."""
    return text if text and _SOUND.fullmatch(text) else new_id()


def begin(request: str) -> None:
    """Sets the current request of this task."""
    _current.set(request)


@contextmanager
def serving(request: str = "") -> Iterator[str]:
    """Serves `request` in the block; by default the current request or a new one."""
    token = _current.set(request or current() or new_id())
    try:
        yield current()
    finally:
        _current.reset(token)
