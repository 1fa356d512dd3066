"""Samplers that look at observations, where the data lives, against reading label by label."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo import samplers
from galileo.errors import InputError, Unavailable
from galileo.labels import LabelSet
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import NUMBERED_PARTS_SCHEMA, ReadTask
from galileo.node.row_reader import observed
from galileo.query import parse
from galileo.samplers import SamplerSpec, numbered_parts, observed_schema
from galileo.testing.conformance import identities

QUERY = "temperature > 260 AND S_INTERSECTS(geometry, BBOX(-100, 10, 40, 33))"


class Northern:
    """Keeps labels of which an observation lies north of a latitude, and says what it was shown."""

    needs_observations = True
    shown: list[tuple[int, int, int]] = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, *, north: float, fails: bool = False) -> None:
        self.north, self.fails = north, fails

    def sample(self, labels: LabelSet, *, observations: pa.Table, seed: int) -> Any:
        commits = {place[:2] for place in identities(labels)}
        self.shown.append((len(commits), len(labels), observations.num_rows))
        if self.fails:
            raise ValueError("no luck")
        assert observations.schema.equals(observed_schema(labels.schema))
        number = observations.column("label").to_numpy()
        assert (np.diff(number) >= 0).all(), "in the order of their labels"
        is_north = observations.column("latitude").to_numpy() > self.north
        return np.bincount(number[is_north], minlength=len(labels)) > 0


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the sampler `northern` of a real distribution was shown."""
    info = tmp_path / "northern-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: northern\nVersion: 1.0\n")
    points = f"[{samplers.ENTRY_POINTS}]\nnorthern = northern_module:Northern\n"
    (info / "entry_points.txt").write_text(points)
    code = f"import sys\nNorthern = sys.modules[{__name__!r}].Northern\n"
    (tmp_path / "northern_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "northern_module", raising=False)
    Northern.shown.clear()
    return Northern.shown


@pytest.fixture
async def filled(cluster: Any) -> Any:
    """Twenty-four commits whose labels have several observations each."""
    for batch in range(3):
        table = make_observations(900, seed=batch)
        warmth = np.round(table.column("temperature").to_numpy() / 30) * 30
        at = table.schema.get_field_index("temperature")
        column = pa.array(warmth, from_pandas=True)
        await cluster.ingest(table.set_column(at, table.schema.field(at), column), batch=batch)
    return cluster


async def sampled(cluster: Any, spec: SamplerSpec, *, at: str = "a") -> LabelSet:
    parts = [part async for part in cluster[at].scans.sampled(parse(QUERY, cluster.schema), spec)]
    tables = [part for part in parts if not isinstance(part, ScanEnd)]
    nothing = cluster.schema.label_schema.empty_table()
    return LabelSet(cluster.schema, pa.concat_tables([nothing, *tables]))


async def one_by_one(cluster: Any, *, north: float) -> set[Any]:
    """The labels of which a read finds an observation in the north."""
    labels = await cluster.ask(QUERY)
    kept = set()
    for number, identity in enumerate(identities(labels)):
        found = await cluster.read(labels.where(np.arange(len(labels)) == number))
        if (found.column("latitude").to_numpy() > north).any():
            kept.add(identity)
    return kept


@pytest.mark.parametrize(
    "rows_max", [50, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (1, 131_072))]
)
async def test_observing_sampler_gets_the_observations_of_its_labels(
    filled: Any, shown: list[tuple[int, int, int]], rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "OBSERVED_ROWS_MAX", rows_max)
    everything = await filled.ask(QUERY)
    assert everything.table.column("rows").to_numpy().max() > 1
    expected = await one_by_one(filled, north=20.0)
    assert 0 < len(expected) < len(everything)
    for at in "ab":
        shown.clear()
        found = await sampled(filled, SamplerSpec("northern", {"north": 20.0}), at=at)
        assert set(identities(found)) == expected
        assert len(found) == len(expected)
        rows = (await filled.read(everything)).num_rows
        assert [sum(column) for column in zip(*shown, strict=True)] == [24, len(everything), rows]
    commits = [one[0] for one in shown]
    assert max(commits) == 1 if rows_max == 1 else max(commits) > 1


@pytest.mark.usefixtures("shown")
async def test_observing_sampler_gets_border_labels_without_observations(filled: Any) -> None:
    """Its cell intersects the box, and all of its observations lie beside it."""
    labels = await filled.ask(QUERY)
    found = [
        (await filled.read(labels.where(np.arange(len(labels)) == number))).num_rows
        for number in range(len(labels))
    ]
    assert min(found) == 0
    kept = await sampled(filled, SamplerSpec("northern", {"north": -90.0}))
    assert len(kept) == np.count_nonzero(found)


@pytest.mark.usefixtures("shown")
async def test_observing_sampler_that_raises_reports_its_traceback(filled: Any) -> None:
    spec = SamplerSpec("northern", {"north": 0.0, "fails": True})
    with raises(samplers.SamplerFailed, sampler="northern") as caught:
        await sampled(filled, spec)
    trace = caught.value.details["traceback"]
    assert 'raise ValueError("no luck")' in trace
    assert "galileo/node" not in trace, "only its own frames"


async def test_read_numbered_parts_returns_observations_of_all_nodes(filled: Any) -> None:
    """As a coordinator reads them for a CCQ's sampler."""
    labels = (await filled.ask(QUERY)).in_commit_order()
    task = ReadTask("nam", numbered_parts(labels), labels.query)
    tables = [table async for table in filled["c"].reading.read(task)]
    found = pa.concat_tables(tables)
    numbers = found.column("label").to_numpy()
    assert found.drop_columns(["label"]).num_rows == (await filled.read(labels)).num_rows
    cells = samplers.positions(labels)[0][numbers]
    assert (np.abs(found.column("latitude").to_numpy() - cells) < 6).all()
    assert len(set(labels.partitions[numbers].tolist())) == 8
    assert task.is_numbered
    assert numbered_parts(labels).schema.equals(NUMBERED_PARTS_SCHEMA, check_metadata=False)


async def test_observed_after_retention_is_unavailable(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = await filled.ask(QUERY)
    partition = int(labels.partitions[0])
    node = next(n for n in filled.nodes if partition in n.catalog.shard("nam").journals)
    shard = node.catalog.shard("nam")
    own = labels.where(labels.partitions == partition)
    query = parse(QUERY, filled.schema)
    assert observed(shard, own, query=query).num_rows > 0
    monkeypatch.setattr(shard, "removed", lambda: type(labels.frontier)({partition: 10**6}))
    with pytest.raises(Unavailable):
        observed(shard, own, query=query)


async def test_matching_text_of_a_digest_is_the_registered_query(filled: Any) -> None:
    node = filled["a"]
    text = parse(QUERY, filled.schema).to_json()
    await node.matching.register_queries("nam", [text])
    [name] = list(node.matching.registry("nam")._texts)
    assert node.matching.text("nam", name) == text
    with pytest.raises(Unavailable):
        node.matching.text("nam", b"?" * 16)


async def test_apply_without_observations_is_an_internal_error(filled: Any) -> None:
    labels = await filled.ask(QUERY)
    with raises(samplers.InternalError):
        samplers.apply(Northern(north=0.0), labels, seed=1)
    with raises(InputError, expected="booleans"):
        samplers.apply(
            type("None", (), {"needs_observations": True, "sample": lambda *a, **k: None})(),
            labels,
            seed=1,
            observations=observed_schema(labels.schema).empty_table(),
        )
