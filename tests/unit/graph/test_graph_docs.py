"""What docs/dev/graph.md shows must run, and its numbers must be those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from galileo.graph.columns import dtypes
from galileo.graph.filter_pipeline import CHUNK_PATHS, SAMPLE_PATHS
from galileo.graph.metadata_graph import MEMTABLE_PATHS_MAX, MetadataGraph
from galileo.graph.sorted_runs import BLOCK_PATHS
from galileo.graph.synopsis import ENTRIES_MAX
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.query.query import parse

PAGE = Path(__file__).parents[3] / "docs" / "dev" / "graph.md"
SCHEMA = Schema("nam", [Feature(name) for name in ("temperature", "humidity", "wind", "snow")])


def test_graph_page_examples_run(capsys):
    graph, columns = MetadataGraph(SCHEMA), [pa.array([7], pa.uint64())]
    columns += [times_from_micros([0]), *(pa.array([95.0]) for _ in SCHEMA.indexed)]
    columns += [pa.array([0], pa.int32()), pa.array([1], pa.int32())]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.path_schema)
    graph.insert(batch, partition=0, sequence=1)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {"graph": graph, "schema": SCHEMA, "parse": parse})
    assert '"humidity"' in capsys.readouterr().out


def test_graph_page_numbers_equal_code():
    text = PAGE.read_text(encoding="utf-8")
    for number in (MEMTABLE_PATHS_MAX, BLOCK_PATHS, CHUNK_PATHS, SAMPLE_PATHS, ENTRIES_MAX):
        assert re.search(rf"\b{number:,}\b", text), number
    assert f"takes {sum(dtype().itemsize for dtype in dtypes(SCHEMA))} bytes" in text
