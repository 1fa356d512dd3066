"""What a reader of a continuous query has to forget: observations were replaced or deleted.

An update from one cursor to another has the labels of what has come since and counts at the second
one. What matched and counted at the first cursor, and counts no longer at the second, is withdrawn.
Both are functions of the log, the query and the two cursors, so coordinators keep nothing for it:
the owners are asked when a reader fetches. Caches have labels as of the cycle that has found them;
those that were replaced by the second cursor are left out of the update.

Versions of a keyed dataset that counted at the first cursor may have been removed. What to forget
cannot be determined then, and the reader begins anew (`galileo.server.resets`). In a dataset
without a key only deletions withdraw labels, so its owners are asked where there is one between the
cursors; if it is erased, the reader begins anew, too. What a deletion leaves of a path has a label
of its own, which the update has, too.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

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
        shortened: in a dataset without a key, what deletions between the cursors have left of
            paths, and may be among the labels of the update.
        until: the second cursor, as far as the owners have answered.
        missing: partitions in which they have not.
        is_expired: whether versions that counted at the first cursor may be removed.
    """

    withdrawn: pa.Table
    replaced: pa.Table
    shortened: pa.Table
    until: Cursor
    missing: frozenset[int]
    is_expired: bool = False

    def __len__(self) -> int:
        return int(self.withdrawn.num_rows + self.replaced.num_rows + self.shortened.num_rows)


async def withdrawals(
    scans: ClusterScans,
    query: Query,
    *,
    after: Cursor,
    until: Cursor,
    labels_max: int,
    partitions: frozenset[int],
) -> Withdrawals:
    """What a query withdraws between two cursors, or up to an earlier one if that is very much.

    Args:
        scans: of the cluster.
        query: bound to its dataset.
        after: the first cursor.
        until: the second one.
        labels_max: soft bound; what one commit withdraws in each partition may exceed it.
        partitions: those that may withdraw something.
    """
    while True:
        found = await _between(scans, query, after, until, partitions)
        nearer = _halfway(after, found.until)
        if found.is_expired or len(found) <= labels_max or nearer == found.until:
            return found
        until = nearer


async def _between(
    scans: ClusterScans,
    query: Query,
    after: Cursor,
    until: Cursor,
    partitions: frozenset[int],
) -> Withdrawals:
    changed = frozenset(after.news(until))
    is_keyed = query.schema.is_keyed
    asked = changed & partitions & scans.candidates(query)
    missing, expired, tables = set[int](), False, list[pa.Table]()
    wanted = [(Choice.WITHDRAWN, EMPTY_CURSOR), (Choice.REPLACED, after)]
    if not is_keyed:
        wanted.append((Choice.SHORTENED, after))
    for choice, first in wanted:
        found = [query.schema.label_schema.empty_table()]
        if asked:
            answer = scans.between(
                query, partitions=asked, after=first, until=until, choice=choice, at=after
            )
            async with aclosing(answer) as parts:
                async for part in parts:
                    if isinstance(part, ScanEnd):
                        missing |= {p for p in asked if part.frontier[p] < until[p]}
                        expired |= bool(part.gone)
                    else:
                        found.append(part)
        tables.append(pa.concat_tables(found))
    # A reader stays where it is in these partitions, where all that counted still does.
    withdrawn, replaced, *rest = (_outside(missing, table) for table in tables)
    shortened = rest[0] if rest else withdrawn.slice(0, 0)
    reached = after.join({p: after[p] if p in missing else until[p] for p in changed})
    return Withdrawals(withdrawn, replaced, shortened, reached, frozenset(missing), expired)


def _outside(partitions: set[int], labels: pa.Table) -> pa.Table:
    """Labels but for those of some partitions."""
    if not partitions:
        return labels
    values = pa.array([*partitions], pa.int32())
    return labels.filter(pc.invert(pc.is_in(labels["partition"], value_set=values)))


def _halfway(after: Cursor, until: Cursor) -> Cursor:
    """A cursor between two, in partitions whose commits between them are of one history."""
    nearer = {
        p: after[p] + (until[p] - after[p] + 1) // 2
        for p in after.news(until)
        if history_of(after[p]) == history_of(until[p])
    }
    return Cursor({**until, **nearer})
