"""Readiness of a node, with the reasons if it is not ready.

HTTP's `/ready` and gRPC's health service use the same object, so that they agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from galileo.clock import Clock

PROBE_BYTES = 4096
PROBE_INTERVAL_S = 10.0
PROBE_WITHIN_S = 5.0
"""Longest time of a working disk."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """`checks`: for each condition its problem, or an empty text."""

    checks: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return not any(self.checks.values())


class ReadinessChecks:
    """Checks the readiness of a node.

    Args:
        directory: of the node.
        unheard: the peers that have not answered yet and are not dead.
        clock: monotonic clock.
        lag_max_s: accepted lag of the event loop.
    """

    def __init__(
        self,
        directory: Path,
        *,
        unheard: Callable[[], Sequence[str]],
        clock: Clock,
        lag_max_s: float,
    ) -> None:
        self._directory = directory
        self._unheard = unheard
        self._clock = clock
        self._lag_max_s = lag_max_s
        self._lag_s = 0.0
        self._disk = ""
        self._probing_since: float | None = None

    def record_lag(self, lag_s: float) -> None:
        """Records the lag of the event loop at its last check."""
        self._lag_s = lag_s

    def probe_disk(self) -> None:
        """Writes to the node's disk, into an unnamed file; call it in a thread."""
        self._probing_since = self._clock.monotonic()
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.write(bytes(PROBE_BYTES))
        except OSError as error:
            self._disk = f"{self._directory} cannot be written to: {error}"
        else:
            self._disk = ""
        self._probing_since = None

    def look(self) -> Readiness:
        return Readiness(
            {
                "peers": self._peers(),
                "event loop": self._loop(),
                "disk": self._hung() or self._disk,
            }
        )

    def _hung(self) -> str:
        since = self._probing_since
        hung_s = 0.0 if since is None else self._clock.monotonic() - since
        return f"a write has not come back for {hung_s:.0f} s" if hung_s > PROBE_WITHIN_S else ""

    def _peers(self) -> str:
        """The problem with peers: some have neither answered nor been declared dead."""
        unknown = self._unheard()
        return f"nothing was heard yet from {', '.join(unknown)}" if unknown else ""

    def _loop(self) -> str:
        if self._lag_s <= self._lag_max_s:
            return ""
        return f"it was {self._lag_s:.1f} s late, {self._lag_max_s:g} s at most are expected"
