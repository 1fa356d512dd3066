"""Constants and functions of production that a simulated world replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


@contextmanager
def patched(values: Mapping[str, Any]) -> Iterator[None]:
    """Replaces what has these dotted names."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(name, value))
        yield
