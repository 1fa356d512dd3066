from __future__ import annotations

from collections import Counter

from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.metadata_graph import MetadataGraph
from galileo.query.query import parse

CURSORS = st.builds(Cursor, st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=2))


@st.composite
def histories(draw):
    """Commits (partition, sequence, size, seed), drops (partition, sequence), merges (None)."""
    last: Counter[int] = Counter()
    steps = []
    for _ in range(draw(st.integers(1, 20))):
        kind, partition = draw(st.integers(0, 6)), draw(st.integers(0, 2))
        if kind == 0:
            steps.append(None)
        elif kind == 1:
            steps.append((partition, draw(st.integers(0, last[partition] + 2))))
        else:
            last[partition] += draw(st.integers(1, 2))
            size, seed = draw(st.integers(0, 50)), draw(st.integers(0, 2**32))
            steps.append((partition, last[partition], size, seed))
    return steps


@given(
    history=histories(),
    memtable_paths_max=st.integers(1, 120),
    text=st.integers(0, 20),
    after=st.just(EMPTY_CURSOR) | CURSORS,
)
@examples(100)
def test_drop_before_random_history_hides_dropped_commits(
    world, dumb_store, rows_of, query_texts, history, memtable_paths_max, text, after
):
    store = dumb_store(world.schema)
    graph = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=7)
    dropped: Counter[int] = Counter()
    query = parse(query_texts[text], world.schema)
    for step in history:
        if step is None:
            graph.maintain()
        elif len(step) == 2:
            graph.drop_before(*step)
            dropped[step[0]] = max(dropped[step[0]], step[1] - 1)
        else:
            partition, sequence, size, seed = step
            for target in (graph, store):
                target.insert(world.batch(seed, size), partition=partition, sequence=sequence)
        left = [row for row in store.rows() if row["sequence"] > dropped[row["partition"]]]
        assert graph.count() == len(left)
    since = after.join(dropped)
    assert rows_of(graph.scan(query, after=after)) == store.scan(query, after=since)
    assert graph.scan(parse("", world.schema)).num_rows == graph.count()


@st.composite
def comings_and_goings(draw):
    """Commits (partition, size, seed), partitions that go (partition,), merges (None)."""
    steps = []
    for _ in range(draw(st.integers(1, 20))):
        kind, partition = draw(st.integers(0, 6)), draw(st.integers(0, 2))
        if kind == 0:
            steps.append(None)
        elif kind == 1:
            steps.append((partition,))
        else:
            steps.append((partition, draw(st.integers(0, 50)), draw(st.integers(0, 2**32))))
    return steps


@examples(50)
@given(history=comings_and_goings(), memtable_paths_max=st.integers(1, 120))
def test_remove_partition_random_history_accepts_it_again(
    world, dumb_store, rows_of, history, memtable_paths_max
):
    """With other commits of the same sequences; what was dropped of it before counts no more."""
    graph = MetadataGraph(world.schema, memtable_paths_max=memtable_paths_max, block_paths=7)
    commits: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    everything = parse("", world.schema)
    for step in history:
        if step is None:
            graph.maintain()
        elif len(step) == 1:
            graph.drop_before(step[0], 2)
            graph.remove(step[0])
            commits[step[0]] = []
        else:
            partition, size, seed = step
            commits[partition].append((seed, size))
            sequence = len(commits[partition])
            graph.insert(world.batch(seed, size), partition=partition, sequence=sequence)
        left = dumb_store(world.schema)
        for partition, made in commits.items():
            for sequence, (seed, size) in enumerate(made, start=1):
                left.insert(world.batch(seed, size), partition=partition, sequence=sequence)
        assert graph.count() == len(list(left.rows()))
        assert rows_of(graph.scan(everything)) == left.scan(everything, after=EMPTY_CURSOR)
        some = frozenset([0, 2])
        counted = graph.children(partitions=some).column("paths").to_pylist()
        assert sum(counted) == sum(row["partition"] in some for row in left.rows())


def _filled(world, *, commits):
    graph = MetadataGraph(world.schema, memtable_paths_max=400)
    for sequence in range(1, commits + 1):
        graph.insert(world.batch(sequence, 100), partition=0, sequence=sequence)
    while graph.maintain():
        pass
    return graph


def test_maintain_after_drop_frees_memory(world):
    graph = _filled(world, commits=40)
    before = graph.memory_bytes()
    graph.drop_before(0, 31)
    assert graph.memory_bytes() == before
    assert graph.maintain()
    assert graph.memory_bytes() < 0.3 * before
    assert graph.count() == 1000
    assert not graph.maintain()


def test_maintain_little_waste_keeps_run(world):
    graph = _filled(world, commits=40)
    graph.drop_before(0, 3)
    before = graph.memory_bytes()
    assert not graph.maintain()
    assert graph.memory_bytes() == before
    assert graph.count() == 3800


def test_maintain_rewrites_a_run_from_a_quarter_of_waste_on(world):
    graph = MetadataGraph(world.schema, memtable_paths_max=4000)
    for sequence in range(1, 41):
        graph.insert(world.batch(sequence, 100), partition=0, sequence=sequence)
    graph.drop_before(0, 10)
    assert graph.runs == 1
    assert not graph.maintain()
    graph.drop_before(0, 11)
    assert graph.maintain()
    assert graph.count() == 3000


def test_drop_before_all_commits_drops_late_inserts(world):
    graph = _filled(world, commits=40)
    graph.drop_before(0, 41)
    graph.drop_before(0, 7)
    graph.maintain()
    assert (graph.count(), graph.runs) == (0, 0)
    graph.insert(world.batch(9, 30), partition=0, sequence=9)
    graph.insert(world.batch(9, 30), partition=1, sequence=9)
    assert graph.count() == graph.scan(parse("", world.schema)).num_rows == 30
