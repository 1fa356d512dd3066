"""Compares the logs that a node leads with those of the other members, by digests.

Committed frames are the same at all members, and stay so: checksums find changed bytes, and a frame
is written once. A difference is therefore a mistake, of the program or of an operator who put other
files in place. Which copy is right cannot be known, so the difference is named and nothing is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from galileo.dht.topology import partition_name
from galileo.errors import GalileoError
from galileo.model.schema import name_of_key
from galileo.node.catalog import Catalog
from galileo.node.replication.protocol import LogRange, RangeDigest, ReplicaLink
from galileo.replication.values import Member
from galileo.storage.history import RANGE
from galileo.storage.journal import PartitionJournal

RANGES_MAX = 1_000
"""Of one request."""

log = logging.getLogger(__name__)

_Copy: TypeAlias = tuple[str, int, str]
"""Dataset, partition, node."""


class Comparison:
    """Asks the other voters for digests of what they have.

    Args:
        catalog: of this node.
        link: to other nodes.
        followers: the other voters of each partition that this node leads.
        interval_s: between two comparisons.

    Attributes:
        diverged: copies that differ, and in which commits.
    """

    def __init__(
        self,
        catalog: Catalog,
        link: ReplicaLink,
        *,
        followers: Callable[[], Mapping[int, Sequence[Member]]],
        interval_s: float,
    ) -> None:
        self.diverged: dict[_Copy, str] = {}
        self._catalog = catalog
        self._link = link
        self._followers = followers
        self._interval_s = interval_s
        self._ends: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Compares until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.compare()
            except Exception:
                log.exception("replicas cannot be compared")

    def digests(self, ranges: Sequence[LogRange]) -> list[RangeDigest | None]:
        """What another member asks for; None where this node has less, or has dropped it."""
        return [self._digest(one) for one in ranges]

    async def compare(self) -> None:
        """Compares all logs that this node leads once."""
        followers = self._followers()
        self._forget(followers)
        ranges = self._ranges(followers)
        for member, of_member in ranges.items():
            for start in range(0, len(of_member), RANGES_MAX):
                await self._compare_with(member, of_member[start : start + RANGES_MAX])

    def _forget(self, followers: Mapping[int, Sequence[Member]]) -> None:
        """Drops what is known of logs that are gone, and of copies that this node leads no more."""
        nodes = {partition: {one.node for one in of} for partition, of in followers.items()}
        self.diverged = {
            (dataset, partition, node): what
            for (dataset, partition, node), what in self.diverged.items()
            if dataset in self._catalog.shards and node in nodes.get(partition, ())
        }

    def _ranges(self, followers: Mapping[int, Sequence[Member]]) -> dict[Member, list[LogRange]]:
        """What each member is asked for."""
        ranges = defaultdict[Member, list[LogRange]](list)
        before, self._ends = self._ends, {}
        for partition, members in followers.items():
            for dataset, shard in self._catalog.shards.items():
                journal = shard.journals.get(partition)
                if journal is None:
                    continue
                end = self._ends[dataset, partition] = journal.last_sequence
                # Of a log that grows, a follower may lack the end; it has the last mark soon.
                is_idle = before.get((dataset, partition)) == end
                until = end if is_idle else end // RANGE * RANGE
                after = journal.history.first_mark()
                if after < until:
                    for member in members:
                        ranges[member].append(LogRange(partition, dataset, after, until))
        return ranges

    async def _compare_with(self, member: Member, ranges: Sequence[LogRange]) -> None:
        try:
            theirs = await self._link.digests(member, ranges)
            for one, digest in zip(ranges, theirs, strict=True):
                await self._judge(member, one, digest)
        except GalileoError as error:
            log.debug("replicas of %s cannot be compared: %s", member.node, error)

    async def _judge(self, member: Member, asked: LogRange, theirs: RangeDigest | None) -> None:
        is_equal = self._is_equal(asked, theirs)
        copy = asked.dataset, asked.partition, member.node
        if is_equal:
            self.diverged.pop(copy, None)
        elif is_equal is False and copy not in self.diverged:
            assert theirs is not None, "what is not known does not differ"
            first, last = await self._narrow(member, asked, theirs.after)
            self.diverged[copy] = what = (
                f"partition {partition_name(asked.partition)} of {name_of_key(asked.dataset)}: "
                f"the copy of {member.node} differs in commits {first} to {last}"
            )
            log.error("%s; see galileo doctor", what)

    async def _narrow(self, member: Member, asked: LogRange, after: int) -> tuple[int, int]:
        """The first range of commits that differs, as narrow as digests are kept."""
        until, journal = asked.until, self._journal(asked)
        while journal is not None and (middle := journal.history.middle_mark(after, until)):
            part = LogRange(asked.partition, asked.dataset, after, middle)
            (theirs,) = await self._link.digests(member, [part])
            is_equal = self._is_equal(part, theirs)
            if is_equal is None:
                break
            after, until = (middle, until) if is_equal else (after, middle)
        return after + 1, until

    def _is_equal(self, asked: LogRange, theirs: RangeDigest | None) -> bool | None:
        """Whether both have the same commits; None where one of them has not all."""
        journal = self._journal(asked)
        if theirs is None or journal is None:
            return None
        digest = journal.history.digest(theirs.after, asked.until)
        return None if digest is None else digest == theirs.digest

    def _digest(self, asked: LogRange) -> RangeDigest | None:
        journal = self._journal(asked)
        if journal is None or asked.until > journal.last_sequence:
            return None
        after = max(asked.after, journal.history.first_mark())
        digest = journal.history.digest(after, asked.until) if after < asked.until else None
        return None if digest is None else RangeDigest(after, digest)

    def _journal(self, asked: LogRange) -> PartitionJournal | None:
        shard = self._catalog.shards.get(asked.dataset)
        return None if shard is None else shard.journals.get(asked.partition)
