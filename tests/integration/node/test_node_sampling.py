"""Samples of queries asked once, against sampling everything that a plain query finds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations
from parameters import keep_quick

from galileo import samplers
from galileo.cursor import Cursor
from galileo.errors import InputError, MessageTooLarge, SamplerFailed, UnknownSampler
from galileo.labels import LabelSet, first_commits
from galileo.node import query_limits, sampling
from galileo.node.cluster_scan import ScanEnd
from galileo.query import parse
from galileo.samplers import SamplerSpec
from galileo.testing.conformance import identities, sample_labels

RESERVOIR = SamplerSpec("reservoir", {"n": 25}, 7)
SPECS = [
    SamplerSpec("uniform", {"fraction": 0.3}, 7),
    RESERVOIR,
    SamplerSpec("reservoir", {"n": 5, "scope": "commit"}, 7),
    SamplerSpec("reservoir", {"n": 5, "scope": "node"}, 7),
    SamplerSpec("stratified", {"by": "cell", "precision": 1, "per_stratum": 2}, 7),
    SamplerSpec("stratified", {"by": "cell", "precision": 1, "fraction": 0.2}, 7),
    SamplerSpec("weighted", {"feature": "temperature", "n": 20}, 7),
    SamplerSpec("thinning", {"distance_m": 2e6}, 7),
    SamplerSpec("thinning", {"distance_m": 2e6, "scope": "node"}, 7),
    SamplerSpec("every", {"n": 2}, 7),
]
QUERY = "temperature > 260"


class Failing:
    """Raises a given error."""

    def __init__(self, *, error: str = "ValueError", last: bool = False) -> None:
        self.error, self.last = error, last
        self.scope = "global" if last else "commit"
        self.regroups = False

    def sample(self, labels: LabelSet, *, seed: int) -> Any:
        if self.last:
            return np.ones(len(labels), dtype=np.bool_)
        raise {"ValueError": ValueError("no luck"), "InputError": InputError("not so")}[self.error]

    def merge(self, labels: LabelSet, *, seed: int) -> Any:
        raise ValueError("no luck at last")


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution on the path, whose sampler fails."""
    info = tmp_path / "failing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    points = f"[{samplers.ENTRY_POINTS}]\nfailing = failing_module:Failing\n"
    (info / "entry_points.txt").write_text(points)
    code = f"import sys\nFailing = sys.modules[{__name__!r}].Failing\n"
    (tmp_path / "failing_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_module", raising=False)


@pytest.fixture
async def filled(cluster: Any) -> Any:
    """Forty commits over eight partitions."""
    for batch in range(5):
        await cluster.ingest(make_observations(120, seed=batch), batch=batch)
    return cluster


async def sampled(cluster: Any, spec: SamplerSpec, *, query: str = QUERY, at: str = "a") -> Any:
    tables, tail = [], None
    async for part in cluster[at].scans.sampled(parse(query, cluster.schema), spec):
        assert tail is None, "nothing follows the tail"
        if isinstance(part, ScanEnd):
            tail = part
        else:
            tables.append(part)
    assert tail is not None
    table = pa.concat_tables([cluster.schema.label_schema.empty_table(), *tables])
    return LabelSet(cluster.schema, table, frontier=tail.frontier, missing=tail.missing)


def one_by_one(labels: LabelSet, spec: SamplerSpec, owners: dict[int, str]) -> set[Any]:
    """What a sampler keeps: commit by commit, then node by node, then of everything."""
    chosen = samplers.load(spec)
    commits = sorted({place[:2] for place in identities(labels)})
    parts = [
        samplers.apply(
            chosen,
            labels.where((labels.partitions == partition) & (labels.sequences == sequence)),
            seed=spec.seed,
        )
        for partition, sequence in commits
    ]
    everything = LabelSet.concat(labels.schema, parts)
    if samplers.scope_of(chosen) == "global":
        return set(identities(samplers.merge(chosen, everything, seed=spec.seed)))
    at = np.array([owners[partition] for partition in everything.partitions.tolist()])
    found: set[Any] = set()
    for node in set(at.tolist()):
        own = everything.where(at == node)
        found |= set(identities(samplers.merge(chosen, own, seed=spec.seed)))
    return found


def owners_in(cluster: Any) -> dict[int, str]:
    return {
        partition: node.name
        for node in cluster.nodes
        for partition in node.catalog.shard("nam").journals
    }


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{spec.options}")
async def test_sampled_equals_sampling_all_labels_of_the_query(
    filled: Any, spec: SamplerSpec
) -> None:
    everything = await filled.ask(QUERY)
    expected = one_by_one(everything, spec, owners_in(filled))
    assert 0 < len(expected) < len(everything)
    for at in "ab":
        found = await sampled(filled, spec, at=at)
        assert len(found) == len(expected)
        assert set(identities(found)) == expected
        assert found.frontier == everything.frontier


@pytest.mark.parametrize(
    "spec", keep_quick(SPECS, *SPECS[::3]), ids=lambda spec: f"{spec.name}-{spec.options}"
)
async def test_sampled_in_small_windows_gives_the_same_labels(
    filled: Any, spec: SamplerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set(identities(await sampled(filled, spec)))
    monkeypatch.setattr(query_limits, "WINDOW_LABELS_MAX", 40)
    assert set(identities(await sampled(filled, spec))) == expected


async def test_global_reservoir_has_exactly_n_labels(filled: Any) -> None:
    found = len(await filled.ask(QUERY))
    for n in (1, 100, found, found + 1):
        spec = SamplerSpec("reservoir", {"n": n}, 3)
        assert len(await sampled(filled, spec)) == min(n, found)


async def test_sampled_runs_on_the_nodes_that_store_the_labels(filled: Any) -> None:
    filled.network.scanned.clear()
    await sampled(filled, RESERVOIR)
    assert {task.sampler_json for task in filled.network.scanned} == {RESERVOIR.to_json()}
    for node in "bc":
        tasks = [
            task
            for task in filled.network.scanned
            if task.partitions & set(filled[node].catalog.shard("nam").journals)
        ]
        answers = [answer async for answer in filled[node].local_scans.scan(tasks)]
        assert sum(answer.table.num_rows for answer in answers[:-1]) <= 25


async def test_sampled_leaves_out_labels_of_a_broken_stream(filled: Any) -> None:
    filled.network.cut_after["b"] = 1
    found = await sampled(filled, RESERVOIR)
    assert found.missing
    assert not set(found.missing) & set(found.partitions.tolist())
    rest = (await filled.ask(QUERY)).until(found.frontier)
    assert set(identities(found)) == one_by_one(rest, RESERVOIR, owners_in(filled))


async def test_sampled_of_no_labels_is_empty_and_complete(cluster: Any) -> None:
    found = await sampled(cluster, RESERVOIR)
    assert len(found) == 0
    assert found.complete


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("at", ["a", "b"])
async def test_sampled_with_a_failing_sampler_is_an_error(filled: Any, at: str) -> None:
    with raises(SamplerFailed, sampler="failing"):
        await sampled(filled, SamplerSpec("failing"), at=at)
    with raises(SamplerFailed, sampler="failing"):
        await sampled(filled, SamplerSpec("failing", {"last": True}), at=at)
    with raises(InputError):
        await sampled(filled, SamplerSpec("failing", {"error": "InputError"}), at=at)


async def test_sampled_with_an_unknown_sampler_or_option_is_refused(filled: Any) -> None:
    with raises(UnknownSampler, sampler="reservior", nearest="reservoir"):
        await sampled(filled, SamplerSpec("reservior", {"n": 5}))
    with raises(InputError):
        await sampled(filled, SamplerSpec("reservoir", {"n": 0}))
    with raises(InputError):
        await sampled(filled, SamplerSpec("weighted", {"feature": "station", "n": 5}))


async def test_sampled_above_merged_labels_max_is_refused(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "MERGED_LABELS_MAX", 20)
    with raises(MessageTooLarge, bound=20):
        await sampled(filled, RESERVOIR)
    assert len(await sampled(filled, SamplerSpec("reservoir", {"n": 1}, 7))) == 1


async def test_scan_of_mixed_tasks_samples_the_sampled_ones_only(filled: Any) -> None:
    filled.network.scanned.clear()
    await filled.ask(QUERY)
    await sampled(filled, RESERVOIR)
    own = set(filled["b"].catalog.shard("nam").journals)
    tasks = [task for task in filled.network.scanned if task.partitions <= own]
    assert [bool(task.sampler_json) for task in tasks] == [False, True]
    counts = []
    for together in (tasks, tasks[:1], tasks[1:]):
        answers = [answer async for answer in filled["b"].local_scans.scan(together)]
        counts.append(sum(a.table.num_rows for a in answers if hasattr(a, "table")))
    assert counts[0] == counts[1] + counts[2]


def test_sampled_pieces_windows_hold_whole_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window is small or one commit, and together they are everything."""
    monkeypatch.setattr(query_limits, "WINDOW_LABELS_MAX", 150)
    labels = sample_labels()
    until = Cursor({0: 3, 1: 3, 2: 2})
    asked: list[Cursor] = []

    def scan(*, after: Cursor, labels_max: int) -> sampling.FirstPieces:
        asked.append(after)
        kept, reached = first_commits(labels.after(after), reached=until, labels_max=labels_max)
        yield None
        yield from kept.table.to_batches(max_chunksize=13)
        return reached

    sizes = []

    class Watched:
        def sample(self, part: LabelSet, *, seed: int) -> Any:
            sizes.append((len(part), len({place[:2] for place in identities(part)})))
            return np.ones(len(part), dtype=np.bool_)

    pieces = sampling.sampled_pieces(
        scan,
        labels.schema,
        after=Cursor({}),
        until=until,
        sampler=(Watched(), SamplerSpec("watched")),
        observe=lambda part: pytest.fail("it looks at labels alone"),
    )
    tables = [piece for piece in pieces if piece is not None]
    assert sorted(identities(LabelSet(labels.schema, pa.Table.from_batches(tables)))) == sorted(
        identities(labels)
    )
    assert sum(commits for _, commits in sizes) == 8
    assert all(size <= 150 or commits == 1 for size, commits in sizes)
    assert asked[0] == Cursor({})
    assert len(asked) == len(sizes) > 1
