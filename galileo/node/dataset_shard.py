"""The shard of a dataset: its index is the metadata graph, and each partition has a synopsis.

Features are added in the order graph, journals, schema (`Catalog.adopt`). The graph and synopses
take paths of earlier schemas and never meet paths with features that they lack, since a journal
returns those only when it knows them, and commits have those of the schema.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import DataExpired
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.synopsis import Synopsis
from galileo.graph.versions import Choice
from galileo.hashing import text64
from galileo.model.deletions import Stretches, deletes, observed
from galileo.model.schema import Schema, widen
from galileo.model.times import column_micros
from galileo.model.windows import ClockStep
from galileo.node.keyed_index import KeyedIndex
from galileo.node.shard import Shard
from galileo.query import parse
from galileo.storage.compaction import RateLimit
from galileo.storage.erasing import NOTHING_REMOVED, ErasedRows, RemovedRows
from galileo.storage.journal import PartitionJournal
from galileo.storage.recovery import Replayed
from galileo.storage.retention import Truncation

UNSUMMARISED_PATHS_MAX = 65_536
"""Paths of a partition that wait for its synopsis."""
NARROWED_PATHS_MAX = 262_144
"""Up to so many paths of a partition its synopsis is made anew when commits were dropped."""


class DatasetShard(Shard):
    """The journals, the metadata graph and the synopses of one dataset on this node.

    Adding many commits to a synopsis at once costs little more than adding one, so commits
    wait until it is read, or until there are many; a synopsis may be late.

    Args:
        schema: of the dataset.
        index: of a keyed dataset; None: the metadata graph alone.
        options: as of `Shard`.
    """

    schema: Schema
    index: MetadataGraph | KeyedIndex

    def __init__(self, schema: Schema, *, index: KeyedIndex | None = None, **options: Any) -> None:
        super().__init__(schema, index or MetadataGraph(schema), **options)
        self._newest: dict[int, ClockStep] = {}
        self._deletions: dict[int, list[int]] = {}
        self._synopses: dict[int, Synopsis] = {}
        self._unsummarised: dict[int, list[Replayed]] = {}
        self._unsummarised_paths: dict[int, int] = {}
        self._unsummarised_cuts: dict[int, int] = {}
        self._remade: dict[int, int] = {}
        self._summarising = threading.Lock()

    @property
    def graph(self) -> MetadataGraph:
        """The metadata graph of the index."""
        return self.index.graph if isinstance(self.index, KeyedIndex) else self.index

    def prepare_features(self, schema: Schema) -> None:
        """Has the graph take paths with the added features of a schema, in a thread.

        The journals and then `schema` get them next.
        """
        self.graph.add_features(schema)

    def add_features(self, schema: Schema) -> None:
        """Answers with the added features of a schema from now on; the journals know them."""
        self.schema = schema
        self._note_change()  # Peers get the synopses with the new features.

    def lead(self, partition: int, term: int) -> None:
        """See `Shard.lead`; the synopses of the partition get another epoch."""
        with self._summarising:
            super().lead(partition, term)
            self._remade.pop(partition, None)
            synopsis = self._synopses.get(partition)
            if synopsis is not None:
                synopsis.restart(self._synopsis_epoch(partition))
        self._note_change()

    def event_clock(self) -> tuple[ClockStep, ...]:
        """See `Shard.event_clock`; dropped commits count until the next start."""
        return tuple(self._newest.copy().values())

    def deletions(self) -> Cursor:
        """See `Shard.deletions`."""
        return Cursor({partition: each[-1] for partition, each in self._deletions.copy().items()})

    def last_deletion(self, partition: int, until: int) -> int:
        """The last deletion of a partition up to a commit; 0 without any."""
        deletions = self._deletions.get(partition, [])
        place = bisect_right(deletions, until)
        return deletions[place - 1] if place else 0

    def erased_past(self, at: Cursor) -> Cursor:
        """The partitions in which rows that counted at a cursor may be blank."""
        return Cursor({p: last for p, last in self.erased().items() if 0 < at[p] < last})

    def lacks(self, until: Cursor, *, after: Cursor, choice: Choice = Choice.CURRENT) -> Cursor:
        """As of `Shard`; of changes, what erased deletions have changed."""
        if choice in (Choice.CURRENT, Choice.STORED):
            dropped = super().lacks(until, after=after)
            return dropped.join(self.erased_past(until)) if choice is Choice.STORED else dropped
        return Cursor({p: last for p, last in self.erased().items() if until[p] < last})

    def removed_rows(self, partition: int, until: int) -> RemovedRows:
        """See `Shard.removed_rows`: what deletions have removed; reads them."""
        journal, parts, by = self.journal(partition), list[Stretches](), list[int]()
        for sequence in self._deletions.get(partition, []):
            if journal.dropped < sequence <= until:
                with contextlib.suppress(DataExpired):
                    parts.append(Stretches.from_paths(journal.paths(sequence)))
                    by.append(sequence)
        if not parts:
            return NOTHING_REMOVED
        return RemovedRows.of(
            by[-1],
            sequence=np.concatenate([part.sequence for part in parts]),
            row=np.concatenate([part.row for part in parts]),
            rows=np.concatenate([part.rows for part in parts]),
            by=np.repeat(by, [len(part) for part in parts]),
        )

    def erase(
        self, partition: int, until: int, pace: RateLimit, *, share: float = 0.0
    ) -> ErasedRows:
        """See `Shard.erase`; the graph leaves the rows out, and frees the memory of their paths."""
        try:
            return super().erase(partition, until, pace, share=share)
        finally:
            self._leave_out(partition)
            self.maintain()

    def attach(self, partition: int, journal: PartitionJournal, *, term: int = 0) -> None:
        """See `Shard.attach`."""
        super().attach(partition, journal, term=term)
        self._leave_out(partition)

    def _leave_out(self, partition: int) -> None:
        """Has the graph leave out what is erased, also of commits that come from another node."""
        journal = self.journals.get(partition)
        if journal is None or self.schema.is_keyed:
            return
        if journal.erased > self.graph.erased[partition]:
            self.graph.erase(partition, journal.erased)

    def synopses(self) -> dict[int, Synopsis]:
        """The synopsis of each own partition, with all commits that are published now."""
        with self._summarising:
            for partition in filter(self.owns, {*self._unsummarised, *self.journals}):
                self._summarise(partition)
            return {p: synopsis for p, synopsis in self._synopses.items() if self.owns(p)}

    def drop(self, partition: int, until: int) -> Truncation:
        """See `Shard.drop`."""
        journal = self.journals[partition]
        before = journal.dropped
        try:
            return super().drop(partition, until)
        finally:
            if journal.dropped > before:
                self._narrow(partition)

    @property
    def _indexed_schema(self) -> pa.Schema:
        return self.graph.schema.path_schema

    def _note(self, partition: int, commits: Replayed) -> None:
        """Keeps commits for the synopsis, which deletions do not narrow, and publishes them."""
        cuts = 0
        if (kept := observed(commits.paths)) is not None:
            if (mask := deletes(commits.paths)) is not None:
                cuts = int(np.count_nonzero(mask))
                of_path = np.repeat(commits.sequences, commits.counts)
                self._deletions.setdefault(partition, []).extend(np.unique(of_path[mask]).tolist())
            commits = replace(commits, paths=commits.paths.filter(pa.array(kept)))
        self._leave_out(partition)
        with self._summarising:
            self._unsummarised.setdefault(partition, []).append(commits)
            waiting = self._unsummarised_paths.get(partition, 0) + commits.paths.num_rows
            self._unsummarised_paths[partition] = waiting
            self._unsummarised_cuts[partition] = self._unsummarised_cuts.get(partition, 0) + cuts
            if waiting >= UNSUMMARISED_PATHS_MAX:
                self._summarise(partition)
        if commits.paths.num_rows:  # Seals have none.
            buckets = column_micros(commits.paths.column("bucket"))
            self._wind(ClockStep(partition, commits.last_sequence, int(buckets.max())))
        super()._note(partition, commits)

    def _forget(self, partition: int) -> None:
        self._newest.pop(partition, None)
        self._deletions.pop(partition, None)
        with self._summarising:
            self._synopses.pop(partition, None)
            self._forget_unsummarised(partition)

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
            paths = pa.concat_batches(batches).select(schema.graph_schema.names)
            cuts = self._unsummarised_cuts.get(partition, 0)
            synopsis.add(paths, waiting[-1].last_sequence, cuts=cuts)
        # Only now: had that failed, a later commit would vouch for those that it lacks.
        self._forget_unsummarised(partition)

    def _forget_unsummarised(self, partition: int) -> None:
        for table in (self._unsummarised, self._unsummarised_paths, self._unsummarised_cuts):
            table.pop(partition, None)

    def _synopsis(self, partition: int, since: int) -> Synopsis:
        epoch = self._synopsis_epoch(partition)
        return Synopsis(self.graph.schema, partition=partition, epoch=epoch, since=since)

    def _synopsis_epoch(self, partition: int) -> int:
        """A leader that restarts gets another term."""
        remade, term = self._remade.get(partition, 0), self._terms.get(partition, 0)
        return text64("synopsis", term, remade)

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
                left = labels.select(schema.graph_schema.names).combine_chunks()
                nothing = pa.RecordBatch.from_pylist([], schema=schema.graph_schema)
                fresh.add(next(iter(left.to_batches()), nothing), until)
            self._synopses[partition] = fresh
        self._note_change()
