"""The id of the request that is being served, by which its lines in all nodes' logs are found.

The client makes it up, calls carry it from node to node, and errors bring it back. It is kept in
the context of the running task, which tasks and threads made by asyncio inherit; nothing but logs
and errors' details looks at it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

METADATA_KEY = "galileo-request"
DETAIL = "request"
"""Under which errors' details have it."""
_SOUND = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_current: ContextVar[str] = ContextVar("galileo_request", default="")


def current() -> str:
    """Of the request that this task serves; empty where it serves none."""
    return _current.get()


def new_id() -> str:
    return secrets.token_hex(8)


def sound(text: str | None) -> str:
    """An id as it came from elsewhere; a new one where that is none, or could disturb a log."""
    return text if text and _SOUND.fullmatch(text) else new_id()


def begin(request: str) -> None:
    """From here on this task serves `request`."""
    _current.set(request)


@contextmanager
def serving(request: str = "") -> Iterator[str]:
    """Serves `request` within, or what is served already, or else a new one."""
    token = _current.set(request or current() or new_id())
    try:
        yield current()
    finally:
        _current.reset(token)
