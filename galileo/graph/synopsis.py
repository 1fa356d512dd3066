"""The owner's side of the feature graph: one synopsis per partition, and its deltas.

A delta has the entries that changed since the version that its receiver acknowledged. Its values
are absolute, so a delta may be lost, repeated or late: the receiver applies only what continues its
version (`SynopsisState.apply`), and acknowledges that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError, InternalError
from galileo.graph.columns import columns_from_batch
from galileo.graph.synopsis_entries import Entries, bound_names, grids
from galileo.model.schema import Feature, Schema

ENTRIES_MAX = 4096
"""Entries of one synopsis; above it the grid becomes coarser by a step."""


@dataclass(frozen=True, slots=True)
class SynopsisVersion:
    """The version of a synopsis.

    Attributes:
        epoch: of the owner; another number after each restart or move.
        sequence: all commits of the partition up to here are included.
    """

    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True, eq=False)
class SynopsisState:
    """A synopsis at one moment, at its owner or at a receiver.

    Attributes:
        version: what it includes.
        since: commits up to here are not included: retention had dropped them.
        cuts: stretches of rows that deletions have removed since; each one may cut a path in two.
        step: index of its grid in `grids(schema)`.
        entries: its content.
    """

    version: SynopsisVersion
    step: int
    entries: Entries
    since: int = 0
    cuts: int = 0

    def with_features(self, features: Sequence[Feature]) -> SynopsisState:
        """The same state with further features, in which every path has null."""
        return replace(self, entries=self.entries.with_features(features)) if features else self

    def apply(self, delta: SynopsisDelta) -> SynopsisState:
        """The state after a delta, or this one if the delta does not continue it."""
        mine, theirs = self.version, delta.state.version
        if theirs.sequence < mine.sequence or delta.base > mine.sequence:
            return self
        if theirs.epoch != mine.epoch:
            return delta.state if delta.base == 0 else self
        if delta.state.step != self.step:
            return delta.state
        entries = self.entries.update(delta.state.entries)
        return replace(delta.state, entries=entries)


@dataclass(frozen=True, slots=True, eq=False)
class SynopsisDelta:
    """The changes of a synopsis.

    Attributes:
        dataset: its name.
        partition: of the synopsis.
        base: commit sequence after which the changes are; 0 for a full copy.
        state: of the owner, its entries reduced to the changed ones. A coarser grid changes all
            entries, so a delta across it has them all.
    """

    dataset: str
    partition: int
    base: int
    state: SynopsisState

    def to_bytes(self, schema: Schema) -> bytes:
        """An Arrow IPC stream."""
        entries = self.state.entries
        columns = [entries.key, entries.changed, *entries.bounds]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column) for column in columns], names=_names(schema)
        ).replace_schema_metadata(self._stamp())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(schema: Schema, raw: bytes) -> SynopsisDelta:
        """The inverse of `to_bytes`.

        Args:
            schema: of the dataset; features that the sender did not know are null in its entries.
            raw: the bytes.

        Raises:
            InputError: the bytes are invalid, of another dataset, or have features that it lacks.
        """
        try:
            with pa.ipc.open_stream(raw) as reader:
                batch = reader.read_next_batch()
            delta = _read(batch)
        except (pa.ArrowInvalid, KeyError, ValueError, StopIteration) as error:
            raise InputError(
                f"expected a synopsis of dataset {schema.name!r}: {error}",
                expected="synopsis",
                dataset=schema.name,
            ) from error
        known = (schema.narrowed(added) for added in range(schema.added, -1, -1))
        sent = next((one for one in known if batch.schema.names == _names(one)), None)
        if delta.dataset != schema.key or sent is None:
            raise InputError(
                f"expected a synopsis of dataset {schema.name!r} with columns {_names(schema)}, "
                f"got one of {delta.dataset!r} with {batch.schema.names}",
                expected="same_dataset",
                dataset=delta.dataset,
            )
        return replace(delta, state=delta.state.with_features(schema.indexed[len(sent.indexed) :]))

    def _stamp(self) -> dict[str, str]:
        version = self.state.version
        numbers = {"partition": self.partition, "base": self.base, "step": self.state.step}
        numbers |= {"since": self.state.since, "cuts": self.state.cuts}
        numbers |= {"epoch": version.epoch, "sequence": version.sequence}
        return {"dataset": self.dataset} | {name: str(n) for name, n in numbers.items()}


def _names(schema: Schema) -> list[str]:
    return ["key", "changed", *bound_names(schema)]


def _read(batch: pa.RecordBatch) -> SynopsisDelta:
    stamp: dict[bytes, bytes] = batch.schema.metadata or {}
    key, changed, *bounds = [np.asarray(column) for column in batch.columns]
    return SynopsisDelta(
        stamp[b"dataset"].decode(),
        int(stamp[b"partition"]),
        int(stamp[b"base"]),
        SynopsisState(
            SynopsisVersion(int(stamp[b"epoch"]), int(stamp[b"sequence"])),
            int(stamp[b"step"]),
            Entries(key, changed, tuple(bounds)),
            int(stamp[b"since"]),
            int(stamp[b"cuts"]),
        ),
    )


class Synopsis:
    """The low-resolution contents of one partition of one dataset; kept by its owner.

    Only the one writer of the partition may call `add`; the rest is thread-safe.

    Args:
        schema: of the dataset.
        partition: of the commits.
        epoch: a new number after each restart or move of the partition and each rebuild, so that
            receivers of an earlier one get a full copy.
        since: commits up to here will not be included.
        entries_max: above it the grid becomes coarser.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        partition: int,
        epoch: int,
        since: int = 0,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.schema = schema
        self.partition = partition
        self._entries_max = entries_max
        self._grids = grids(schema)
        self._state = SynopsisState(SynopsisVersion(epoch, 0), 0, Entries.empty(schema), since)

    @property
    def version(self) -> SynopsisVersion:
        """The present version; a receiver that has acknowledged it needs no delta."""
        return self._state.version

    def restart(self, epoch: int) -> None:
        """Begins another epoch, in which receivers get a full copy."""
        version = SynopsisVersion(epoch, self._state.version.sequence)
        self._state = replace(self._state, version=version)

    def with_features(self, schema: Schema, *, epoch: int) -> Synopsis:
        """The synopsis of a dataset to which features were added, in another epoch."""
        other = Synopsis(
            schema, partition=self.partition, epoch=epoch, entries_max=self._entries_max
        )
        other._state = self._state.with_features(schema.indexed[len(self.schema.indexed) :])
        other.restart(epoch)
        return other

    def add(self, batch: pa.RecordBatch, sequence: int, *, cuts: int = 0) -> None:
        """Add the paths of a commit, in the order of sequences, before it is published.

        Args:
            batch: of `schema.path_schema`; may be empty.
            sequence: of the commit.
            cuts: stretches of rows that it deletes.

        Raises:
            InternalError: a commit of this or a later sequence was added already.
        """
        state = self._state
        if sequence <= state.version.sequence:
            raise InternalError(
                f"expected a commit after {state.version.sequence} for the synopsis of partition "
                f"{self.partition}, got {sequence}",
                expected="later_commit",
                sequence=sequence,
            )
        columns = columns_from_batch(self.schema, batch)
        grid = self._grids[state.step]
        added = Entries.of(self.schema, columns, grid=grid, sequence=sequence)
        entries = state.entries.update(state.entries.widen(added, self.schema))
        version = SynopsisVersion(state.version.epoch, sequence)
        self._state = self._coarsen_to_limit(
            replace(state, version=version, entries=entries, cuts=state.cuts + cuts)
        )

    def _coarsen_to_limit(self, state: SynopsisState) -> SynopsisState:
        while len(state.entries) > self._entries_max and state.step + 1 < len(self._grids):
            step, sequence = state.step + 1, state.version.sequence
            grid = self._grids[step]
            entries = state.entries.coarsen(self.schema, grid=grid, sequence=sequence)
            state = replace(state, step=step, entries=entries)
        return state

    def changes_since(self, known: SynopsisVersion | None) -> SynopsisDelta:
        """The delta for a receiver.

        Args:
            known: the version that it acknowledged last; None, or of another epoch: a full copy.
        """
        state = self._state
        continues = (
            known is not None
            and known.epoch == state.version.epoch
            and known.sequence <= state.version.sequence
        )
        base = known.sequence if known is not None and continues else 0
        changed: Any = state.entries.changed > base
        entries = state.entries.take(changed)
        news = replace(state, entries=entries)
        return SynopsisDelta(self.schema.key, self.partition, base, news)

    def check(self) -> None:
        """Assert that the entries are in order and within their limit."""
        state = self._state
        assert (np.diff(state.entries.key) > 0).all(), "keys of a synopsis must ascend"
        assert (state.entries.changed <= state.version.sequence).all(), "change from the future"
        last = state.step == len(self._grids) - 1
        assert last or len(state.entries) <= self._entries_max, "a synopsis above its limit"
