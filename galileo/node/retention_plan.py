"""Plans which files a retention policy drops now.

A pure function of the files of the partitions, the policy, the time and the readers. It drops whole
files, the oldest ones of each partition; an open file is sealed first.

- *Age* demands each beginning of a log in which every file's newest observation is too old.
- *Bytes* demand, while all files together have more, the sealed file with the oldest newest
  observation among those that are first in their partition.

A policy that may not pass readers keeps three kinds of commits: those that a reader holds; all,
while the continuous queries are not known for certain; and recent ones, since a continuous query
that is being submitted may need them.

Continuous queries, named readers and channels hold commits of a dataset, and brokers the results of
a channel, which have an age. Each holds up to an age of its own: it lets go of what is older than
the policy and its hold together. A policy without an age counts as one whose age is over at once. A
continuous query or named reader does so only when it has stood still for its hold: else one that
goes on would miss observations that are as old when they arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from galileo.cursor import Cursor
from galileo.model.retention import HeldBack, Retention
from galileo.model.times import MICROS
from galileo.storage.retention import LogFile

PIECES = 8
"""Approximate number of files for a policy's age, or a partition's share of its bytes."""

Pieces: TypeAlias = Mapping[int, Sequence[LogFile]]
"""The files of each partition, oldest first."""


@dataclass(frozen=True, slots=True)
class ReaderProgress:
    """Up to where a reader needs no commits at present.

    Attributes:
        name: "" for readers that are not known.
        retrieved: what it has processed, or holds no more.
    """

    name: str
    retrieved: Cursor


@dataclass(frozen=True, slots=True)
class Hold:
    """A continuous query, named reader, channel or broker for which commits are kept.

    Attributes:
        reader: its name or id; "" for readers that are not known.
        position: the commits that it has fetched, processed or matched, or the executions that it
            has acknowledged.
        hold_s: for how long the others are kept beyond the age of the policy, and after
            `stored_us`.
        stored_us: when a continuous query was fetched, or a named reader has stored its position,
            microseconds since 1970; None of others, and of readers that are not known.
    """

    reader: str
    position: Cursor
    hold_s: float
    stored_us: int | None = None

    def is_over(self, now_us: int) -> bool:
        """Whether a query or named reader has stood still for longer than its hold."""
        return self.stored_us is not None and self.stored_us + self.hold_s * MICROS < now_us


Readers: TypeAlias = Callable[[str], Sequence[Hold] | None]
"""The live continuous queries of a dataset; None while these are not known for certain."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a policy that may not pass readers.

    Attributes:
        settled: commits past this cursor are too recent.
        readers: None while the live continuous queries are not known for certain.
    """

    settled: Cursor
    readers: Sequence[ReaderProgress] | None

    def of(self, partition: int) -> int:
        if self.readers is None:
            return 0
        fetched = [reader.retrieved[partition] for reader in self.readers]
        return min([self.settled[partition], *fetched])


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions on each partition.

    Attributes:
        seal: partitions whose open file is sealed first.
        drop: the commit up to which each partition is dropped.
        held: data that the policy wants to drop and readers hold back.
    """

    seal: frozenset[int]
    drop: Cursor
    held: tuple[HeldBack, ...]


def plan(pieces: Pieces, policy: Retention, *, bounds: Bounds, now_us: int) -> Plan:
    """The plan for a policy now.

    Args:
        pieces: of all partitions of a dataset on this node.
        policy: of the dataset.
        bounds: limits, for a policy that may not pass readers.
        now_us: the current time, microseconds since 1970.
    """
    demands = demanded(pieces, policy, now_us=now_us)
    seal = {p for p, files in pieces.items() if _is_large(files, pieces, policy)}
    drop, held = {}, []
    for partition, until in demands.items():
        files = pieces[partition]
        allowed = until if policy.past_readers else min(until, bounds.of(partition))
        reached = max((piece.last for piece in files if piece.last <= allowed), default=0)
        if reached:
            drop[partition] = reached
        if reached and not files[-1].sealed and reached == files[-1].last:
            seal.add(partition)
        held_back = _held(partition, files, reached=reached, until=until, bounds=bounds)
        held += [held_back] if held_back is not None else []
    return Plan(frozenset(seal), Cursor(drop), tuple(held))


def held_until(
    pieces: Pieces, policy: Retention, holds: Sequence[Hold], *, now_us: int
) -> list[ReaderProgress]:
    """The commits that each reader does not need: processed, or older than its hold that is over.

    Args:
        pieces: of all partitions of a dataset or channel on this node.
        policy: of the dataset or channel.
        holds: of its readers.
        now_us: the current time, microseconds since 1970.
    """
    age_s = policy.age_s or 0.0
    readers = []
    for hold in holds:
        needless = hold.position
        if hold.stored_us is None or hold.is_over(now_us):
            needless = needless.join(_too_old(pieces, age_s + hold.hold_s, now_us=now_us))
        readers.append(ReaderProgress(hold.reader, needless))
    return readers


def demanded(pieces: Pieces, policy: Retention, *, now_us: int) -> dict[int, int]:
    """The commit up to which the policy drops each partition, without regard to readers."""
    until = {} if policy.age_s is None else _too_old(pieces, policy.age_s, now_us=now_us)
    if policy.bytes is not None:
        _demand_bytes(until, pieces, policy.bytes)
    return until


def _too_old(pieces: Pieces, age_s: float, *, now_us: int) -> dict[int, int]:
    """The end of the first files of each partition that are all older than an age."""
    until: dict[int, int] = {}
    oldest_us = now_us - round(age_s * MICROS)
    for partition, files in pieces.items():
        for piece in files:
            if piece.newest_us > oldest_us:
                break
            until[partition] = piece.last
    return until


def _demand_bytes(until: dict[int, int], pieces: Pieces, bytes_max: int) -> None:
    """Adds the oldest sealed files, until the rest is within the bound."""
    left = {
        partition: [piece for piece in files if piece.last > until.get(partition, 0)]
        for partition, files in pieces.items()
    }
    size = sum(piece.bytes for files in left.values() for piece in files)
    first = [(files[0].newest_us, p, 0) for p, files in left.items() if files]
    heapq.heapify(first)
    while size > bytes_max and first:
        _, partition, at = heapq.heappop(first)
        files = left[partition]
        if not files[at].sealed:
            continue
        until[partition] = files[at].last
        size -= files[at].bytes
        if at + 1 < len(files):
            heapq.heappush(first, (files[at + 1].newest_us, partition, at + 1))


def _is_large(files: Sequence[LogFile], pieces: Pieces, policy: Retention) -> bool:
    """Whether the open file of a partition is large for the policy, and should be sealed."""
    if policy.bytes is None or not files or files[-1].sealed:
        return False
    return files[-1].bytes * PIECES * len(pieces) > policy.bytes


def _held(
    partition: int, files: Sequence[LogFile], *, reached: int, until: int, bounds: Bounds
) -> HeldBack | None:
    held = [piece for piece in files if reached < piece.last <= until]
    size = sum(piece.bytes for piece in held)
    if not size:
        return None
    since_us = held[0].newest_us
    if bounds.readers is None:
        return HeldBack(partition, size, (), since_us)
    behind = [r.name for r in bounds.readers if r.retrieved[partition] < until]
    names = tuple(sorted(filter(None, behind)))
    return HeldBack(partition, size, names, since_us) if behind else None
