"""Random conditions on features: DuckDB, a naive evaluator and Galileo select the same rows.

`scripts/differential --cases 10000` runs many more cases than the tests do.
"""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from conditions import Maker, by_duckdb, by_row

from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.query import parse

CASES = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "200"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))


def by_graph(query, table):
    """The rows of the labels that a graph finds, of two commits, the first one sealed."""
    graph, commits = MetadataGraph(query.schema, memtable_paths_max=4, block_paths=3), {}
    half = -(-table.num_rows // 2)
    for sequence, part in enumerate([table.slice(0, half), table.slice(half)], 1):
        if part.num_rows:
            commits[sequence], batch = paths.index(query.schema, part)
            graph.insert(batch, partition=0, sequence=sequence)
    found = []
    for label in graph.scan(query).to_pylist():
        part = commits[label["sequence"]].slice(label["row"], label["rows"])
        found += part.column("id").to_pylist()
    return sorted(found)


def check(seed):
    """Whether the condition of this seed selects some of its rows, and not all."""
    maker = Maker(seed)
    condition, (schema, table) = maker.condition(), maker.world()
    query = parse(condition.cql2, schema)
    exact = table.filter(pa.array(query.match_observations(table))).column("id").to_pylist()
    found = {
        "DuckDB": by_duckdb(condition, table),
        "row by row": by_row(condition, table),
        "observations": exact,
        "graph": by_graph(query, table),
    }
    again = f"scripts/differential --cases 1 --seed {seed}"
    assert len({tuple(ids) for ids in found.values()}) == 1, (
        f"{condition.cql2}\n{condition.sql}\n{table.to_pylist()}\n{found}\nrepeat it: {again}"
    )
    return 0 < len(exact) < table.num_rows


@pytest.mark.slow
def test_query_random_conditions_select_rows_of_duckdb():
    telling = sum(check(seed) for seed in range(SEED, SEED + CASES))
    assert telling >= CASES // 3
