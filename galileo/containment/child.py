"""The process under bubblewrap, seen from its parent: pipes, signals, CPU time.

A thread starts the process and waits for its end. Linux kills the process when that thread ends,
and therefore also when the parent dies.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from galileo.clock import run_queue_wait_s
from galileo.containment import filters
from galileo.containment.limits import ContainmentLimits
from galileo.containment.sandbox import Descriptors, command

END_S = 10.0
"""Seconds for the kernel to end a killed process."""

_CLOCK_OF_PROCESS = 2


@dataclass(slots=True)
class Child:
    """A started process.

    Attributes:
        process: bubblewrap's, outside.
        requests: descriptor to write requests to.
        answers: descriptor to read answers from.
        printed: descriptor of its standard output and error.
        keeper: the thread that started it and waits for it.
        pid: of the contained process in the namespace of the parent; 0 until `find`.
    """

    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    printed: int
    keeper: threading.Thread
    pid: int = 0
    _handle: int = -1

    def find(self) -> None:
        """Finds the contained process: bubblewrap's grandchild, below the first of its namespace.

        Raises:
            psutil.Error, OSError, ValueError: it is gone.
        """
        (first,) = psutil.Process(self.process.pid).children()
        (contained,) = first.children()
        self.pid = contained.pid
        self._handle = os.pidfd_open(self.pid)

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the contained process; nothing where it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def cpu_s(self) -> float:
        """CPU time of the contained process, all its threads; 0 where it is gone."""
        with suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | _CLOCK_OF_PROCESS)
        return 0.0

    def run_queue_wait_s(self) -> float:
        """How long the contained process has waited for a processor; 0 before `find`."""
        return run_queue_wait_s(self.pid) if self.pid else 0.0

    def end(self) -> None:
        """Kills it with everything in its namespace, waits for that, and closes the pipes."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.keeper.join(END_S)
        if self._handle >= 0:
            # Readable when the process is over; bubblewrap's end is not yet the contained one's.
            gone = select.poll()
            gone.register(self._handle, select.POLLIN)
            gone.poll(1000 * END_S)
        for descriptor in (self.requests, self.answers, self.printed, self._handle):
            if descriptor >= 0:
                os.close(descriptor)


def spawn(
    archive: bytes, memory: int, limits: ContainmentLimits, *, as_root: bool | None = None
) -> Child:
    """Starts a contained process.

    Args:
        archive: the uploaded zip file.
        memory: descriptor of the shared memory, readable.
        limits: that the process sets for itself.
        as_root: see `sandbox.command`.

    Raises:
        OSError: bubblewrap cannot be started.
    """
    machine = filters.this_machine()
    if machine is None:
        raise OSError(f"the processors of this machine ({os.uname().machine}) are not known")
    requests, ours = os.pipe2(os.O_CLOEXEC)
    answered, answers = os.pipe2(os.O_CLOEXEC)
    printed, prints = os.pipe2(os.O_CLOEXEC)
    given = (answers, memory, _file(archive), _file(filters.base(machine)))
    theirs = (requests, prints, *(descriptor for descriptor in given if descriptor != memory))
    try:
        words = command(Descriptors(*given), limits, as_root=as_root)
        process, keeper = _start_in_thread(words, requests=requests, prints=prints, given=given)
    except BaseException:
        for descriptor in (ours, answered, printed):
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Child(process, ours, answered, printed, keeper)


def _file(content: bytes) -> int:
    """The descriptor of an anonymous file with this content, at its start."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _start_in_thread(
    words: list[str], *, requests: int, prints: int, given: tuple[int, ...]
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts the command in a thread that waits for its end."""
    started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = subprocess.Popen(
                words,
                stdin=requests,
                stdout=prints,
                stderr=prints,
                pass_fds=given,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    keeper = threading.Thread(target=keep, name="contained sampler", daemon=True)
    keeper.start()
    outcome = started.get()
    if isinstance(outcome, OSError):
        raise outcome
    return outcome, keeper
