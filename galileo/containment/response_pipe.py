"""Reads the responses of a contained process, which is not trusted."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping

from galileo.containment import frames

PRINTED_BYTES_KEPT = 4_096
"""Of what sent code prints in one call: the beginning, for errors."""

DIED = "its process died"
INVALID_RESPONSE = "it wrote into the pipe of its answers"

_CHUNK_BYTES = 65_536
_LOOK_AFTER_MS = 100


class SandboxTerminated(Exception):
    """A contained process has ended or must end; the message is for the author of its sampler."""


class ResponseReader:
    """Reads answers and what is printed meanwhile, up to their bounds.

    Args:
        answers: descriptor of the pipe of answers.
        printed: descriptor of the pipe for what sent code prints.
        printed_max: bytes that may be printed from one `begin` to the next.
    """

    def __init__(self, answers: int, printed: int, *, printed_max: int) -> None:
        self._answers, self._printed, self._printed_max = answers, printed, printed_max
        self._beginning = bytearray()
        self._count = 0
        self._is_open = True
        self._poll = select.poll()
        for descriptor in (answers, printed):
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def begin(self) -> None:
        """Discards the output of earlier calls.

        Raises:
            SandboxTerminated: the process has answered before any request.
        """
        self._beginning.clear()
        self._count = 0
        if _available(self._answers, 1):
            raise SandboxTerminated(INVALID_RESPONSE)

    def printed(self) -> str:
        """The beginning of what was printed."""
        self._drain()
        return readable(bytes(self._beginning))

    def next(
        self,
        *,
        sizes: Mapping[int, range],
        until: Callable[[], float],
        look: Callable[[], None],
    ) -> tuple[int, bytes]:
        """The next answer, a status and its bytes.

        Args:
            sizes: how many bytes may follow each status that may come.
            until: when to give up, monotonic seconds; called from time to time.
            look: called from time to time; what it raises ends the wait.

        Raises:
            SandboxTerminated: it is no such answer, or the process died.
            TimeoutError: it does not come in time.
        """
        head = self._exactly(frames.ANSWER.size, until=until, look=look)
        status, size = frames.ANSWER.unpack(head)
        if status not in sizes or size not in sizes[status]:
            raise SandboxTerminated(INVALID_RESPONSE)
        return status, self._exactly(size, until=until, look=look)

    def _exactly(self, size: int, *, until: Callable[[], float], look: Callable[[], None]) -> bytes:
        """Reads exactly `size` bytes."""
        data = bytearray()
        while len(data) < size:
            left_s = until() - time.monotonic()
            self._poll.poll(min(_LOOK_AFTER_MS, 1000 * max(0.0, left_s) + 1))
            self._drain()
            came = _available(self._answers, size - len(data))
            if came == b"":
                raise SandboxTerminated(DIED)
            data += came or b""
            look()
            # Only now, for what came while this process was stopped came in time.
            if left_s <= 0 and len(data) < size:
                raise TimeoutError
        return bytes(data)

    def _drain(self) -> None:
        while came := _available(self._printed, _CHUNK_BYTES):
            self._count += len(came)
            self._beginning += came[: PRINTED_BYTES_KEPT - len(self._beginning)]
            if self._count > self._printed_max:
                raise SandboxTerminated(f"it printed more than {self._printed_max:,} bytes")
        if came == b"" and self._is_open:
            # Else its end would wake every wait at once.
            self._is_open = False
            self._poll.unregister(self._printed)


def readable(data: bytes, *, keep: str = "") -> str:
    """Text that a terminal shows and does not obey."""
    plain = "\n\t" + keep
    text = data.decode(errors="replace")
    return "".join(
        char if char.isprintable() or char in plain else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _available(descriptor: int, size: int) -> bytes | None:
    """The available bytes, up to `size`; None without any, empty at the end of the pipe."""
    try:
        return os.read(descriptor, size)
    except BlockingIOError:
        return None
