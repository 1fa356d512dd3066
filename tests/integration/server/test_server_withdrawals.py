"""What a reader of a continuous query over a keyed dataset forgets where owners stop answering."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pyarrow as pa
import pytest

import galileo
from galileo.cursor import Cursor
from galileo.graph.versions import Choice
from galileo.node.cluster_scan import ClusterScans, ScanEnd
from galileo.query import parse
from galileo.server.withdrawals import withdrawals

SCHEMA = galileo.Schema("buoys", [galileo.Feature("station", type="int")], key="station")
AFTER, UNTIL = Cursor({1: 4, 2: 4}), Cursor({1: 6, 2: 6})


def labels(*partitions: int) -> pa.Table:
    zeros = pa.array([0] * len(partitions), pa.int64())
    columns = {field.name: zeros.cast(field.type) for field in SCHEMA.label_schema}
    columns["partition"] = pa.array(partitions, pa.int32())
    return pa.table(columns, schema=SCHEMA.label_schema)


class Owners:
    """Answer with a label of each partition; one stops in the middle of an answer."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def candidates(self, query: object) -> frozenset[int]:
        return frozenset(UNTIL)

    async def between(
        self, query: object, *, until: Cursor, choice: Choice, **_: Any
    ) -> AsyncIterator[pa.Table | ScanEnd]:
        yield labels(1, 2)
        stops = choice is self.choice
        yield ScanEnd(Cursor({**until, 2: 5}) if stops else until, frozenset({2} if stops else ()))


@pytest.mark.parametrize("choice", [Choice.WITHDRAWN, Choice.REPLACED])
async def test_nothing_is_withdrawn_where_an_answer_stops_in_the_middle(choice: Choice) -> None:
    owners, query = cast(ClusterScans, Owners(choice)), parse("", SCHEMA)
    found = await withdrawals(
        owners, query, after=AFTER, until=UNTIL, labels_max=10, partitions=frozenset(UNTIL)
    )
    assert found.missing == {2}
    assert found.until == Cursor({1: 6, 2: 4})
    assert found.withdrawn["partition"].to_pylist() == [1]
    assert found.replaced["partition"].to_pylist() == [1]
