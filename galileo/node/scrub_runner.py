"""Reads all stored commits again in the background, so that damage of the disk is found early.

A round reads every file once, in a fixed order, at a bounded rate. It reads from the disk, past the
page cache. It notes durably how far it is, so a restart goes on there. An administrator can have a
round begin at once; it is read as fast as the disk and the checks allow, up to a bound.

It has a thread of its own, and takes no lock while it reads. The thread has no lower priority: it
would keep the interpreter's lock while others have the processor. Its rate bounds what it takes.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from galileo.errors import CorruptData, GalileoError, InternalError
from galileo.node.catalog import Catalog
from galileo.storage.compacted_segment import SUFFIX as MERGED
from galileo.storage.journal import PartitionJournal
from galileo.storage.scrub import FilePlace, ScrubState, damage_error, order, scrub_file
from galileo.storage.segment_verify import Corruption
from galileo.storage.store import Store

PERIOD_S = 7 * 86_400.0
BYTES_PER_S_MIN = 4 << 20
BYTES_PER_S_MAX = 32 << 20
BYTES_PER_S_REQUESTED = 256 << 20
"""Of a round that was requested: an administrator waits for it."""
HASTE = 2
"""A round aims at this part of its time, so that it ends in time though nodes are down a while."""
CALM_S = 60.0
"""After the start of a node, which has much to read then."""
SAVE_S = 30.0
MESSAGES_MAX = 100
KIND, NAME = "scrub", "state"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """When and how fast stored commits are read again.

    Args:
        period_s: from the begin of a round to that of the next; if infinite, rounds are only
            requested.
        bytes_per_s_min, bytes_per_s_max: the rate is between them, so that a round ends in time.
        calm_s: how long the first read waits after the start.
        save_s: between two notes of how far a round is.
        wall: seconds since 1970.
        monotonic: clock of the waits.
    """

    period_s: float = PERIOD_S
    bytes_per_s_min: float = BYTES_PER_S_MIN
    bytes_per_s_max: float = BYTES_PER_S_MAX
    calm_s: float = CALM_S
    save_s: float = SAVE_S
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class ScrubCounts:
    """Since the node started.

    Attributes:
        bytes: that were read from the disk.
        damages: damaged files that were found.
    """

    bytes: int = 0
    damages: int = 0


@dataclass(frozen=True, slots=True)
class ScrubRound:
    """How far a round is.

    Attributes:
        bytes_done, bytes_total: of the files that are stored now.
        is_over: whether all files that were stored at its begin are read.
        damages: what it found, at most `MESSAGES_MAX`; also files that are copied from other nodes.
    """

    bytes_done: int
    bytes_total: int
    is_over: bool
    damages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a journal, and how much of it is published; bytes."""

    place: FilePlace
    journal: PartitionJournal
    path: Path
    length: int


def _is_same(file: _File, length: int) -> bool:
    """Whether a file of its name and this length is the same, as segments grow.

    Erasing makes another merged one.
    """
    return length == file.length if file.path.suffix == MERGED else length >= file.length


class _Stopped(Exception):
    """The node ends."""


class _Requested(Exception):
    """A round is to begin at once."""


class ScrubRunner:
    """Starts its thread at once; `stop` it before the journals are closed.

    Attributes:
        counts: since the node started.
        state: how far it is.
    """

    def __init__(self, catalog: Catalog, store: Store, options: ScrubOptions) -> None:
        self.counts = ScrubCounts()
        self._catalog = catalog
        self._store = store
        self._options = options
        self._rate = options.bytes_per_s_min
        self._woken = threading.Event()
        self._is_stopping = False
        self._is_requested = False  # A round that has not begun yet.
        self._is_urgent = False  # The last round that has begun was requested.
        self._found: list[str] = []
        self.state = self._load()
        self._saved, self._saved_at = self.state, options.monotonic()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread within a read; blocks until then."""
        self._is_stopping = True
        self._woken.set()
        self._thread.join()

    def request(self) -> None:
        """Begins a round at once, unless one that was requested is under way.

        Raises:
            InternalError: the thread has failed.
        """
        if not self._thread.is_alive():
            raise InternalError("the scrub of this node has failed, see its log; restart the node")
        is_under_way = self._is_urgent and not self.state.is_over
        if not (self._is_requested or is_under_way):
            self._is_requested = True
            self._woken.set()

    def progress(self) -> ScrubRound:
        """How far the round under way, or the last one, is."""
        is_over = not self._is_requested and self.state.is_over
        last = None if self._is_requested else self.state.last
        done = total = 0
        for file in self._stored():
            total += file.length
            is_read = last is not None and order(file.place) <= order(last)
            done += file.length if is_over or is_read else 0
        return ScrubRound(done, total, is_over, tuple(self._found[:MESSAGES_MAX]))

    @property
    def age_s(self) -> float | None:
        """All that was stored so long ago was read since; None if rounds are only requested."""
        if math.isinf(self._options.period_s):
            return None
        return max(0.0, self._options.wall() - self.state.complete_at)

    def damages(self) -> list[str]:
        """The damaged files that no other node can replace, each with its place and reason."""
        return [
            f"{dataset}/p{partition}: {name} at byte {flaw.offset}: {flaw.reason}"
            for (dataset, partition, name), flaw in sorted(self.state.damages.items())
        ]

    # --- rounds --------------------------------------------------------------------------------

    def _load(self) -> ScrubState:
        """The state of the last process, or of a first round that is due."""
        now = self._options.wall()
        try:
            data = self._store.load_record(KIND, NAME)
        except CorruptData as error:
            log.warning("the scrub begins anew: %s", error)
            data = None
        if data is not None:
            return ScrubState.from_bytes(data)
        return ScrubState(now, is_over=math.isinf(self._options.period_s), complete_at=now)

    def _save(self, *, is_due: bool = True) -> None:
        """Notes the state durably, unless that was done a moment ago and it is not due."""
        now = self._options.monotonic()
        is_late = now >= self._saved_at + self._options.save_s
        if self.state == self._saved or not (is_due or is_late):
            return
        try:
            self._store.save_record(KIND, NAME, self.state.to_bytes())
        except GalileoError as error:
            log.warning("how far the scrub is cannot be stored: %s", error)
        self._saved, self._saved_at = self.state, now

    def _run(self) -> None:
        wait_s = self._options.calm_s
        try:
            while True:
                try:
                    self._wait(wait_s)
                    if self.state.is_over and self._until_next_s() <= 0:
                        self._begin()
                    if not self.state.is_over:
                        self._round()
                except _Requested:
                    self._begin()
                wait_s = self._until_next_s() if self.state.is_over else 0.0
        except _Stopped:
            self._save()
        except Exception:
            log.exception("the scrub has failed; it goes on after a restart")

    def _begin(self) -> None:
        self._found = []
        self.state = self.state.begun(self._options.wall())
        self._is_urgent, self._is_requested = self._is_requested, False

    def _until_next_s(self) -> float:
        """A clock that was set back delays a round by one period at most."""
        due_s = self.state.began_at + self._options.period_s - self._options.wall()
        return min(due_s, self._options.period_s)

    def _round(self) -> None:
        self._read_damaged()
        for file in self._files():
            self._read(file)
            self.state = replace(self.state, last=file.place)
            self._save(is_due=False)
        self.state = self.state.ended()
        self._save()
        log.info("the scrub has read all files; %d are damaged", len(self.state.damages))

    def _files(self) -> Iterator[_File]:
        """The files that the round has not read yet, in order, as they are when it comes to them.

        A file that was merged or dropped meanwhile is left out: a merge reads what it merges.
        """
        for _, files in itertools.groupby(self._stored(), key=lambda file: file.place[:2]):
            self._set_rate()
            for file in files:
                if self.state.last is None or order(file.place) > order(self.state.last):
                    yield file

    def _stored(self) -> Iterator[_File]:
        for dataset in sorted(self._catalog.shards):
            shard = self._catalog.shards.get(dataset)
            journals = {} if shard is None else shard.journals
            for partition, journal in sorted(journals.items()):
                for path, length in journal.files():
                    yield _File((dataset, partition, path.name), journal, path, length)

    def _set_rate(self) -> None:
        if self._is_urgent:
            self._rate = BYTES_PER_S_REQUESTED
            return
        journals = [j for shard in self._catalog.shards.values() for j in shard.journals.values()]
        stored = sum(journal.bytes_on_disk for journal in journals)
        wanted = HASTE * stored / self._options.period_s
        self._rate = min(max(wanted, self._options.bytes_per_s_min), self._options.bytes_per_s_max)

    # --- files ---------------------------------------------------------------------------------

    def _read_damaged(self) -> None:
        """Reads the files first that were damaged; they may have been mended or dropped since."""
        for place in list(self.state.damages):
            dataset, partition, name = place
            shard = self._catalog.shards.get(dataset)
            journal = None if shard is None else shard.journals.get(partition)
            files = [] if journal is None else journal.files()
            file = next((one for one in files if one[0].name == name), None)
            if journal is None or file is None:
                self.state = self.state.with_damage(place, None)
            else:
                self._read(_File(place, journal, *file))
        self._save()

    def _read(self, file: _File) -> None:
        flaw = None
        partition = file.place[1]
        try:
            flaw = scrub_file(
                file.path, partition=partition, length=file.length, on_read=self._pace
            )
        except FileNotFoundError:
            pass  # It was merged or dropped meanwhile.
        except (OSError, GalileoError) as error:
            log.warning("the scrub passes over %s: %s", file.path, error)
            return
        if flaw is not None and self._is_current(file):
            self._report(file, flaw)
        else:
            self.state = self.state.with_damage(file.place, None)

    def _pace(self, size: int) -> None:
        self.counts.bytes += size
        self._wait(size / self._rate)

    def _wait(self, seconds: float) -> None:
        """Raises what was asked of the thread meanwhile; it may return early."""
        if self._woken.wait(min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            self._woken.clear()
        if self._is_stopping:
            raise _Stopped
        if self._is_requested:
            raise _Requested

    def _is_current(self, file: _File) -> bool:
        """Whether a journal still has what was read; else it was merged, dropped or replaced."""
        dataset, partition, _ = file.place
        shard = self._catalog.shards.get(dataset)
        return (
            shard is not None
            and shard.journals.get(partition) is file.journal
            and any(path == file.path and _is_same(file, now) for path, now in file.journal.files())
        )

    def _report(self, file: _File, flaw: Corruption) -> None:
        """Has the log copied again from other nodes, or notes the damage if there are none."""
        self.counts.damages += 1
        error = damage_error(file.path, flaw)
        self._found.append(str(error))
        if file.journal.report_damage(error) is error:
            log.error("the scrub found damage: %s", error)
            self.state = self.state.with_damage(file.place, flaw)
            self._save()
        else:
            log.error("the scrub found damage, the log is copied again: %s", error)
