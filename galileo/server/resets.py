"""The whole result of a continuous query, for a reader that begins anew.

Versions of a keyed dataset that a reader holds may be superseded and removed before it fetches
again, and deletions of a dataset without a key may be erased. Deletions and versions that it has
seen may be lost. What it has to forget cannot be determined then. So it forgets everything, and
gets what matches and counts at one cursor, the *snapshot*, in parts. A part has the versions since
the commits (place, next place]. As the snapshot is fixed and places only advance, a reset ends,
whatever is committed meanwhile. Cleaning may go up to the snapshot: it stores what counts there
once more, with the same `since`.

Layers of the gateway are read in the same way. In a dataset without a key, what retention drops
meanwhile is left out.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.labels import LabelSet
from galileo.node.cluster_scan import ClusterScans, ScanEnd, incomplete_answer
from galileo.query import Query, parse


@dataclass(frozen=True, slots=True, eq=False)
class ResetPart:
    """A part of a reset.

    Attributes:
        labels: that match and count at the snapshot.
        place: the commits since which the parts so far have all of them.
    """

    labels: LabelSet
    place: Cursor


async def newest_snapshot(scans: ClusterScans, query: Query) -> Cursor:
    """What is committed now in the partitions that can hold a match.

    Raises:
        IncompleteAnswer: an owner cannot be reached.
    """
    nothing = parse("false", query.schema)
    answer = scans.between(
        nothing, partitions=scans.candidates(query), after=EMPTY_CURSOR, until=None
    )
    async with aclosing(answer) as parts:
        async for part in parts:
            if isinstance(part, ScanEnd):
                return _checked(part).frontier
    raise AssertionError("a scan ends with its end")


async def next_part(
    scans: ClusterScans, query: Query, *, place: Cursor, snapshot: Cursor, labels_max: int
) -> ResetPart | None:
    """The next part of a reset; None if versions that count at the snapshot may be removed.

    Args:
        scans: of the cluster.
        query: bound to its dataset.
        place: of the part before.
        snapshot: of the reset.
        labels_max: soft bound; of each partition, one commit may have more.

    Raises:
        IncompleteAnswer: an owner cannot be reached.
        HistoryChanged: commits of the snapshot were lost.
    """
    asked = frozenset(place.news(snapshot)) & scans.candidates(query)
    tables, reached = [query.schema.label_schema.empty_table()], snapshot
    if asked:
        answer = scans.between(
            query,
            partitions=asked,
            after=place,
            until=snapshot,
            labels_max=max(1, labels_max // 2),  # Nodes answer with up to twice as many.
            at=snapshot,
        )
        async with aclosing(answer) as parts:
            async for part in parts:
                if not isinstance(part, ScanEnd):
                    tables.append(part)
                elif _checked(part).gone and query.schema.is_keyed:
                    return None
                else:
                    ends = {p: part.frontier[p] for p in asked}
                    reached = Cursor({**snapshot, **ends})
    # Copies may be stored past the snapshot, so labels are not cut at it.
    schema = query.schema
    return ResetPart(LabelSet.concat(schema, [LabelSet(schema, one) for one in tables]), reached)


def _checked(end: ScanEnd) -> ScanEnd:
    """An end of all partitions: a reader that has begun anew must not lack some of them."""
    if end.missing:
        raise incomplete_answer(end.missing)
    return end
