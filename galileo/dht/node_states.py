"""The states of all nodes as one node knows them: versioned entries, reconciled by digests.

Theory of operation (Scuttlebutt: van Renesse, Dumitriu, Gough, Thomas, *Efficient Reconciliation
and Flow Control for Anti-Entropy Protocols*, LADIS 2008). Each node writes entries of its own
state, a key and bytes; each write gets the next version of that node. A digest has one row for each
node: its run, its beats and the last version that is held here. Two nodes exchange digests, and
each sends the entries past the row of the other, its own entries as well as those of third nodes.
So a state reaches every node though each node exchanges with few.

A run is one life of a process. Runs of a node are ordered; a later one replaces the entries of the
earlier ones. `beats` increases with every digest that the node itself makes, and shows that it was
alive then (van Renesse, Minsky, Hayden, *A Gossip-Style Failure Detection Service*, 1998).

Invariants: a row never decreases in (run, beats) nor in (run, version). A row with a version has
all entries of that run up to it, each with its last value. Only the node itself makes its versions
and beats. A node whose run is lower than one that others know of it, as after the loss of a disk,
continues with a higher run (`_outrun`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError

Runs = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

ENTRY_BYTES = 32
"""Of an entry in a message, beside key and value."""
RUN_BITS = 32
"""Lower bits of a run, which are random; those above count the starts."""


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """What a node knows of each node; arrays of one length.

    Attributes:
        names: of the nodes, sorted; at least one.
        runs: the last known run; 0: none.
        beats: the highest known count of beats of that run.
        versions: the version of that run up to which the entries are held.
    """

    names: tuple[str, ...]
    runs: Runs
    beats: Counts
    versions: Counts

    def check(self) -> None:
        """Raises InputError where the columns of one that was received differ in length."""
        sizes = [len(column) for column in (self.runs, self.beats, self.versions)]
        if sizes != [len(self.names)] * 3:
            raise InputError(
                f"expected a digest with {len(self.names)} rows, got columns of {sizes}",
                expected=len(self.names),
            )


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One value of the state of a node; an empty value says that there is none any more."""

    key: str
    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class StateDelta:
    """The entries of a node in a run past `base` and up to `version`, without replaced ones."""

    node: str
    run: int
    base: int
    version: int
    entries: tuple[StateEntry, ...]


def _size(entry: StateEntry) -> int:
    """The bytes that an entry takes in a message, about."""
    return ENTRY_BYTES + len(entry.key) + len(entry.value)


class NodeStates:
    """The states that one node knows, with its own.

    Args:
        me: this node.
        nodes: all nodes of the cluster.
        run: of this node; above that of its earlier lives unless its disk was lost. The count of
            starts times 2 ** `RUN_BITS`, plus a random number.
    """

    def __init__(self, me: str, nodes: Iterable[str], *, run: int) -> None:
        self.me = me
        self.names: tuple[str, ...] = (me,)
        self.runs: Runs = np.array([run], dtype=np.uint64)
        self.beats: Counts = np.zeros(1, dtype=np.uint32)
        self.versions: Counts = np.zeros(1, dtype=np.uint32)
        self._entries: dict[str, dict[str, StateEntry]] = {me: {}}
        self._at = {me: 0}
        self.set_nodes(nodes)

    @property
    def run(self) -> int:
        """The present run of this node."""
        return int(self.runs[self._at[self.me]])

    def index(self, node: str) -> int | None:
        """The row of a node; None if the cluster does not have it."""
        return self._at.get(node)

    def set_nodes(self, nodes: Iterable[str]) -> None:
        """Adds nodes that are unknown here, and forgets those that are not among `nodes`."""
        names = tuple(sorted({*nodes, self.me}))
        kept = np.array([self._at.get(name, -1) for name in names])
        for column in ("runs", "beats", "versions"):
            before = getattr(self, column)
            setattr(self, column, np.where(kept >= 0, before[kept], 0).astype(before.dtype))
        self.names = names
        self._at = {name: row for row, name in enumerate(names)}
        self._entries = {name: self._entries.get(name, {}) for name in names}

    def write(self, key: str, value: bytes) -> None:
        """Sets an entry of this node; nothing changes if it has this value."""
        own, row = self._entries[self.me], self._at[self.me]
        before = own.get(key)
        if before is not None and before.value == value:
            return
        self.versions[row] += 1
        own[key] = StateEntry(key, int(self.versions[row]), value)

    def digest(self) -> Digest:
        """All rows, with another beat of this node."""
        self.beats[self._at[self.me]] += 1
        return Digest(self.names, self.runs.copy(), self.beats.copy(), self.versions.copy())

    def merge(self, digest: Digest) -> Mask:
        """Adopts later runs and beats.

        Returns:
            The rows of nodes that have shown a new sign of life; never that of this node.
        """
        theirs = self._aligned(digest)
        me = self._at[self.me]
        if theirs.runs[me] > self.runs[me]:
            self._outrun(int(theirs.runs[me]))
        theirs.runs[me] = 0
        is_later = theirs.runs > self.runs
        is_alive: Mask = is_later | ((theirs.runs == self.runs) & (theirs.beats > self.beats))
        for row in np.flatnonzero(is_later):
            self._begin_run(int(row), int(theirs.runs[row]))
        self.beats[is_alive] = theirs.beats[is_alive]
        return is_alive

    def is_past(self, digest: Digest) -> Mask:
        """The mask of nodes for which this node knows a later run or beat than a digest has."""
        theirs = self._aligned(digest)
        is_later: Mask = (self.runs == theirs.runs) & (self.beats > theirs.beats)
        return is_later | (self.runs > theirs.runs)

    def apply(self, delta: StateDelta) -> tuple[StateEntry, ...]:
        """Adopts the entries of a delta that continues what is held here.

        Returns:
            The new entries; none if the delta is older, has a gap, or is about this node.
        """
        row = self._at.get(delta.node)
        if row is None or delta.node == self.me or delta.run < self.runs[row]:
            return ()
        if delta.run > self.runs[row]:
            self._begin_run(row, delta.run)
        held = int(self.versions[row])
        if delta.base > held or delta.version <= held:
            return ()
        new = tuple(entry for entry in delta.entries if entry.version > held)
        self._entries[delta.node].update((entry.key, entry) for entry in new)
        self.versions[row] = delta.version
        return new

    def deltas(self, digest: Digest, *, bytes_max: int) -> list[StateDelta]:
        """The entries that the maker of a digest lacks.

        Args:
            digest: its digest.
            bytes_max: of the entries together; the last one may exceed it. The others follow in a
                later exchange.
        """
        theirs = self._aligned(digest)
        is_later_run = (self.runs > theirs.runs) & (self.versions > 0)
        is_behind = (self.runs == theirs.runs) & (self.versions > theirs.versions)
        deltas, size = [], 0
        for row in np.flatnonzero(is_later_run | is_behind):
            if size >= bytes_max:
                break
            base = int(theirs.versions[row]) if is_behind[row] else 0
            deltas.append(self.delta(self.names[row], base=base, bytes_max=bytes_max - size))
            size += sum(map(_size, deltas[-1].entries))
        return deltas

    def delta(self, node: str, *, base: int, bytes_max: int | None = None) -> StateDelta:
        """The entries of a node past a version of its run, in order; the first ones if too many.

        A node that has the first ones lacks nothing of them: a replaced entry has a later version.
        """
        row = self._at[node]
        past = [entry for entry in self._entries[node].values() if entry.version > base]
        past.sort(key=attrgetter("version"))
        version, sizes = int(self.versions[row]), accumulate(map(_size, past))
        if bytes_max is not None:
            fitting = sum(size < bytes_max for size in sizes) + 1
            if fitting < len(past):
                past = past[:fitting]
                version = past[-1].version
        return StateDelta(node, int(self.runs[row]), base, version, tuple(past))

    def check(self) -> None:
        assert list(self.names) == sorted(self._entries), "one state for each node"
        for name, row in self._at.items():
            versions = [entry.version for entry in self._entries[name].values()]
            assert max(versions, default=0) <= self.versions[row], f"{name}: entry past its row"
            assert self.runs[row] or not versions, f"{name}: entries without a run"

    def _aligned(self, digest: Digest) -> Digest:
        """A copy with the rows of this node; nodes that the digest lacks are as known here."""
        if digest.names == self.names:
            copies = digest.runs.copy(), digest.beats.copy(), digest.versions.copy()
            return Digest(self.names, *copies)
        at = {name: row for row, name in enumerate(digest.names)}
        rows = np.array([at.get(name, -1) for name in self.names])
        return Digest(
            self.names,
            np.where(rows >= 0, digest.runs[rows], self.runs),
            np.where(rows >= 0, digest.beats[rows], self.beats),
            np.where(rows >= 0, digest.versions[rows], self.versions),
        )

    def _begin_run(self, row: int, run: int) -> None:
        self.runs[row], self.beats[row], self.versions[row] = run, 0, 0
        self._entries[self.names[row]] = {}

    def _outrun(self, known: int) -> None:
        """Continues in a run above one that others know of this node."""
        row = self._at[self.me]
        chance = self.run & ((1 << RUN_BITS) - 1)
        self.runs[row] = ((known >> RUN_BITS) + 1) << RUN_BITS | chance
