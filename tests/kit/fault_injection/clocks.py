"""Wall clocks that jump, for single processes, by libfaketime; monotonic clocks are unchanged."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PROBE = "import time; print(time.time())"
PROBE_S = 3_600.0
READ_AGAIN_S = 2.0


class WallClock:
    """The wall clock of processes that are started with `prefix`.

    Args:
        file: contains the offset of the clock; processes read it again within `READ_AGAIN_S`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0.0)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix."""
        variables = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else it takes waits by the monotonic clock for others, and they last for seconds.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # Whole seconds, more than so many of them.
        }
        return ("env", *(f"{name}={value}" for name, value in variables.items()))

    def jump(self, offset_s: float) -> None:
        """Set the offset of the clock in seconds."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{offset_s:+.0f}\n")
        draft.replace(self._file)


@functools.cache
def faketime_missing() -> str | None:
    """Why libfaketime cannot be used here, None if it can."""
    if _library() is None:
        return "the package libfaketime is not installed, or has nothing for this platform"
    variables = {**os.environ, "LD_PRELOAD": str(_library()), "FAKETIME": f"+{PROBE_S:.0f}"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, env=variables, check=False
    )
    true = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    try:
        off_s = float(done.stdout) - float(true.stdout)
    except ValueError:
        return f"libfaketime does not load: {done.stderr.strip()}"
    return None if off_s > PROBE_S / 2 else "libfaketime does not change the clock of Python"


@functools.cache
def _library() -> Path | None:
    """Path of the library; importing its package would change this process."""
    spec = importlib.util.find_spec("libfaketime")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = Path(spec.submodule_search_locations[0]) / "vendor/libfaketime/src/libfaketime.so.1"
    return found if found.exists() else None
