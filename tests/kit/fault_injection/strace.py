"""System calls that fail or kill, by `strace`: in a new process, or in one that runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ATTACH_TIMEOUT_S = 10.0
END_TIMEOUT_S = 10.0

SYNC = ("fdatasync",)
WRITE = ("pwritev", "?pwritev2", "pwrite64")
DIRECTORY_SYNC = ("fsync",)
RENAME = ("?rename", "?renameat", "?renameat2")
UNLINK = ("?unlink", "?unlinkat")
TRUNCATE = ("ftruncate",)
CALLS = {
    "fdatasync": SYNC,
    "pwritev": WRITE,
    "fsync": DIRECTORY_SYNC,
    "rename": RENAME,
    "unlink": UNLINK,
    "ftruncate": TRUNCATE,
}
"""Everything by which the store changes the disk, by the name that people know."""


def fault(calls: Sequence[str], what: str, *, when: str) -> list[str]:
    """Arguments of strace for one fault.

    Args:
        calls: names of system calls.
        what: "signal=SIGKILL", "error=EIO", "delay_enter=1000" (microseconds) and the like;
            before the call takes place.
        when: which ones, counted by each thread for itself: "3" the third, "2+" from the second.
    """
    names = ",".join(calls)
    return ["-e", f"trace={names}", "-e", f"inject={names}:{what}:when={when}"]


def traced(command: Sequence[str], faults: Sequence[str], *, trace: Path) -> list[str]:
    """The command line of a process that meets a fault from its start on."""
    strace = shutil.which("strace") or "strace"
    return [strace, "-f", "-qq", "-o", str(trace), *faults, *command]


@contextlib.contextmanager
def injecting(pid: int, faults: Sequence[str], *, trace: Path) -> Iterator[None]:
    """A running process and all its threads meet a fault within the block.

    Raises:
        TimeoutError: strace did not get hold of the process.
    """
    command = [shutil.which("strace") or "strace", "-f", "-qq", "-o", str(trace), *faults]
    strace = subprocess.Popen(
        [*command, "-p", str(pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    try:
        _wait_attached(strace, pid)
        yield
    finally:
        strace.terminate()
        _ended(strace)


def attached_to_nothing() -> None:
    """Attaches to a process that sleeps, to see whether that is permitted.

    Raises:
        OSError, TimeoutError: it is not.
    """
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command) as sleeper:
        try:
            with injecting(sleeper.pid, fault(SYNC, "error=EIO", when="1"), trace=Path(os.devnull)):
                pass
        finally:
            sleeper.kill()


def _wait_attached(strace: subprocess.Popen[bytes], pid: int) -> None:
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while not _is_traced(pid):
        if strace.poll() is not None or time.monotonic() > deadline:
            strace.kill()
            said = _ended(strace).decode(errors="replace").strip()
            raise TimeoutError(f"strace did not get hold of process {pid}: {said or 'no reason'}")
        time.sleep(0.005)


def _ended(strace: subprocess.Popen[bytes]) -> bytes:
    """Waits for the end of a process that was ended; returns what it printed.

    While strace starts it has a child to try out what the kernel can. Ended amid that, it leaves
    the child behind, stopped for ever, with the pipe open.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        strace.wait(END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(strace.pid, signal.SIGKILL)
    return strace.communicate()[1]


def _is_traced(pid: int) -> bool:
    """Whether every thread of a process is; a thread that just ended counts as such."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if "TracerPid:\t0\n" in (thread / "status").read_text():
                return False
    return True
