"""Deletions in the graph against a list of observations that remember when they were deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from patches import patched

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.columns import Commits, columns_from_batch
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.versions import NEVER, Choice
from galileo.model.deletions import STRETCHES_SCHEMA, Stretches, deletes
from galileo.query.query import Query, parse

PARTITIONS = (0, 1)
PLACE = ("partition", "sequence", "row")
Place = tuple[int, int, int]


@dataclass
class Observations:
    """Every observation by partition, sequence and row: its path, and the deletion that has it."""

    paths: dict[Place, int] = field(default_factory=dict)
    deleted: dict[Place, int] = field(default_factory=dict)
    batches: list[tuple[int, int, pa.RecordBatch]] = field(default_factory=list)
    gone: dict[int, int] = field(default_factory=dict)
    erased: dict[int, int] = field(default_factory=dict)

    def insert(self, batch: pa.RecordBatch, partition: int, sequence: int) -> None:
        self.batches.append((partition, sequence, batch))
        for path, (row, rows) in enumerate(_numbers(batch, "row", "rows")):
            for place in range(row, row + rows):
                self.paths[partition, sequence, place] = path

    def delete(self, partition: int, sequence: int, stretches: Stretches) -> None:
        for of, row, rows in zip(stretches.sequence, stretches.row, stretches.rows, strict=True):
            for place in range(row, row + rows):
                self.deleted.setdefault((partition, int(of), place), sequence)

    def matching(self, query: Query, until: Cursor) -> set[Place]:
        """What a reader at a cursor sees."""
        schema, found = query.schema, set[Place]()
        for partition, sequence, batch in self.batches:
            if sequence > until[partition] or sequence <= self.gone.get(partition, 0):
                continue
            passed = query.match_paths(columns_from_batch(schema, batch)).tolist()
            found |= {
                place
                for place, path in self.paths.items()
                if place[:2] == (partition, sequence)
                and passed[path]
                and self.deleted.get(place, NEVER)
                > max(until[partition], self.erased.get(partition, 0))
            }
        return found


def _numbers(table: pa.Table | pa.RecordBatch, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _rows_of(labels: pa.Table) -> list[Place]:
    return [
        (partition, sequence, place)
        for partition, sequence, row, rows in _numbers(labels, *PLACE, "rows")
        for place in range(row, row + rows)
    ]


class Game:
    """Plays a history into a graph and a model."""

    def __init__(self, world: Any, seed: int, memtable_paths_max: int) -> None:
        self.world, self.schema = world, world.schema
        self.rng = np.random.default_rng(seed)
        self.graph = MetadataGraph(
            world.schema, memtable_paths_max=memtable_paths_max, block_paths=7
        )
        self.model = Observations()
        self.last = dict.fromkeys(PARTITIONS, 0)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([self.insert, self.insert, self.delete, self.together, self.merge])()

    def insert(self) -> None:
        partition, sequence, batch = self._new()
        self.graph.insert(batch, partition=partition, sequence=sequence)
        self.model.insert(batch, partition, sequence)

    def _new(self) -> tuple[int, int, pa.RecordBatch]:
        partition = int(self.rng.choice(PARTITIONS))
        self.last[partition] += 1
        batch = self.world.batch(int(self.rng.integers(1 << 32)), int(self.rng.integers(12)))
        return partition, self.last[partition], batch

    def delete(self) -> None:
        for partition, sequence, stretches in self._deletions(1):
            paths = stretches.to_paths(self.schema)
            self.graph.insert(paths, partition=partition, sequence=sequence)
            self.model.delete(partition, sequence, stretches)

    def _deletions(self, count: int) -> list[tuple[int, int, Stretches]]:
        partition = int(self.rng.choice(PARTITIONS))
        known = [place for place in self.model.paths if place[0] == partition]
        deletions = []
        for _ in range(count if known else 0):
            chosen = self.rng.choice(len(known), int(self.rng.integers(1, 9)))
            table = pa.table(
                [
                    pa.array([known[n][column] for n in chosen])
                    if column < 3
                    else pa.array(np.ones(len(chosen), dtype=np.int64))
                    for column in range(4)
                ],
                names=STRETCHES_SCHEMA.names,
            )
            self.last[partition] += 1
            deletions.append((partition, self.last[partition], Stretches.of(table)))
        return deletions

    def together(self) -> None:
        """Several deletions and a commit at once, as a restart replays them."""
        deletions = self._deletions(3)
        if not deletions:
            return
        partition = deletions[0][0]
        self.last[partition] += 1
        batch = self.world.batch(int(self.rng.integers(1 << 32)), 5)
        commits = [*deletions, (partition, self.last[partition], None)]
        batches = [batch if part is None else part.to_paths(self.schema) for *_, part in commits]
        self.graph.insert_many(
            pa.concat_batches(batches),
            Commits.of(partition, [sequence for _, sequence, _ in commits]),
            np.array([len(each) for each in batches]),
        )
        for deletion in deletions:
            self.model.delete(*deletion)
        self.model.insert(batch, partition, self.last[partition])

    def merge(self) -> None:
        self.graph.maintain()

    def drop(self) -> None:
        partition = int(self.rng.choice(PARTITIONS))
        until = int(self.rng.integers(self.last[partition] + 1))
        self.model.gone[partition] = max(until, self.model.gone.get(partition, 0))
        self.graph.drop_before(partition, until + 1)

    def erase(self) -> None:
        partition = int(self.rng.choice(PARTITIONS))
        until = int(self.rng.integers(self.last[partition] + 1))
        self.model.erased[partition] = max(until, self.model.erased.get(partition, 0))
        self.graph.erase(partition, until)

    def cursor(self) -> Cursor:
        return Cursor({p: int(self.rng.integers(last + 1)) for p, last in self.last.items()})

    def choose(self, query: Query, choice: Choice, after: Cursor, until: Cursor) -> pa.Table:
        first = EMPTY_CURSOR if choice is Choice.WITHDRAWN else after
        at = None if choice is Choice.CURRENT else after
        pieces = self.graph.scan_pieces(
            query, labels_max=50, after=first, until=until, choice=choice, at=at
        )
        found = [piece for piece in pieces if piece is not None]
        return pa.Table.from_batches(found, schema=query.schema.label_schema)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40), text=st.integers(0, 20))
@examples(100)
def test_deletions_random_history_equals_observations(world, query_texts, seed, size, text):
    game = Game(world, seed, memtable_paths_max=size)
    together, chunk = (
        f"galileo.graph.deletion_vectors.{n}" for n in ("ROWS_TOGETHER", "CHUNK_PATHS")
    )
    with patched({together: 1 << seed % 8, chunk: 1 << seed % 5}):
        game.play(14)
    _check(game, parse(query_texts[text], world.schema))
    game.drop()
    game.play(4)
    _check(game, parse("", world.schema))


def _check(game: Game, query: Query) -> None:
    graph, model, now = game.graph, game.model, Cursor(game.last)
    found = _rows_of(graph.scan(query))
    assert len(found) == len(set(found))
    assert set(found) == model.matching(query, now)
    cursor = game.cursor()
    then = _rows_of(graph.scan(query, until=cursor))
    assert len(then) == len(set(then))
    assert set(then) == model.matching(query, cursor)
    everything = model.matching(parse("", query.schema), now)
    described = graph.describe(frozenset(PARTITIONS))
    assert described.observations == len(everything)
    assert graph.describe(frozenset([1])).observations == len([p for p in everything if p[0]])
    below = graph.children(order=["geohash"])
    assert sum(below.column("observations").to_pylist()) == len(everything)
    pieces = graph.scan_first(
        query, labels_max=10**6, piece_labels_max=7, after=EMPTY_CURSOR, until=now
    )
    first = [place for piece in pieces if piece is not None for place in _rows_of(piece)]
    assert sorted(first) == sorted(found)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40), text=st.integers(0, 20))
@examples(100)
def test_deletions_reader_that_folds_has_what_matches(world, query_texts, seed, size, text):
    """Labels of two evaluations, then what was withdrawn, replaced and shortened in between."""
    game = Game(world, seed, memtable_paths_max=size)
    query = parse(query_texts[text], world.schema)
    game.play(6)
    after = game.cursor()
    held = {_label(row) for row in game.graph.scan(query, until=after).to_pylist()}
    middle = after.join(game.cursor())
    early = game.graph.scan(query, after=after, until=middle).to_pylist()
    game.play(6)
    until = middle.join(game.cursor())
    late = game.graph.scan(query, after=middle, until=until).to_pylist()
    chosen = {
        choice: [_label(row) for row in game.choose(query, choice, after, until).to_pylist()]
        for choice in (Choice.WITHDRAWN, Choice.REPLACED, Choice.SHORTENED)
    }
    assert {label[:3] for label in chosen[Choice.WITHDRAWN]} <= {label[:3] for label in held}
    gone = {*chosen[Choice.WITHDRAWN], *chosen[Choice.REPLACED]}
    held = {label for label in held if label not in gone}
    held |= {_label(row) for row in [*early, *late] if _label(row) not in gone}
    shortened = set(chosen[Choice.SHORTENED])
    assert len(shortened) == len(chosen[Choice.SHORTENED])
    held |= shortened
    assert held == {_label(row) for row in game.graph.scan(query, until=until).to_pylist()}


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40), text=st.integers(0, 20))
@examples(100)
def test_deletions_erased_count_at_no_cursor(world, query_texts, seed, size, text):
    game = Game(world, seed, memtable_paths_max=size)
    for _ in range(3):
        game.play(6)
        game.erase()
        _check(game, parse(query_texts[text], world.schema))
        game.merge()
        _check(game, parse(query_texts[text], world.schema))
    game.drop()
    game.merge()
    _check(game, parse("", world.schema))


def test_deletions_erased_free_their_memory(world):
    game = Game(world, 1, memtable_paths_max=10_000)
    game.play(60)
    for partition, last in game.last.items():
        game.graph.erase(partition, last)
    game.merge()
    assert game.graph.count() == len(game.graph.scan(parse("", world.schema)))
    assert all(run.deletions is None for run in game.graph._snapshot.parts)


def _label(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in (*PLACE, "rows"))


def test_deletions_of_whole_partition_removed_come_again(world):
    game = Game(world, 3, memtable_paths_max=20)
    game.play(20)
    query = parse("", world.schema)
    before = sorted(_rows_of(game.graph.scan(query)))
    kept = [place for place in before if place[0] == 0]
    game.graph.remove(1)
    assert sorted(_rows_of(game.graph.scan(query))) == kept
    for partition, sequence, batch in game.model.batches:
        if partition == 1:
            game.graph.insert(batch, partition=1, sequence=sequence)
    assert len(_rows_of(game.graph.scan(query))) >= len(before)


def test_deletions_whose_positions_stay_when_runs_merge_are_convicted(world, monkeypatch):
    def forgetting(run, members, order):
        return run

    monkeypatch.setattr("galileo.graph.metadata_graph.with_deletions", forgetting)

    def play():
        for seed in range(30):
            game = Game(world, seed, memtable_paths_max=8)
            game.play(16)
            _check(game, parse("", world.schema))

    with pytest.raises(AssertionError):
        play()


def test_stretches_overlapping_are_joined():
    columns = [[0] * 6, [3, 2, 2, 2, 3, 2], [5, 9, 0, 4, 6, 1], [2, 1, 3, 2, 9, 1]]
    table = pa.table([pa.array(column) for column in columns], names=STRETCHES_SCHEMA.names)
    stretches = Stretches.of(table)
    assert stretches.sequence.tolist() == [2, 2, 2, 3]
    assert stretches.row.tolist() == [0, 4, 9, 5]
    assert stretches.rows.tolist() == [3, 2, 1, 10]
    assert stretches.count == 16


def test_stretches_survive_their_paths(world):
    table = pa.table([[0], [2**40], [7], [2]], names=STRETCHES_SCHEMA.names)
    paths = Stretches.of(table).to_paths(world.schema)
    again = Stretches.from_paths(paths)
    assert (again.sequence[0], again.row[0], again.rows[0]) == (2**40, 7, 2)
    assert deletes(paths).tolist() == [True]
    assert deletes(world.batch(0, 5)) is None
