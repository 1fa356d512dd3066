"""What one node keeps of one dataset, and the one way a commit takes into it.

A commit is appended to its partition's journal and made durable; then its paths enter the
graph and the synopsis; then its sequence is published. In that order, so that whatever a
scan can see has a sequence at or below the one it reports, and what it cannot see a higher
one: the reason why a continuous query cannot miss.

Features are added in the order graph, journals, schema (`Catalog.adopt`). The graph and synopses
take paths of earlier schemas and never meet paths with features that they lack, since a journal
returns those only when it knows them, and commits have those of the schema.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import GalileoError, InternalError, PartitionMoved, PartitionReadOnly
from galileo.graph.columns import Commits
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.synopsis import Synopsis
from galileo.model.schema import Schema, widen
from galileo.model.sort_keys import differs
from galileo.model.times import column_micros
from galileo.model.versions import PartitionVersion
from galileo.model.windows import ClockStep
from galileo.query import parse
from galileo.storage.commit_log import CommitLog, write_directly
from galileo.storage.commits import FrameGroup
from galileo.storage.frame import Buffer
from galileo.storage.journal import (
    Appending,
    Commit,
    Committed,
    Epochs,
    FollowedFrame,
    PartitionJournal,
    decode_frames,
)
from galileo.storage.recovery import Replayed
from galileo.storage.retention import Truncation

NARROWED_PATHS_MAX = 262_144
"""Up to so many paths of a partition its synopsis is made anew when commits were dropped."""
_REMADE = 1 << 40
"""What making a synopsis anew adds to its epoch; far above all epochs of a store."""
_MOVED = 1 << 52
"""What a move of the partition adds: another node's epochs begin elsewhere."""
_REMADE_IN_TERM = 1 << 16
"""Synopses that a leader can make anew in one term."""
ALL_PARTITIONS = range(1 << 31)


@dataclass(frozen=True, slots=True)
class PublishedCommits:
    """The published commits of a shard's own partitions.

    Attributes:
        sequences: the last commit of each partition.
        clock: the newest time bucket of each partition and the commit that brought it, for at
            least the commits of `sequences`.
    """

    sequences: Cursor
    clock: tuple[ClockStep, ...]


class Shard:
    """The journals, the metadata graph and the synopses of one dataset on this node.

    During a move a partition may be here without being this node's own; methods about own
    partitions ignore it.

    Adding many commits to a synopsis at once costs little more than adding one, so commits
    wait until it is read, or until there are many; a synopsis may be late.

    Attributes:
        durable_s: how long writes have waited for the disk, in all.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        epoch: int,
        owned: Callable[[], Container[int]] = lambda: ALL_PARTITIONS,
        unsummarised_paths_max: int = 65_536,
        log: CommitLog | None = None,
        is_replicated: bool = False,
        may_serve: Callable[[int], bool] = lambda _: True,
        may_follow: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.schema = schema
        self._unsummarised_paths_max = unsummarised_paths_max
        self._owned = owned
        self._is_replicated = is_replicated
        self._may_serve = may_serve
        self._may_follow = may_follow
        self._log = log
        self.graph = MetadataGraph(schema)
        self.journals: dict[int, PartitionJournal] = {}
        self._epoch = epoch
        self._published: dict[int, int] = {}
        self._change = object()
        self._own_published: tuple[object, object, PublishedCommits] | None = None
        self._newest: dict[int, ClockStep] = {}
        self._synopses: dict[int, Synopsis] = {}
        self._unsummarised: dict[int, list[Replayed]] = {}
        self._unsummarised_paths: dict[int, int] = {}
        self._remade: dict[int, int] = {}
        self._moves: dict[int, int] = {}
        self._summarising = threading.Lock()
        self._attaching = threading.Lock()
        self._runs_maintained = 0
        self.durable_s = 0.0

    def prepare_features(self, schema: Schema) -> None:
        """Has the graph take paths with the added features of a schema, in a thread.

        The journals and then `schema` get them next.
        """
        self.graph.add_features(schema)

    def add_features(self, schema: Schema) -> None:
        """Answers with the added features of a schema from now on; the journals know them."""
        self.schema = schema
        self._change = object()  # Peers get the synopses with the new features.

    def replay(self, partition: int, replayed: Replayed) -> None:
        """Indexes commits that the journal already has; at start, before `attach`."""
        sequences = np.arange(replayed.first_sequence, replayed.last_sequence + 1)
        self.graph.insert_many(replayed.paths, Commits.of(partition, sequences), replayed.counts)
        self._note(partition, replayed, column_micros(replayed.paths.column("bucket")))

    def attach(self, partition: int, journal: PartitionJournal, *, moves: int = 0) -> None:
        """Begins to serve a partition; `moves` is the number of its last move."""
        self._moves[partition] = max(moves, self._moves.get(partition, 0))
        with self._attaching:  # A new dictionary, since other threads may iterate over this one.
            self.journals = {**self.journals, partition: journal}
        if journal.last_sequence:  # of which none was replayed where retention dropped them all
            self._published[partition] = journal.last_sequence
        self._change = object()

    def detach(self, partition: int) -> None:
        """Removes a partition, in a thread; the caller closes its journal."""
        with self._attaching:
            self.journals = {p: journal for p, journal in self.journals.items() if p != partition}
        self._published.pop(partition, None)
        self._newest.pop(partition, None)
        with self._summarising:
            for table in (self._synopses, self._unsummarised, self._unsummarised_paths):
                table.pop(partition, None)
        self._change = object()
        self.graph.remove(partition)

    def lead(self, partition: int, term: int) -> None:
        """Makes this node the leader of a replicated partition; its synopses get another epoch."""
        with self._summarising:
            self._moves[partition] = term
            self._remade.pop(partition, None)
            synopsis = self._synopses.get(partition)
            if synopsis is not None:
                synopsis.restart(self._synopsis_epoch(partition))
        self._change = object()

    def owns(self, partition: int) -> bool:
        """Whether a partition is this node's own."""
        return partition in self._owned()

    @property
    def own(self) -> dict[int, PartitionJournal]:
        """The journals of this node's own partitions."""
        return {p: journal for p, journal in self.journals.items() if self.owns(p)}

    @property
    def maintained(self) -> dict[int, PartitionJournal]:
        """The journals whose files this node merges: its own, or all replicas."""
        return self.journals if self._is_replicated else self.own

    @property
    def own_partitions(self) -> frozenset[int] | None:
        """This node's own partitions; None if all partitions here are."""
        own = frozenset(self.own)
        return None if len(own) == len(self.journals) else own

    def check_own(self, partitions: Iterable[int]) -> None:
        """Raises PartitionMoved where some are not this node's own, as far as it knows for sure."""
        others = [p for p in partitions if not self._surely_owns(p)]
        if others:
            raise partition_moved(others)

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
        """Raises PartitionMoved where some are not `readable`."""
        asked = frozenset(partitions)
        others = asked - self.readable(asked, after=after, until=until)
        if others:
            raise partition_moved(others)

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
        published = PublishedCommits(sequences, clock)
        self._own_published = change, owned, published
        return published

    def published(self, partitions: Iterable[int] | None = None) -> Cursor:
        """The last commit of each partition that a scan sees: of all, or of some."""
        if partitions is None:
            return Cursor(dict(self._published))
        return Cursor({partition: self._published.get(partition, 0) for partition in partitions})

    def versions(self, partitions: Iterable[int]) -> dict[int, PartitionVersion]:
        """What readers see of some partitions; an answer that is begun later is as new or newer."""
        dropped = self.graph.dropped  # The graph's, since a scan may still see what a file has not.
        return {
            p: PartitionVersion(self._log_epoch(p), dropped[p], self.published_sequence(p))
            for p in partitions
        }

    def event_clock(self) -> tuple[ClockStep, ...]:
        """The newest time bucket of each partition, and the commit that brought it.

        Dropped commits count until the next start.
        """
        return tuple(self._newest.copy().values())

    def dropped(self) -> Cursor:
        """The commit up to which retention has dropped each partition.

        Read after the begin of a scan, it covers all commits that the scan lacks.
        """
        return Cursor({p: journal.dropped for p, journal in self.journals.items()})

    def synopses(self) -> dict[int, Synopsis]:
        """The synopsis of each own partition, with all commits that are published now."""
        with self._summarising:
            for partition in filter(self.owns, {*self._unsummarised, *self.journals}):
                self._summarise(partition)
            return {p: synopsis for p, synopsis in self._synopses.items() if self.owns(p)}

    def write(
        self, commits: Mapping[int, Sequence[Commit]], *, executor: Executor | None = None
    ) -> dict[int, list[Committed | GalileoError]]:
        """The one write path; blocks on the disk, so it runs in a thread.

        Where what is durable cannot be indexed, as for want of memory, its partitions stop: a later
        commit would be published with that one missing. The next start indexes it.

        Args:
            commits: by partition.
            executor: whose threads write to several partitions at the same time.

        Returns:
            The results of `PartitionJournal.append` by partition; those of a partition that is not
            here are errors.
        """
        journals, known = self.journals, commits.keys() & self.journals.keys()
        with ExitStack() as stack:
            appendings = {
                partition: stack.enter_context(journals[partition].appending(commits[partition]))
                for partition in commits
                if partition in known
            }
            begun = time.monotonic()
            self._write_durably([a for a in appendings.values() if a.group.headers], executor)
            self.durable_s += time.monotonic() - begun
        results = {partition: appending.results for partition, appending in appendings.items()}
        self._index(
            [
                (partition, result.sequence, commit.paths)
                for partition, of_partition in results.items()
                for commit, result in zip(commits[partition], of_partition, strict=True)
                if isinstance(result, Committed) and not result.duplicate
            ]
        )
        for partition in commits.keys() - known:
            error = self._not_here(partition)
            results[partition] = [error for _ in commits[partition]]
        return results

    # --- replicated partitions ---------------------------------------------------------------

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
                        of_partition, epoch=terms[partition], is_replicated=True
                    )
                )
                for partition, of_partition in commits.items()
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
        parts: Mapping[int, Sequence[tuple[Epochs, Buffer]]],
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
                            after=after + len(frames),
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
        if self._log is not None and not self._log.checkpoint():
            raise PartitionReadOnly(
                f"frames of partition {partition} cannot be removed: the commit log still has some "
                "of them. Check the disk, then restart the node",
                after_s=1.0,
            )
        self.journals[partition].truncate(after)

    # --- all partitions ----------------------------------------------------------------------

    def drop(self, partition: int, until: int) -> Truncation:
        """Drops the oldest files of a partition and forgets what they held, in a thread.

        The journal records the new log start before the graph removes the commits, so a commit that
        is missing in the graph is always before the log start. Errors as `PartitionJournal.drop`.
        """
        journal = self.journals[partition]
        before = journal.dropped
        try:
            return journal.drop(until)
        finally:
            if journal.dropped > before:
                self.graph.drop_before(partition, journal.dropped + 1)
                self.maintain()
                self._narrow(partition)

    def _write_durably(self, appendings: Sequence[Appending], executor: Executor | None) -> None:
        if self._log is None:
            write_directly(appendings, executor=executor)
        else:
            self._log.write(appendings, executor=executor)

    def maintain(self) -> None:
        """Merges runs of the graph, and empties the commit log, if necessary, in a thread.

        Reads and writes go on.
        """
        if self._log is not None and self._log.is_full:
            self._log.checkpoint()
        self._runs_maintained = self.graph.runs
        if self.graph.maintain():
            self._runs_maintained = self.graph.runs

    @property
    def wants_maintenance(self) -> bool:
        """Whether runs have come since `maintain` last looked, or the commit log is full."""
        is_full = self._log is not None and self._log.is_full
        return is_full or self.graph.runs != self._runs_maintained

    def _index(self, new: Sequence[tuple[int, int, pa.RecordBatch]]) -> None:
        """Makes new commits visible: adds them to the graph, all at once, and publishes them.

        Args:
            new: partition, sequence and paths of each; those of one partition are together.
        """
        if not new:
            return
        partitions, sequences, batches = zip(*new, strict=True)
        try:
            counts = np.array([batch.num_rows for batch in batches])
            places = np.array(partitions, dtype=np.int32)
            path_schema = self.graph.schema.path_schema
            paths = pa.concat_batches([widen(batch, path_schema) for batch in batches])
            self.graph.insert_many(paths, Commits(places, np.array(sequences)), counts)
            first = np.flatnonzero(differs(places))  # The commits of a partition are together.
            starts, buckets = np.concatenate([[0], np.cumsum(counts)]), paths.column("bucket")
            stops, micros = [*first[1:].tolist(), len(places)], column_micros(buckets)
            for start, stop in zip(first.tolist(), stops, strict=True):
                of_partition = paths.slice(starts[start], starts[stop] - starts[start])
                replayed = Replayed(sequences[start], counts[start:stop], of_partition)
                self._note(partitions[start], replayed, micros[starts[start] : starts[stop]])
        except BaseException as error:
            for partition in set(partitions):
                reason = f"a commit that was stored could not be indexed: {error!r}"
                self.journals[partition].stop(reason)
            raise

    def _note(self, partition: int, commits: Replayed, buckets: npt.NDArray[np.int64]) -> None:
        """Keeps commits for the synopsis, and publishes them.

        Args:
            partition: of the commits.
            commits: behind those that are published.
            buckets: the start of the time bucket of each of their paths; seals have none.
        """
        with self._summarising:
            self._unsummarised.setdefault(partition, []).append(commits)
            waiting = self._unsummarised_paths.get(partition, 0) + commits.paths.num_rows
            self._unsummarised_paths[partition] = waiting
            if waiting >= self._unsummarised_paths_max:
                self._summarise(partition)
        if len(buckets):
            self._wind(ClockStep(partition, commits.last_sequence, int(buckets.max())))
        self._published[partition] = commits.last_sequence
        self._change = object()

    def _wind(self, step: ClockStep) -> None:
        """Winds the event clock: before the commits are published, lest a reader be ahead of it."""
        before = self._newest.get(step.partition)
        if before is None or step.bucket_us > before.bucket_us:
            self._newest[step.partition] = step

    def _summarise(self, partition: int) -> None:
        """Gives the synopsis the commits that wait, as one that ends with the last of them.

        Its entries then say "changed with the last one", and a receiver that knows less gets
        them all. The caller holds the lock.
        """
        waiting = self._unsummarised.get(partition, [])
        synopsis = self._synopses.get(partition)
        if synopsis is None:
            journal = self.journals.get(partition)
            if journal is None and not waiting:
                return  # It has left this node meanwhile.
            since = waiting[0].first_sequence - 1 if journal is None or waiting else journal.dropped
            synopsis = self._synopses[partition] = self._synopsis(partition, since)
        schema = self.graph.schema
        if synopsis.schema is not schema:
            self._remade[partition] = self._remade.get(partition, 0) + 1
            epoch = self._synopsis_epoch(partition)
            synopsis = self._synopses[partition] = synopsis.with_features(schema, epoch=epoch)
        if waiting:
            batches = [widen(commits.paths, schema.path_schema) for commits in waiting]
            paths = pa.concat_batches(batches)
            synopsis.add(paths, waiting[-1].last_sequence)
        # Only now: had that failed, a later commit would vouch for those that it lacks.
        self._unsummarised.pop(partition, None)
        self._unsummarised_paths.pop(partition, None)

    def _synopsis(self, partition: int, since: int) -> Synopsis:
        epoch = self._synopsis_epoch(partition)
        return Synopsis(self.graph.schema, partition=partition, epoch=epoch, since=since)

    def _log_epoch(self, partition: int) -> int:
        """A number that changes where sequences might be given to other commits."""
        moves = self._moves.get(partition, 0)
        return moves if self._is_replicated else self._epoch + _MOVED * moves

    def _synopsis_epoch(self, partition: int) -> int:
        remade, moves = self._remade.get(partition, 0), self._moves.get(partition, 0)
        if self._is_replicated:  # It is a term, and a leader that restarts gets another one.
            return moves * _REMADE_IN_TERM + remade % _REMADE_IN_TERM
        return self._epoch + _REMADE * remade + _MOVED * moves

    def _narrow(self, partition: int) -> None:
        """Makes a partition's synopsis of what is left, where that is cheap; else it stays wide."""
        journal = self.journals[partition]
        if journal.paths_total > NARROWED_PATHS_MAX:
            return
        with self._summarising:
            self._summarise(partition)
            until, schema = self._synopses[partition].version.sequence, self.graph.schema
            labels = self.graph.scan(
                parse("", schema),
                until=Cursor({partition: until}),
                partitions=frozenset([partition]),
            )
            self._remade[partition] = self._remade.get(partition, 0) + 1
            fresh = self._synopsis(partition, journal.dropped)
            if until:
                left = labels.select(schema.path_schema.names).combine_chunks()
                nothing = pa.RecordBatch.from_pylist([], schema=schema.path_schema)
                fresh.add(next(iter(left.to_batches()), nothing), until)
            self._synopses[partition] = fresh
        self._change = object()

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()


def partition_moved(partitions: Iterable[int]) -> PartitionMoved:
    """The error for partitions that are not this node's own."""
    return PartitionMoved(
        f"expected partitions of this node, got {sorted(partitions)}; they are at another node "
        "now, or come here in a moment; try again",
        after_s=0.1,
        partitions=sorted(partitions),
    )
