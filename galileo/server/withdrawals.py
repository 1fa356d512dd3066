"""What a reader of a continuous query over a keyed dataset has to forget.

An update from one cursor to another has the labels of what has come since and counts at the second
one. What matched and counted at the first cursor, and counts no longer at the second, is withdrawn.
Both are functions of the log, the query and the two cursors, so coordinators keep nothing for it:
the owners are asked when a reader fetches. Caches have labels as of the cycle that has found them;
those that were replaced by the second cursor are left out of the update.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.versions import Choice
from galileo.model.forks import history_of
from galileo.node.cluster_scan import ClusterScans, ScanEnd
from galileo.query import Query


@dataclass(frozen=True, slots=True, eq=False)
class Withdrawals:
    """What no longer counts, of the label schema.

    Attributes:
        withdrawn: counted at the first cursor.
        replaced: came after it, and may be among the labels of the update.
        until: the second cursor, as far as the owners have answered.
        missing: partitions in which they have not.
    """

    withdrawn: pa.Table
    replaced: pa.Table
    until: Cursor
    missing: frozenset[int]

    def __len__(self) -> int:
        return int(self.withdrawn.num_rows + self.replaced.num_rows)


async def withdrawals(
    scans: ClusterScans, query: Query, *, after: Cursor, until: Cursor, labels_max: int
) -> Withdrawals:
    """What a query withdraws between two cursors, or up to an earlier one if that is very much.

    Args:
        scans: of the cluster.
        query: bound to a keyed dataset.
        after: the first cursor.
        until: the second one.
        labels_max: soft bound; what one commit withdraws in each partition may exceed it.
    """
    while True:
        found = await _between(scans, query, after, until)
        nearer = _halfway(after, found.until)
        if len(found) <= labels_max or nearer == found.until:
            return found
        until = nearer


async def _between(scans: ClusterScans, query: Query, after: Cursor, until: Cursor) -> Withdrawals:
    changed = frozenset(after.news(until))
    asked = changed & scans.candidates(query)
    tables = dict[Choice, list[pa.Table]]()
    reached, missing = {p: until[p] for p in changed}, set[int]()
    for choice, first in ((Choice.WITHDRAWN, EMPTY_CURSOR), (Choice.REPLACED, after)):
        tables[choice] = [query.schema.label_schema.empty_table()]
        if not asked:
            continue
        answer = scans.between(
            query, partitions=asked, after=first, until=until, choice=choice, at=after
        )
        async with aclosing(answer) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    missing |= {p for p in asked if part.frontier[p] < until[p]}
                else:
                    tables[choice].append(part)
    reached |= {p: after[p] for p in missing}
    withdrawn, replaced = (pa.concat_tables(each) for each in tables.values())
    return Withdrawals(withdrawn, replaced, after.join(reached), frozenset(missing))


def _halfway(after: Cursor, until: Cursor) -> Cursor:
    """A cursor between two, in partitions whose commits between them are of one history."""
    nearer = {
        p: after[p] + (until[p] - after[p] + 1) // 2
        for p in after.news(until)
        if history_of(after[p]) == history_of(until[p])
    }
    return Cursor({**until, **nearer})
