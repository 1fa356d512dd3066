"""Values of replication: members, replica sets, epochs of a log, the durable state, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from galileo.model.forks import Forks, history_of, next_sequence

ORDINALS = 4096
"""A term is `round * ORDINALS + ordinal of its candidate`, so no two candidates share one.

The upper half of a term is the history in which its leader appends (`model.forks`), so the terms of
a later history are higher. A history has room for a million rounds.
"""


class Member(NamedTuple):
    """One disk of one node; a node with an empty directory gets another `disk`."""

    node: str
    disk: str


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The members of a partition; only voters count for elections and commits.

    Attributes:
        term: of the leader that made the set.
        number: counts the sets of the partition.
    """

    term: int
    number: int
    voters: frozenset[Member]
    learners: frozenset[Member] = frozenset()

    @property
    def history(self) -> int:
        """The history of the partition in which the set was made."""
        return history_of(self.term)

    @property
    def version(self) -> tuple[int, int]:
        return self.term, self.number

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def members(self) -> frozenset[Member]:
        return self.voters | self.learners

    def is_majority(self, members: Iterable[Member]) -> bool:
        return len(self.voters & set(members)) >= self.majority


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epoch of each frame of a log, in runs of equal epochs.

    The epoch of a frame is the term of the leader that made it. Sequences count from 1; epochs do
    not fall. A log jumps only where a run begins, to a later history.

    Attributes:
        runs: (first sequence, epoch) of each run.
        end: the last sequence, 0 for an empty log.
        start: frames up to it were dropped, all of which were committed.
        forks: the jumps behind `start`.
    """

    runs: tuple[tuple[int, int], ...] = ()
    end: int = 0
    start: int = 0
    forks: Forks = field(default_factory=Forks)

    def at(self, sequence: int) -> int:
        """The epoch of a frame; 0 before the first."""
        return next((epoch for first, epoch in reversed(self.runs) if first <= sequence), 0)

    def cut(self, end: int) -> Epochs:
        """The same without the frames after `end`."""
        if end >= self.end:
            return self
        runs, forks = tuple(run for run in self.runs if run[0] <= end), self.forks.between(0, end)
        return Epochs(runs, end, self.start, forks)

    def extend(self, epoch: int, end: int) -> Epochs:
        """The same with frames of one epoch up to `end`."""
        if end <= self.end:
            return self
        first = next_sequence(self.end, history_of(end))
        is_new = not self.runs or self.runs[-1][1] != epoch
        runs = (*self.runs, (first, epoch)) if is_new else self.runs
        return Epochs(runs, end, self.start, self.forks.jumped(self.end, first))

    def range(self, after: int, until: int) -> Epochs:
        """The runs of the frames in (after, until]."""
        part, begin = self.cut(until), self.forks.following(after)
        runs = tuple(
            (max(first, begin), epoch)
            for index, (first, epoch) in enumerate(part.runs)
            if (part.runs[index + 1][0] if index + 1 < len(part.runs) else part.end + 1) > begin
        )
        forks = part.forks.between(after, until)
        return Epochs(runs if part.end > after else (), part.end, forks=forks)

    def append(self, part: Epochs) -> Epochs:
        """The same followed by those frames of `part` (a range) that come after its end."""
        joined = self
        for index, (_, epoch) in enumerate(part.runs):
            is_last = index + 1 == len(part.runs)
            end = part.end if is_last else part.forks.preceding(part.runs[index + 1][0])
            joined = joined.extend(epoch, end)
        return joined

    def limit(self, after: int, count: int) -> int:
        """The last of at most `count` frames after one, up to the next jump behind them."""
        first = self.forks.following(after)
        return self.forks.floor(min(self.end, first + count - 1)) if after < self.end else self.end

    def drop(self, start: int) -> Epochs:
        """The same without the frames up to `start`."""
        if start <= self.start:
            return self
        return replace(self.range(start, self.end), end=max(self.end, start), start=start)

    def common(self, other: Epochs, *, committed: int) -> int:
        """The last sequence up to which both logs are surely equal (Kafka's KIP-101).

        What one of them has dropped was committed. A frame of this log that the other has dropped
        is the same if it is known to be committed, or lies before one that is equal.

        Args:
            other: of another log.
            committed: up to where this log is known to be committed.
        """
        start, end = max(self.start, other.start), min(self.end, other.end)
        if end <= start:
            is_unknown = self.start < other.start
            return max(self.start, min(end, committed)) if is_unknown else end
        firsts = {first for first, _ in (*self.runs, *other.runs)}
        firsts |= {self.forks.following(start), other.forks.following(start)}
        for first in sorted(first for first in firsts if start < first <= end):
            if self._frame(first) != other._frame(first):
                return self._shared(other, first - 1)
        return self._shared(other, end)

    def _frame(self, sequence: int) -> tuple[int, int]:
        """The epoch of a frame, and the sequence before it."""
        return self.at(sequence), self.forks.preceding(sequence)

    def _shared(self, other: Epochs, end: int) -> int:
        """The last sequence up to `end` that neither log jumps over."""
        while (lower := min(self.forks.floor(end), other.forks.floor(end))) < end:
            end = lower
        return end

    def equals(self, other: Epochs, *, committed: int) -> bool:
        """Whether both are surely of the same frames, apart from those that one has dropped."""
        return self.end == other.end and self.common(other, committed=committed) == self.end


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a member has durable beside its logs.

    Attributes:
        set: the newest replica set that it knows, None for one that has none.
        promised: the highest term that it has promised; messages of lower terms are refused.
        joined: the highest term whose leader's logs it has taken over.
        suspect: per log, the last sequence that it may have had before damage.
    """

    set: ReplicaSet | None = None
    promised: int = 0
    joined: int = 0
    suspect: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(slots=True)
class Log:
    """What the machine knows of one log at its own member.

    Attributes:
        epochs: of all frames, those included that are being written.
        durable: the last sequence that is synced.
        committed: the last sequence known to be committed.
        is_cut_durable: whether the last truncation is synced.
        unsynced_since: since when writes wait and no sync has ended, None if all is synced.
    """

    epochs: Epochs = field(default_factory=Epochs)
    durable: int = 0
    committed: int = 0
    is_cut_durable: bool = True
    unsynced_since: float | None = None

    @property
    def end(self) -> int:
        return self.epochs.end

    @property
    def start(self) -> int:
        return self.epochs.start

    @property
    def is_synced(self) -> bool:
        return self.durable == self.end and self.is_cut_durable

    def lacking(self, match: int) -> int:
        """The number of frames that a member lacks which has the log up to `match`."""
        return self.epochs.forks.count(max(match, self.start), self.end)

    def note_written(self, now: float) -> None:
        """Notes that frames are being written."""
        if self.unsynced_since is None:
            self.unsynced_since = now


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """Times and limits of replication.

    Attributes:
        dead_after_s: a leader that was not heard for so long has failed.
        lease_s: how long a reply to a beat supports the leader, from the sending of the beat. It is
            below `dead_after_s` by more than clocks of two nodes may differ in rate.
        stagger_s: between the campaigns of the voters of a set.
        campaign_s: a campaign that takes longer is given up.
        beat_s: between the beats of a leader.
        resend_s: what is not acknowledged is sent again; frames to a slow member later, at the
            latest after `dead_after_s`.
        stall_s: a leader whose write takes longer steps down.
        frames_max: most frames of one message.
        lag_max: a learner within so many frames of the end is promoted.
    """

    dead_after_s: float = 2.0
    lease_s: float = 1.5
    stagger_s: float = 0.25
    campaign_s: float = 1.5
    beat_s: float = 0.5
    resend_s: float = 0.5
    stall_s: float = 2.0
    frames_max: int = 64
    lag_max: int = 64
