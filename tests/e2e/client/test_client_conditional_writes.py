"""Writes under the condition that rows have not changed, by the client and on the command line."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.cursor import Cursor
from galileo.errors import Conflict, DuplicateKey, InputError
from galileo.model.table import hashes_of, partitions_of


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps the definitions of tables."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty table."""
    name = fresh_name("beds")
    client.create_table(galileo.Table(name, {"id": "text", "beds": "int"}, key="id"))
    return name


def stored(client: galileo.Client, name: str) -> dict[str, int]:
    return {row["id"]: row["beds"] for row in client.table(name).rows.to_pylist()}


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 16), *(pytest.param(s, 60, marks=pytest.mark.slow) for s in range(2))]
)
def test_random_conditional_writes_are_those_of_a_dict(
    client: galileo.Client, name: str, seed: int, steps: int
) -> None:
    """The dict says which keys have changed since each cursor."""
    chance, rows, changed_at = random.Random(seed), dict[str, int](), dict[str, int]()
    [table] = [one for one in client.tables() if one.name == name]
    cursors, conflicts, stored_anyway = [client.table(name).cursor], 0, 0
    for number in range(1, steps):
        keys = chance.sample([f"k{n}" for n in range(8)], chance.randint(1, 3))
        since = chance.randrange(max(0, len(cursors) - 3), len(cursors))
        is_deletion, values = chance.random() < 0.25, dict.fromkeys(keys, number)
        condition = cursors[since] if chance.random() < 0.8 else None
        stale = {key for key in keys if condition is not None and changed_at.get(key, -1) >= since}
        error = None
        try:
            if is_deletion:
                client.delete(name, keys, unchanged_since=condition)
            else:
                columns = {"id": [*values], "beds": [*values.values()]}
                client.upsert(name, columns, unchanged_since=condition)
        except Conflict as raised:
            error, conflicts = raised, conflicts + 1
        assert (error is not None) == bool(stale)
        assert error is None or (
            error.details["key"] in stale and len(error.details["cursor"]) == 1
        )
        now = stored(client, name)
        hashes = hashes_of(table, pa.table({"id": keys}))
        places = dict(zip(keys, partitions_of(table, hashes).tolist(), strict=True))
        refused = {places[key] for key in stale}
        for key in keys:
            is_stored = now.get(key) == (None if is_deletion else number)
            if places[key] in refused:
                assert now.get(key) == rows.get(key)
            elif error is None:
                assert is_stored
            if places[key] not in refused and is_stored:  # Perhaps not of a call that has failed.
                stored_anyway += error is not None
                rows.pop(key, None)
                rows |= {} if is_deletion else {key: number}
                changed_at[key] = len(cursors) - 1
        assert now == rows
        cursors.append(client.table(name).cursor)
    assert conflicts > steps // 6


@pytest.mark.slow
async def test_counters_of_many_writers_lose_no_increment(
    cluster: galileo.LocalCluster, name: str
) -> None:
    """No two acknowledged writes have counted from the same value."""
    acknowledged: list[int] = []

    async def count(client: galileo.AsyncClient) -> None:
        for _ in range(4):
            while True:
                seen = await client.table(name, keys=["a"])
                value = (seen.rows["beds"].to_pylist() or [0])[0] + 1
                try:
                    row = {"id": ["a"], "beds": [value]}
                    await client.upsert(name, row, unchanged_since=seen.cursor)
                except Conflict:
                    continue
                acknowledged.append(value)
                break

    async with galileo.AsyncClient(*cluster.addresses) as one:
        async with galileo.AsyncClient(cluster.addresses[-1]) as other:
            await asyncio.gather(*(count(one) for _ in range(4)), *(count(other) for _ in range(4)))
        assert sorted(acknowledged) == list(range(1, 33))
        assert (await one.table(name)).rows["beds"].to_pylist() == [32]


def test_row_that_must_not_be_there_yet_is_stored_once(client: galileo.Client, name: str) -> None:
    row = {"id": ["a"], "beds": [1]}
    client.upsert(name, row, unchanged_since=Cursor())
    with raises(Conflict, key="a"):
        client.upsert(name, row, unchanged_since=Cursor())
    before = client.table(name, keys=["a"]).cursor
    client.delete(name, ["a"])
    with raises(Conflict, key="a"):  # It was there meanwhile.
        client.upsert(name, row, unchanged_since=before)
    client.upsert(name, row, unchanged_since=client.table(name, keys=["a"]).cursor)


def test_conflict_names_the_cursor_at_which_the_change_is_read(
    client: galileo.Client, name: str
) -> None:
    before = client.table(name, keys=["a"]).cursor
    client.upsert(name, {"id": ["a"], "beds": [7]})
    with pytest.raises(Conflict) as raised:
        client.delete(name, ["a"], unchanged_since=before)
    at = raised.value.details["cursor"]
    assert client.table(name, at=at, keys=["a"]).rows["beds"].to_pylist() == [7]


def test_repeated_conditional_batch_is_answered_as_before(
    client: galileo.Client, name: str
) -> None:
    before, row = client.table(name, keys=["a"]).cursor, {"id": ["a"], "beds": [1]}
    first = client.upsert(name, row, producer="mine", unchanged_since=before)
    client.upsert(name, {"id": ["a"], "beds": [2]})
    again = client.upsert(name, row, producer="mine", unchanged_since=before)
    assert (again.duplicate_rows, again.reached) == (1, first.reached)
    assert stored(client, name) == {"a": 2}


def test_key_that_occurs_twice_in_a_conditional_call_is_refused(
    client: galileo.Client, name: str
) -> None:
    rows = {"id": ["a", "b", "c", "b"], "beds": [1, 2, 3, 4]}
    for batch_rows in (1, 100):
        with raises(DuplicateKey, key="b"):
            client.upsert(name, rows, unchanged_since=Cursor(), batch_rows=batch_rows)
    with raises(DuplicateKey, key="b"):
        client.delete(name, ["b", "b"], unchanged_since=Cursor())
    assert stored(client, name) == {}


def test_cursor_of_no_answer_is_refused(client: galileo.Client, name: str) -> None:
    client.upsert(name, {"id": ["a"], "beds": [1]})
    ahead = Cursor({p: s + 1_000 for p, s in client.table(name).cursor.items()})
    with raises(InputError, parameter="unchanged_since"):
        client.upsert(name, {"id": ["a"], "beds": [2]}, unchanged_since=ahead)
    with pytest.raises(InputError):
        client.upsert(name, {"id": ["a"], "beds": [2]}, unchanged_since="now")  # type: ignore[arg-type]
    assert stored(client, name) == {"a": 1}


def test_commands_store_and_delete_under_a_condition(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str, tmp_path: Any
) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(main, [*words, "--node", cluster.addresses[0]])

    client.upsert(name, {"id": ["a", "b"], "beds": [1, 1]})
    cursor = json.loads(run("table", "show", name, "--json").stdout)["cursor"]
    (tmp_path / "rows.csv").write_text("id,beds\na,2\n")
    words = ["table", "upsert", name, str(tmp_path / "rows.csv"), "--unchanged-since", cursor]
    assert run(*words).exit_code == 0
    again = run(*words)
    assert again.exit_code != 0
    assert "was changed after the cursor" in again.stderr
    assert run("table", "delete", name, "a", "--unchanged-since", cursor).exit_code != 0
    assert run("table", "delete", name, "b", "--unchanged-since", cursor).exit_code == 0
    assert stored(client, name) == {"a": 2}
