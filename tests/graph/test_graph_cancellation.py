from __future__ import annotations

from typing import Any

import pytest

from galileo.errors import Cancelled
from galileo.graph.metadata_graph import MetadataGraph
from galileo.query.query import parse

WORK = {
    "explain": lambda graph, everything, check: graph.explain(everything, check=check),
    "summarise": lambda graph, everything, check: graph.summarise(everything, "gusts", check=check),
    "children": lambda graph, _, check: graph.children(order=["gusts"], check=check),
    "rows_by_cell": lambda graph, everything, check: graph.rows_by_cell(everything, check=check),
}


@pytest.mark.parametrize("name", WORK)
def test_work_is_stopped_between_its_pieces(world: Any, name: str) -> None:
    """The check is called for each run at least, and what it raises ends the work there."""
    graph, everything = MetadataGraph(world.schema, memtable_paths_max=50), parse("", world.schema)
    for number in range(6):
        graph.insert(world.batch(number, 60), partition=0, sequence=number + 1)
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Cancelled("enough")

    stop_at = 0
    WORK[name](graph, everything, counted)
    assert calls >= 6
    calls, stop_at = 0, 3
    with pytest.raises(Cancelled, match="enough"):
        WORK[name](graph, everything, counted)
    assert calls == 3
