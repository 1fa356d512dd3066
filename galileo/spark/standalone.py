"""A standalone cluster of Spark as its applications see it: its masters, and its executors.

A session is lost when it has no executor for some time. A master that restarts does not know the
applications of its predecessor: its workers end their executors, and the applications get no new
ones. Spark itself reports neither. Then the evaluator ends, and its successor registers anew.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from galileo.clock import Clock
from galileo.errors import Unavailable

CONNECT_TIMEOUT_S = 3.0
FIRST_EXECUTOR_S = 45.0
"""Longest wait of a new session for its first executor."""
NO_EXECUTOR_S = 15.0
"""After this time without any executor a session is lost. The start of an executor takes less, also
on a busy host.
"""
RETRY_S = 1.0


def address_towards(masters: Sequence[tuple[str, int]]) -> str:
    """The address of this host from which it reaches the first master that answers.

    Raises:
        Unavailable: none answers.
    """
    failures = []
    for host, port in masters:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    raise Unavailable(
        f"no master of the Spark cluster answers ({'; '.join(failures)}); start it, or correct "
        "spark.master. Queries are evaluated from where they stopped as soon as it answers",
        after_s=RETRY_S,
    )


class ExecutorWatch:
    """Decides from the number of executors whether a session is lost."""

    def __init__(self, clock: Clock, *, timeout_s: float = NO_EXECUTOR_S) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._last = clock.monotonic()

    def failure(self, executors: int) -> str:
        """Why the session is lost; "" while it is not.

        Args:
            executors: that the session has now.
        """
        now = self._clock.monotonic()
        if executors:
            self._last = now
        if now - self._last <= self._timeout_s:
            return ""
        return (
            f"the Spark cluster gave no executor for {self._timeout_s:g} s: its master was "
            "restarted, or its workers ended"
        )
