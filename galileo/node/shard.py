"""What one node keeps of one dataset or table, and the one way a commit takes into it.

A commit is appended to its partition's journal and made durable; then its paths enter the
index; then its sequence is published. In that order, so that whatever a scan can see has a
sequence at or below the one it reports, and what it cannot see a higher one: the reason why a
continuous query cannot miss.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor, LostPosition, history_changed
from galileo.dht.topology import partition_name
from galileo.errors import (
    NAMED_MAX,
    GalileoError,
    InternalError,
    PartitionMoved,
    PartitionReadOnly,
    Unavailable,
    listed,
)
from galileo.graph.columns import Commits
from galileo.graph.versions import Choice
from galileo.model.forks import Forks, history_of
from galileo.model.schema import StoredSchema, widen
from galileo.model.sort_keys import differs
from galileo.model.versions import PartitionVersion
from galileo.model.windows import ClockStep
from galileo.storage.commit_log import CommitLog, write_directly
from galileo.storage.commits import FrameGroup
from galileo.storage.compaction import RateLimit
from galileo.storage.erasing import ErasedRows, RemovedRows
from galileo.storage.frame import Buffer
from galileo.storage.journal import (
    Appending,
    Commit,
    Committed,
    FollowedFrame,
    FrameEpochs,
    PartitionJournal,
    decode_frames,
)
from galileo.storage.recovery import Replayed
from galileo.storage.retention import Truncation

ALL_PARTITIONS = range(1 << 31)

Results: TypeAlias = dict[int, Committed | GalileoError]
"""What became of the part of a batch in each partition."""


@dataclass(frozen=True, slots=True)
class PublishedCommits:
    """The published commits of a shard's own partitions.

    Attributes:
        sequences: the last commit of each partition.
        clock: the newest time bucket of each partition and the commit that brought it, for at
            least the commits of `sequences`.
        deletions: the last deletion of each partition that has one, of at least these commits; of
            a dataset without a key.
    """

    sequences: Cursor
    clock: tuple[ClockStep, ...]
    deletions: Cursor = EMPTY_CURSOR


class PathIndex(Protocol):
    """The paths of the commits that readers see.

    Attributes:
        dropped: up to which commit of each partition retention has removed the paths.
        runs: changes when `maintain` may have something to do.
    """

    @property
    def dropped(self) -> Cursor: ...

    @property
    def runs(self) -> int: ...

    def insert_many(
        self, batch: pa.RecordBatch, commits: Commits, counts: npt.NDArray[np.integer[Any]]
    ) -> None: ...

    def remove(self, partition: int) -> None: ...

    def drop_before(self, partition: int, sequence: int) -> None: ...

    def maintain(self) -> bool: ...

    def memory_bytes(self) -> int: ...


class Shard:
    """The journals and the index of one dataset or table on this node.

    A partition that another node leads is here without being this node's own; methods about own
    partitions ignore it.

    Attributes:
        index: of the paths that readers see.
        durable_s: how long writes have waited for the disk, in all.
    """

    def __init__(
        self,
        schema: StoredSchema,
        index: PathIndex,
        *,
        owned: Callable[[], Container[int]] = lambda: ALL_PARTITIONS,
        log: CommitLog | None = None,
        may_serve: Callable[[int], bool] = lambda _: True,
        may_follow: Callable[[int], bool] = lambda _: False,
        is_lost: Callable[[int], bool] = lambda _: False,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.schema = schema
        self.index = index
        self._owned = owned
        self._may_serve = may_serve
        self._may_follow = may_follow
        self._is_lost = is_lost
        self._log = log
        self.journals: dict[int, PartitionJournal] = {}
        self._published: dict[int, int] = {}
        self._change = object()
        self._on_change = on_change
        self._own_published: tuple[object, object, PublishedCommits] | None = None
        self._terms: dict[int, int] = {}
        self._attaching = threading.Lock()
        self._runs_maintained = 0
        self.durable_s = 0.0

    def replay(self, partition: int, replayed: Replayed) -> None:
        """Indexes commits that the journal already has; at start, before `attach`."""
        commits = Commits.of(partition, replayed.sequences)
        self.index.insert_many(replayed.paths, commits, replayed.counts)
        self._note(partition, replayed)

    def attach(self, partition: int, journal: PartitionJournal, *, term: int = 0) -> None:
        """Begins to serve a partition, whose last known leader has this term."""
        self._terms[partition] = max(term, self._terms.get(partition, 0))
        with self._attaching:  # A new dictionary, since other threads may iterate over this one.
            self.journals = {**self.journals, partition: journal}
        if journal.last_sequence:  # of which none was replayed where retention dropped them all
            self._published[partition] = journal.last_sequence
        self._note_change()

    def detach(self, partition: int) -> None:
        """Removes a partition, in a thread; the caller closes its journal."""
        with self._attaching:
            self.journals = {p: journal for p, journal in self.journals.items() if p != partition}
        self._published.pop(partition, None)
        self._forget(partition)
        self._note_change()
        self.index.remove(partition)

    def lead(self, partition: int, term: int) -> None:
        """Makes this node the leader of a partition."""
        self._terms[partition] = term
        self._note_change()

    def owns(self, partition: int) -> bool:
        """Whether a partition is this node's own."""
        return partition in self._owned()

    @property
    def own(self) -> dict[int, PartitionJournal]:
        """The journals of this node's own partitions."""
        return {p: journal for p, journal in self.journals.items() if self.owns(p)}

    @property
    def own_partitions(self) -> frozenset[int] | None:
        """This node's own partitions; None if all partitions here are."""
        own = frozenset(self.own)
        return None if len(own) == len(self.journals) else own

    def check_own(self, partitions: Iterable[int]) -> None:
        """Checks that partitions are this node's own, as far as it knows for sure.

        Raises:
            PartitionMoved: some are not.
            Unavailable: this node has lost the directory with the only copy of some.
        """
        others = [p for p in partitions if not self._surely_owns(p)]
        if others:
            raise self.not_own(others)

    def surely_own(self, partitions: Iterable[int]) -> frozenset[int]:
        """Those of which no other node can have commits that this one lacks."""
        return frozenset(filter(self._surely_owns, partitions))

    def readable(
        self, partitions: Iterable[int], *, after: Cursor, until: Cursor | None
    ) -> frozenset[int]:
        """Those partitions about which this node can answer.

        These are its own ones; and any replica that has the commits (after, until] where that range
        is named, since published commits never change.

        Args:
            partitions: that are asked about.
            after: up to where the asker needs nothing.
            until: a commit of each partition that is known to be committed, 0 where none is.
        """
        return frozenset(
            p
            for p in partitions
            if self._surely_owns(p)
            or (until is not None and self._has_published(p, after=after[p], until=until[p]))
        )

    def check_readable(
        self, partitions: Iterable[int], *, after: Cursor, until: Cursor | None
    ) -> None:
        """Raises an error as `check_own` where some are not `readable`."""
        asked = frozenset(partitions)
        others = asked - self.readable(asked, after=after, until=until)
        if others:
            raise self.not_own(others)

    def not_own(self, others: Iterable[int]) -> GalileoError:
        """The error for partitions that this node does not lead."""
        lost = [p for p in others if self._is_lost(p)]
        return partitions_lost(lost) if lost else partition_moved(others)

    def check_unchanged(
        self, journals: Mapping[int, PartitionJournal], partitions: Iterable[int]
    ) -> None:
        """Checks that a scan could see all commits of its partitions, when it has ended.

        Raises:
            PartitionMoved: some have left this node since `journals` was read, or a replica has
                begun anew.
        """
        now = self.journals
        left = [p for p in partitions if p in journals and now.get(p) is not journals[p]]
        if left:
            raise partition_moved(left)

    def _has_published(self, partition: int, *, after: int, until: int) -> bool:
        """Whether readers see the commits (after, until] of a replica, and it has them all."""
        journal = self.journals.get(partition)
        return (
            journal is not None
            and 0 < until <= self.published_sequence(partition)
            and journal.dropped <= after
            and self._may_follow(partition)
        )

    def _surely_owns(self, partition: int) -> bool:
        return self.owns(partition) and self._may_serve(partition)

    def journal(self, partition: int) -> PartitionJournal:
        """The journal of a partition with commits.

        Raises:
            PartitionMoved: it has left this node meanwhile.
        """
        journal = self.journals.get(partition)
        if journal is None:
            raise self._not_here(partition)
        return journal

    def forks(self, partition: int) -> Forks:
        """The forks of a partition's log, also that of a history without commits; any thread.

        A log whose leader this node does not know yet lacks the latest ones.
        """
        history = history_of(self._terms.get(partition, 0))
        journal = self.journals.get(partition)
        if journal is None:
            return Forks().after(0, history)
        last, forks = journal.last_sequence, journal.forks
        return forks.after(last, history)

    def jumps(self, partition: int) -> Forks:
        """The forks of a partition's log behind which it has frames."""
        journal = self.journals.get(partition)
        return Forks() if journal is None else journal.forks

    def check_history(self, partitions: Iterable[int], *cursors: Mapping[int, int] | None) -> None:
        """Checks that the logs have what readers have read up to their cursors.

        This is the one check for every reader. A cursor by which a scan only skips what it need not
        look at is not checked: later commits are above all that were lost.

        Raises:
            HistoryChanged: commits of a cursor were lost, the first one where there are several.
            PartitionMoved: this node has not heard yet of the history of a position.
        """
        known = {p: self.forks(p) for p in partitions}
        for cursor in cursors:
            if cursor is None:
                continue
            late = [p for p, forks in known.items() if forks.is_ahead(cursor.get(p, 0))]
            if late:
                raise partition_moved(late)
            lost = [
                LostPosition(p, cursor[p], common, self.jumps(p).following(common) - 1)
                for p, forks in known.items()
                if p in cursor and (common := forks.last_common(cursor[p])) is not None
            ]
            if lost:
                raise history_changed(self.schema.key, lost)

    def check_commits(
        self, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int64]
    ) -> None:
        """Checks that the logs have the commits that a reader names; errors as `check_history`."""
        named = dict[int, int]()
        for partition in np.unique(partitions).tolist():
            of_partition = sequences[partitions == partition]
            lost = of_partition[self.forks(partition).are_lost(of_partition)]
            named[partition] = int(min(lost, default=of_partition[0]))
        self.check_history(named, named)

    def kept(self, cursor: Cursor) -> Cursor:
        """The last commits up to a reader's cursor that are still stored, where others are lost."""
        common = {p: self.forks(p).last_common(sequence) for p, sequence in cursor.items()}
        lost = {p: last for p, last in common.items() if last is not None}
        return Cursor({**cursor, **lost}) if lost else cursor

    def sequences(self, partition: int, after: int, until: int) -> Iterator[int]:
        """The sequences of the commits (after, until] of a partition that is here."""
        ranges = self.jumps(partition).ranges(after, until)
        return chain.from_iterable(range(first, last + 1) for first, last in ranges)

    def _not_here(self, partition: int) -> GalileoError:
        if not self.owns(partition):
            return partition_moved([partition])
        return InternalError(
            f"expected partition {partition} of {self.schema.name!r} to have commits"
        )

    def own_published(self) -> PublishedCommits:
        """The published commits of own partitions; one object until these or a synopsis change."""
        # Read first: what changes meanwhile sets another one, and counts the next time.
        change, owned = self._change, self._owned()
        known = self._own_published
        if known is not None and known[0] is change and known[1] is owned:
            return known[2]
        sequences = Cursor({p: s for p, s in self._published.copy().items() if p in owned})
        clock = tuple(step for step in self.event_clock() if step.partition in owned)
        deletions = Cursor({p: last for p, last in self.deletions().items() if p in owned})
        published = PublishedCommits(sequences, clock, deletions)
        self._own_published = change, owned, published
        return published

    def published(self, partitions: Iterable[int] | None = None) -> Cursor:
        """The last commit of each partition that a scan sees: of all, or of some."""
        if partitions is None:
            return Cursor(dict(self._published))
        return Cursor({partition: self._published.get(partition, 0) for partition in partitions})

    def versions(self, partitions: Iterable[int]) -> dict[int, PartitionVersion]:
        """What readers see of some partitions; an answer that is begun later is as new or newer."""
        dropped = self.index.dropped  # Of the index: a scan may still see what no file has.
        return {
            p: PartitionVersion(self._log_epoch(p), dropped[p], self.published_sequence(p))
            for p in partitions
        }

    def event_clock(self) -> tuple[ClockStep, ...]:
        """The newest time bucket of each partition, and the commit that brought it."""
        return ()

    def deletions(self) -> Cursor:
        """The last deletion of each partition of a dataset without a key."""
        return EMPTY_CURSOR

    def dropped(self) -> Cursor:
        """The commit up to which retention has dropped each partition.

        Read after the begin of a scan, it covers all commits that the scan lacks.
        """
        return self.removed()

    def removed(self) -> Cursor:
        """The commit up to which each partition stores nothing any more."""
        return Cursor({p: journal.dropped for p, journal in self.journals.items()})

    def erased(self) -> Cursor:
        """Up to which commit of each partition removed rows may be blank."""
        return Cursor({p: journal.erased for p, journal in self.journals.items() if journal.erased})

    def lacks(self, until: Cursor, *, after: Cursor, choice: Choice = Choice.CURRENT) -> Cursor:
        """The commits up to which partitions lack some of the range (after, until] of an answer.

        Called when the answer has ended.

        Args:
            until: the end of the range.
            after: its begin.
            choice: of the versions, or of what deletions have changed.
        """
        return Cursor({p: last for p, last in self.dropped().items() if last > after[p]})

    def commit(
        self,
        commits: Mapping[int, Sequence[Commit]],
        *,
        terms: Mapping[int, int],
        executor: Executor | None = None,
    ) -> dict[int, list[Committed | GalileoError]]:
        """Commits to logs of which this node is the only member; readers see them at once.

        Blocks on the disk, so it runs in a thread. Where what is durable cannot be indexed, as for
        want of memory, its partitions stop: a later commit would be published with that one
        missing. The next start indexes it.

        Args:
            commits: by partition, all of which are here, without pending frames.
            terms: of each of these partitions.
            executor: whose threads write to several partitions at the same time.

        Returns:
            The results of `PartitionJournal.append` by partition.
        """
        with ExitStack() as stack:
            appendings = {
                partition: stack.enter_context(
                    self.journals[partition].appending(of_partition, epoch=terms[partition])
                )
                for partition, of_partition in self.refuse_stale(commits).items()
            }
            begun = time.monotonic()
            self._write_durably([a for a in appendings.values() if a.group.headers], executor)
            self.durable_s += time.monotonic() - begun
        results = {partition: appending.results for partition, appending in appendings.items()}
        # The journals have the commits from here on, so readers of a path find its rows.
        self._index(
            [
                (partition, result.sequence, commit.paths)
                for partition, of_partition in results.items()
                for commit, result in zip(commits[partition], of_partition, strict=True)
                if isinstance(result, Committed) and not result.duplicate
            ]
        )
        return results

    def refuse_stale(
        self, commits: Mapping[int, Sequence[Commit]]
    ) -> Mapping[int, Sequence[Commit]]:
        """The commits, of which those have a refusal that depend on what has changed since.

        Called by the thread that writes the partitions, so nothing is stored in between.
        """
        return commits

    # --- logs with several members -----------------------------------------------------------

    def append(
        self,
        commits: Mapping[int, Sequence[Commit]],
        *,
        terms: Mapping[int, int],
        begin: Callable[[Mapping[int, FrameGroup]], Container[int]],
        executor: Executor | None = None,
    ) -> dict[int, Appending]:
        """Makes commits of a leader durable; readers do not see them before `publish`.

        Blocks on the disk, so it runs in a thread.

        Args:
            commits: by partition, all of which are here.
            terms: of each of these partitions.
            begin: called with the new frames, which are not written yet; returns the partitions
                that this node does not lead any more, whose frames are not written.
            executor: whose threads write to several partitions at the same time.

        Returns:
            What was done in each partition. The results of a partition that is not led are errors.
        """
        with ExitStack() as stack:
            appendings = {
                partition: stack.enter_context(
                    self.journals[partition].appending(
                        of_partition, epoch=terms[partition], is_pending=True
                    )
                )
                for partition, of_partition in self.refuse_stale(commits).items()
            }
            groups = {p: one.group for p, one in appendings.items() if one.group.headers}
            refused = begin(groups) if groups else ()
            for partition in [p for p in groups if p in refused]:
                del groups[partition]
                appendings[partition].refuse(partition_moved([partition]))
            begun = time.monotonic()
            self._write_durably([appendings[partition] for partition in groups], executor)
            self.durable_s += time.monotonic() - begun
        return appendings

    def append_frames(
        self,
        parts: Mapping[int, Sequence[tuple[FrameEpochs, Buffer]]],
        *,
        executor: Executor | None = None,
    ) -> dict[int, GalileoError | None]:
        """Makes frames of leaders durable; readers do not see them before `publish`.

        Blocks on the disk, so it runs in a thread.

        Args:
            parts: by partition; frames that follow those that are there, with their epochs. Frames
                that are there already are left out.
            executor: whose threads write to several partitions at the same time.

        Returns:
            Why the frames of a partition are not durable, None where they are.
        """
        errors: dict[int, GalileoError | None] = dict.fromkeys(parts)
        with ExitStack() as stack:
            appendings = {}
            for partition, of_partition in parts.items():
                journal = self.journals[partition]
                try:
                    after, frames = journal.end_sequence, list[FollowedFrame]()
                    for epochs, data in of_partition:
                        frames += decode_frames(
                            data,
                            schema=self.schema,
                            partition=partition,
                            after=frames[-1].header.sequence if frames else after,
                            epochs=epochs,
                        )
                    if frames:
                        appending = journal.appending_frames(after, frames)
                        appendings[partition] = stack.enter_context(appending)
                except GalileoError as error:
                    errors[partition] = error
            begun = time.monotonic()
            self._write_durably(list(appendings.values()), executor)
            self.durable_s += time.monotonic() - begun
        return errors | {partition: one.error for partition, one in appendings.items()}

    def publish(self, until: Mapping[int, int]) -> None:
        """Lets readers see what is durable: up to a sequence of each partition; in a thread."""
        new = [
            (partition, frame.header.sequence, frame.paths)
            for partition, last in until.items()
            for frame in self.journals[partition].publish(last)
        ]
        self._index(new)

    def published_sequence(self, partition: int) -> int:
        """The last commit of a partition that a scan sees."""
        return self._published.get(partition, 0)

    def truncate(self, partition: int, after: int) -> None:
        """Removes frames that were not published, durably; in a thread.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        self.checkpoint()
        self.journals[partition].truncate(after)

    # --- all partitions ----------------------------------------------------------------------

    def may_drop(self, partition: int, last: int, until: int) -> bool:
        """Whether files that end with a commit may be dropped, where all up to `until` may go."""
        return True

    def drop(self, partition: int, until: int) -> Truncation:
        """Drops the oldest files of a partition and forgets what they held, in a thread.

        The journal records the new log start before the graph removes the commits, so a commit that
        is missing in the graph is always before the log start. Errors as `PartitionJournal.drop`.
        """
        journal = self.journals[partition]
        before = journal.dropped
        try:
            return journal.drop(until, may_drop=lambda last: self.may_drop(partition, last, until))
        finally:
            if journal.dropped > before:
                self.index.drop_before(partition, journal.dropped + 1)
                self.maintain()

    def removed_rows(self, partition: int, until: int) -> RemovedRows:
        """The rows that commits up to one have removed; in a thread."""
        raise NotImplementedError

    def erase(
        self, partition: int, until: int, pace: RateLimit, *, share: float = 0.0
    ) -> ErasedRows:
        """Leaves rows blank that commits up to one have removed; in a thread.

        Arguments and errors as of `PartitionJournal.erase`.
        """
        removed = self.removed_rows(partition, min(until, self.published_sequence(partition)))
        if not len(removed):
            return ErasedRows()
        return self.journal(partition).erase(removed, pace, share=share)

    def checkpoint(self) -> None:
        """Empties the commit log of the node, in a thread.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        if self._log is not None and not self._log.checkpoint():
            raise PartitionReadOnly(
                "the commit log cannot be emptied. Check the disk, then restart the node",
                after_s=1.0,
            )

    def _write_durably(self, appendings: Sequence[Appending], executor: Executor | None) -> None:
        if self._log is None:
            write_directly(appendings, executor=executor)
        else:
            self._log.write(appendings, executor=executor)

    def maintain(self) -> None:
        """Merges runs of the index, and empties the commit log, if necessary, in a thread.

        Reads and writes go on.
        """
        if self._log is not None and self._log.is_full:
            self._log.checkpoint()
        self._runs_maintained = self.index.runs
        if self.index.maintain():
            self._runs_maintained = self.index.runs

    @property
    def wants_maintenance(self) -> bool:
        """Whether runs have come since `maintain` last looked, or the commit log is full."""
        is_full = self._log is not None and self._log.is_full
        return is_full or self.index.runs != self._runs_maintained

    def _index(self, new: Sequence[tuple[int, int, pa.RecordBatch]]) -> None:
        """Makes new commits visible: adds them to the index, all at once, and publishes them.

        Args:
            new: partition, sequence and paths of each; those of one partition are together.
        """
        if not new:
            return
        partitions, sequences, batches = zip(*new, strict=True)
        try:
            counts = np.array([batch.num_rows for batch in batches])
            commits = Commits(np.array(partitions, dtype=np.int32), np.array(sequences))
            paths = pa.concat_batches([widen(batch, self._indexed_schema) for batch in batches])
            # Before they are published: a scan reads what is published, and then the index. So it
            # sees all paths up to the sequence that it reports.
            self.index.insert_many(paths, commits, counts)
            # The commits of a partition are together.
            first = np.flatnonzero(differs(commits.partition))
            starts = np.concatenate([[0], np.cumsum(counts)])
            stops = [*first[1:].tolist(), len(commits)]
            for start, stop in zip(first.tolist(), stops, strict=True):
                of_partition = paths.slice(starts[start], starts[stop] - starts[start])
                replayed = Replayed(commits.sequence[start:stop], counts[start:stop], of_partition)
                self._note(partitions[start], replayed)
        except BaseException as error:
            # A later commit would be published without this one. The next start indexes it.
            for partition in set(partitions):
                reason = f"a commit that was stored could not be indexed: {error!r}"
                self.journals[partition].stop(reason)
            raise

    @property
    def _indexed_schema(self) -> pa.Schema:
        """Of the paths that the index takes."""
        return self.schema.path_schema

    def _note(self, partition: int, commits: Replayed) -> None:
        """Publishes commits behind those that are published; the index has them."""
        self._published[partition] = commits.last_sequence
        self._note_change()

    def _note_change(self) -> None:
        """Has `own_published` look again, and says so."""
        self._change = object()
        self._on_change(self.schema.key)

    def _forget(self, partition: int) -> None:
        """Removes what else is kept of a partition that is detached."""

    def _log_epoch(self, partition: int) -> int:
        """A number that changes where sequences might be given to other commits."""
        return self._terms.get(partition, 0)

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()


def partitions_lost(partitions: Iterable[int]) -> Unavailable:
    """The error for partitions whose only copy was in a directory that this node has lost."""
    lost = sorted(partitions)
    return Unavailable(
        f"no node has partitions {listed(lost)}: this node runs with another directory than the "
        "one with their only copy; put that back, restore a backup, or accept the loss with "
        "galileo node forget",
        after_s=1.0,
        partitions=lost[:NAMED_MAX],
    )


def partition_moved(partitions: Iterable[int]) -> PartitionMoved:
    """The error for partitions that are not this node's own."""
    others = sorted(partitions)
    return PartitionMoved(
        f"expected partitions of this node, got {listed(others, text_of=partition_name)}; they are "
        "at another node now, or come here in a moment; try again",
        after_s=0.1,
        partitions=others[:NAMED_MAX],
    )
