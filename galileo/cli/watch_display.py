"""How `galileo ccq watch` looks on a terminal, and when it ends in a pipe."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from galileo.cli.live_display import Frame, LiveDisplay, Panel
from galileo.cli.output import Output, counted
from galileo.client import Labels, Update
from galileo.client.table_formats import rows_of

LABELS_SHOWN = 20
NOT_SHOWN = ["block", "partition", "sequence", "label"]
"""Columns that programs need, and that would leave people no room for the others."""
READER_ENDED = signal.SIGUSR1
"""Interrupts the main thread. Commands in the background of a script ignore SIGINT."""
PIPE_LOOK_MS = 500
"""Between two looks at a pipe; Linux also reports its end in between."""


class WatchDisplay(LiveDisplay):
    """A board with the newest labels of a continuous query, and how many came in all."""

    def __init__(self, output: Output, ccq_id: str) -> None:
        super().__init__(output)
        self._ccq_id = ccq_id
        self._newest: Labels | None = None
        self._labels = self._updates = self._gone = self._withdrawn = 0

    def update(self, update: Update, notices: Sequence[str]) -> None:
        """Shows what an update brought; its token stands below, to go on with."""
        self._updates += 1
        self._labels = len(update.labels) + self._labels * (not update.reset)
        self._withdrawn += len(update.withdrawn or ())
        self._gone += sum(dropped.commits for dropped in update.gone)
        held = (
            [update.labels]
            if self._newest is None or update.reset
            else [self._newest, update.labels]
        )
        joined = Labels.concat(update.labels.schema, held)
        newest = joined.slice(max(0, len(joined) - LABELS_SHOWN), len(joined))
        self._newest = Labels(newest.schema, newest.table)
        rows = rows_of(self._newest.to_arrow().drop_columns(NOT_SHOWN))
        words = "\n".join([self._summary(update), *notices, f"token {update.token}"])
        self.show(Frame((Panel(rows, title=self._ccq_id, words=words),), None))

    def _summary(self, update: Update) -> str:
        gone = f", dropped by retention before: {counted(self._gone, 'commit')}" * bool(self._gone)
        more = ", more to come" * update.more
        gone = f", {self._withdrawn:,} withdrawn" * bool(self._withdrawn) + gone
        return (
            f"{counted(self._labels, 'label')} in {counted(self._updates, 'update')}, the newest "
            f"{min(self._labels, LABELS_SHOWN)} shown{gone}{more}"
        )


@contextlib.contextmanager
def stop_when_reader_ends(output_fd: int = 1) -> Iterator[None]:
    """Ends the block when the reader of a pipe ends, also while nothing is written to it.

    Use it in the main thread. Files and terminals are not watched.

    Raises:
        BrokenPipeError: the reader has ended.
    """
    mode = os.fstat(output_fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    is_over, has_ended, turn = threading.Event(), threading.Event(), threading.Lock()

    def watch_pipe() -> None:
        poller = select.poll()
        poller.register(output_fd, 0)  # Errors and the end are reported whatever is asked for.
        while not poller.poll(PIPE_LOOK_MS):
            if is_over.is_set():
                return
        with turn:
            if not is_over.is_set():
                os.kill(os.getpid(), READER_ENDED)  # The main thread may be waiting.

    def end_block(number: int, frame: FrameType | None) -> None:
        has_ended.set()
        raise KeyboardInterrupt  # Which ends the call that waits, too.

    before = signal.signal(READER_ENDED, end_block)
    threading.Thread(target=watch_pipe, name="galileo-pipe", daemon=True).start()
    try:
        try:
            yield
        finally:
            with turn:
                is_over.set()
    except KeyboardInterrupt:
        if has_ended.is_set():
            raise BrokenPipeError from None
        raise
    finally:
        signal.signal(READER_ENDED, before)
