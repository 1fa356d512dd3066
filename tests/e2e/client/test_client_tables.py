"""Tables of a cluster of processes, by the client and on the command line."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.cursor import Cursor
from galileo.errors import InputError, UnknownDataset

COLUMNS = {"id": "text", "beds": "int", "height": "float", "open": "bool", "since": "time"}


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps the definitions of tables."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty table."""
    name = fresh_name("shelters")
    client.create_table(galileo.Table(name, COLUMNS, key="id"))
    return name


def run(cluster: galileo.LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--node", cluster.addresses[0]])


def by_id(rows: pa.Table) -> dict[Any, dict[str, Any]]:
    found = {row["id"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def test_random_upserts_and_deletions_are_those_of_a_dict(
    client: galileo.Client, name: str
) -> None:
    chance, expected = random.Random(5), dict[str, dict[str, Any]]()
    states: list[tuple[Cursor, dict[str, dict[str, Any]]]] = []
    for _ in range(12):
        keys = [f"k{chance.randrange(30)}" for _ in range(chance.randint(1, 8))]
        if chance.random() < 0.7:
            rows = [
                {"id": key, "beds": chance.randrange(99), "height": chance.random()} for key in keys
            ]
            client.upsert(name, pd.DataFrame(rows))
            nothing = {"open": None, "since": None}
            expected = expected | {row["id"]: row | nothing for row in rows}
        else:
            client.delete(name, keys)
            expected = {key: row for key, row in expected.items() if key not in keys}
        answer = client.table(name)
        assert by_id(answer.rows) == expected
        some = [f"k{n}" for n in range(0, 40, 3)]
        found = by_id(client.table(name, keys=some).rows)
        assert found == {key: row for key, row in expected.items() if key in some}
        states.append((answer.cursor, expected))
    for _ in range(10):
        first, last = sorted(chance.choices(range(len(states)), k=2))
        (before, rows_before), (after, rows_after) = states[first], states[last]
        assert by_id(client.table(name, at=before).rows) == rows_before
        changed = by_id(client.changes(name, before, until=after).rows)
        kept = {key: row for key, row in rows_before.items() if key not in changed}
        new = {key: row for key, row in changed.items() if not row.pop("deleted")}
        assert kept | new == rows_after


def test_rows_come_from_frames_arrays_and_files(
    client: galileo.Client, name: str, tmp_path: Path
) -> None:
    since = pd.to_datetime(["2014-03-01T06:00Z", None, "2014-03-02"], format="ISO8601", utc=True)
    frame = pd.DataFrame(
        {"id": ["a", "b", "007"], "beds": [1, 2, 3], "open": [True, False, True], "since": since}
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    pa.feather.write_feather(pa.Table.from_pandas(frame), tmp_path / "rows.arrow")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "rows.tsv", index=False, sep="\t")
    frame.assign(since=frame["since"].astype("string")).to_json(
        tmp_path / "rows.ndjson", orient="records", lines=True
    )
    expected = None
    for source in (
        frame,
        pa.Table.from_pandas(frame),
        frame.to_dict("list") | {"since": since.to_numpy()},
        *(tmp_path / f"rows.{suffix}" for suffix in ("parquet", "arrow", "csv", "tsv", "ndjson")),
    ):
        client.delete(name, ["a", "b", "007"])
        assert client.upsert(name, source).rows == 3
        stored = by_id(client.table(name).rows)
        expected = expected or stored
        assert stored == expected
    assert expected["007"]["since"].isoformat() == "2014-03-02T00:00:00+00:00"
    assert client.delete(name, tmp_path / "rows.csv").rows == 3
    assert len(client.table(name)) == 0


def test_the_last_row_of_a_key_counts_within_a_batch_and_over_batches(
    client: galileo.Client, name: str
) -> None:
    rows = {"id": ["a", "b"] * 500, "beds": np.arange(1000)}
    receipt = client.upsert(name, rows, batch_rows=100)
    assert (receipt.rows, receipt.batches) == (1000, 10)
    assert {k: row["beds"] for k, row in by_id(client.table(name).rows).items()} == {
        "a": 998,
        "b": 999,
    }


def test_rows_that_are_sent_again_under_their_name_are_stored_once(
    client: galileo.Client, name: str
) -> None:
    rows = {"id": ["a", "b"], "beds": [1, 2]}
    first = client.upsert(name, rows, producer="registry", first_batch=7)
    client.upsert(name, {"id": ["a"], "beds": [3]})
    again = client.upsert(name, rows, producer="registry", first_batch=7)
    assert (again.duplicate_rows, again.reached) == (2, first.reached)
    assert by_id(client.table(name).rows)["a"]["beds"] == 3


def test_keys_have_several_columns_and_types(
    client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("calibrations")
    columns = {"station": "int", "valid_from": "time", "offset": "float"}
    client.create_table(galileo.Table(name, columns, key=["station", "valid_from"]))
    days = pd.to_datetime(["2014-03-01", "2014-03-02", "2014-03-01"], utc=True)
    rows = pd.DataFrame({"station": [1, 1, -2], "valid_from": days, "offset": [0.1, 0.2, 0.3]})
    client.upsert(name, rows)
    client.delete(name, rows[:1])
    assert sorted(client.table(name).rows["offset"].to_pylist()) == [0.2, 0.3]
    assert client.table(name, keys=rows[2:]).to_pandas()["offset"].to_list() == [0.3]
    with pytest.raises(InputError, match="expected a table of the columns station, valid_from"):
        client.delete(name, [1])


def test_tables_and_datasets_are_told_apart(client: galileo.Client, name: str) -> None:
    assert name in {one.name for one in client.tables()}
    assert name not in {one.name for one in client.datasets()}
    for call in (
        lambda: client.schema(name),
        lambda: client.add_features(name, [galileo.Feature("area")]),
        lambda: client.set_retention(name, galileo.Retention("30d")),
    ):
        with pytest.raises(InputError, match="expected a dataset, got the table"):
            call()


def test_wrong_input_is_refused_and_stores_nothing(client: galileo.Client, name: str) -> None:
    for rows, words in (
        (7, "expected a DataFrame"),
        ("absent.csv", "cannot be read"),
        ("rows.xlsx", "expected a file ending in"),
    ):
        with pytest.raises(InputError, match=words):
            client.upsert(name, rows)
    with pytest.raises(InputError, match="expected keys of the type string"):
        client.delete(name, [1])
    with pytest.raises(InputError, match="a cursor of an earlier answer"):
        client.table(name, at="yesterday")
    with pytest.raises(InputError, match="past its last commits"):
        client.table(name, at=Cursor({0: 99}))
    assert len(client.table(name)) == 0


def test_a_dropped_table_is_gone_and_its_name_is_free(
    client: galileo.Client, cluster: galileo.LocalCluster, name: str
) -> None:
    client.upsert(name, {"id": ["a"]})
    before = client.table(name).cursor
    with cluster.client() as other:
        assert len(other.table(name)) == 1
        assert client.drop_dataset(name).rows >= 1
        with raises(UnknownDataset):
            client.table(name)
        with raises(UnknownDataset):
            other.upsert(name, {"id": ["b"]})
        client.create_table(galileo.Table(name, {"id": "int"}, key="id"))
        assert len(other.table(name)) == 0
        assert len(other.table(name, keys=[1])) == 0
        with pytest.raises(InputError, match="past its last commits"):
            other.table(name, at=before)


# --- the command line --------------------------------------------------------------------------


def test_a_table_is_made_filled_shown_and_dropped_by_commands(
    cluster: galileo.LocalCluster, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    name, file = fresh_name("shelters"), tmp_path / "shelters.csv"
    columns = ["--column", "id:text", "--column", "beds:int"]
    done = run(cluster, "table", "create", name, *columns, "--key", "id")
    assert done.output == f"created table {name}\n"
    file.write_text("id,beds\n007,5\nb,2\n")
    done = run(cluster, "table", "upsert", name, str(file))
    assert "shelters.csv: 2 rows stored" in done.output
    listed = json.loads(run(cluster, "table", "list", "--json").output)
    [table] = [one for one in listed if one["name"] == name]
    assert table["key"] == ["id"]

    shown = run(cluster, "table", "show", name)
    assert "007" in shown.output
    assert "2 rows" in shown.output
    answer = json.loads(run(cluster, "table", "show", name, "--json").output)
    assert sorted(row["beds"] for row in answer["rows"]) == [2, 5]
    assert run(cluster, "table", "delete", name, "b").output == "deleted: 1 key\n"
    after = json.loads(
        run(cluster, "table", "changes", name, "--after", answer["cursor"], "--json").output
    )
    assert after["rows"] == [{"id": "b", "beds": None, "deleted": True}]
    earlier = run(cluster, "table", "show", name, "--at", answer["cursor"], "--key", "b", "--json")
    assert json.loads(earlier.output) == {"rows": [{"id": "b", "beds": 2}], "more": False}
    limited = run(cluster, "table", "show", name, "--at", answer["cursor"], "--limit", "1")
    assert "2 rows; 1 shown, --all shows all" in limited.output

    written = run(cluster, "table", "show", name, "-o", str(tmp_path / "out.parquet"))
    assert written.exit_code == 0, written.output
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"id": "007", "beds": 5}]
    assert run(cluster, "table", "drop", name, "--yes").exit_code == 0
    assert run(cluster, "table", "show", name).exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "t", "--column", "id", "--key", "id"], "NAME:TYPE"),
        (["delete", "{name}"], "KEYS or --file"),
        (["show", "{name}", "--at", "yesterday"], "the cursor of an earlier answer"),
        (["show", "{name}", "--limit", "1", "--all"], "--limit or --all"),
        (["changes", "absent", "--after", "x"], "does not exist"),
    ],
)
def test_wrong_commands_say_what_they_expect(
    cluster: galileo.LocalCluster, name: str, words: list[str], message: str
) -> None:
    done = run(cluster, "table", *(word.format(name=name) for word in words))
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_cursor_of_a_dropped_table_is_none_of_its_successor(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    """Although this client still knows the dropped one when it goes on."""
    client.upsert(name, {"id": ["a"], "beds": [1]})
    cursor = client.table(name).cursor
    with cluster.client() as other:
        other.drop_dataset(name)
        other.create_table(galileo.Table(name, COLUMNS, key="id"))
        other.upsert(name, {"id": ["b", "c"], "beds": [2, 3]})
    with raises(UnknownDataset, dropped=name):
        client.changes(name, cursor)
    assert sorted(client.table(name).rows["id"].to_pylist()) == ["b", "c"]


def test_times_as_keys_of_commands_are_read_as_times(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    keyed, first, second = fresh_name("keyed"), "2014-03-01T06:00Z", "2014-03-02T06:00Z"
    client.create_table(galileo.Table(keyed, {"key": "time", "n": "int"}, key="key"))
    client.upsert(keyed, {"key": [first, second], "n": [1, 2]})
    shown = run(cluster, "table", "show", keyed, "--key", second, "--json")
    assert [row["n"] for row in json.loads(shown.output)["rows"]] == [2], shown.output
    assert run(cluster, "table", "delete", keyed, second).exit_code == 0
    assert client.table(keyed).rows["n"].to_pylist() == [1]
    assert run(cluster, "table", "show", keyed, "--key", "soon").exit_code == 2


async def test_concurrent_upserts_are_all_stored(cluster: galileo.LocalCluster, name: str) -> None:
    async with galileo.AsyncClient(*cluster.addresses) as client:
        await asyncio.gather(
            *(client.upsert(name, {"id": [f"k{n}"], "beds": [n]}) for n in range(8))
        )
        rows = (await client.table(name)).rows
        assert sorted(rows["beds"].to_pylist()) == [*range(8)]


def test_named_reader_of_a_table_keeps_its_position(client: galileo.Client, name: str) -> None:
    client.upsert(name, {"id": ["a"], "beds": [1]})
    first = client.table(name).cursor
    client.advance_reader(name, "mirror", first, hold="7d")
    client.upsert(name, {"id": ["a"], "beds": [2]})
    [reader] = client.readers(name)
    assert (reader.name, reader.cursor, reader.behind) == ("mirror", first, 1)
    changes = client.changes(name, reader.cursor)
    client.advance_reader(name, "mirror", changes.cursor, hold="7d")
    client.advance_reader(name, "mirror", first, hold="7d")
    [again] = client.readers(name)
    assert (again.cursor, again.behind) == (changes.cursor, 0)
    assert again.stored_at > reader.stored_at
    client.drop_reader(name, "mirror")
    assert client.readers(name) == []
    with raises(UnknownDataset):
        client.advance_reader("no-such-table", "mirror", first, hold="7d")
