"""Signals that end a program leave it as exceptions, so that clusters are stopped on the way."""

from __future__ import annotations

import signal
import sys

CANCELLED, TERMINATED = 130, 143
"""Exit statuses of programs that were ended by Ctrl-C or by SIGTERM."""


def become_exceptions() -> None:
    """From here on SIGTERM raises SystemExit, and SIGINT KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    # A shell starts what runs in the background with this one ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
