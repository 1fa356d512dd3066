"""Commands of keyed datasets against a real cluster: create, ingest, delete, follow, read at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import galileo
from galileo.cli.main import main

Fresh = Callable[[str], str]

HEAD = "latitude,longitude,time,station,waves\n"
TIME = "2014-03-01T06:00:00Z"


class Buoys:
    """A keyed dataset that is made from a file, and the commands about it."""

    def __init__(self, addresses: tuple[str, ...], name: str, directory: Path) -> None:
        self.nodes = [word for address in addresses for word in ("--node", address)]
        self.name = name
        self.directory = directory

    def run(self, *words: str, answer: str = "", fails: int = 0) -> Result:
        done = CliRunner().invoke(main, [*self.nodes, *words], input=answer)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == fails, done.output
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def file(self, *rows: str, head: str = HEAD) -> str:
        """The path of a new CSV file."""
        path = self.directory / f"{len([*self.directory.iterdir()])}.csv"
        path.write_text(head + "".join(f"40,-105,{TIME},{row}\n" for row in rows))
        return str(path)

    def cursor(self) -> str:
        return str(self.json("dataset", "show", self.name)["cursor"])

    def waves(self, *options: str) -> dict[str, float]:
        rows = self.json("read", self.name, *options)["rows"]
        return {row["station"]: row["waves"] for row in rows}


@pytest.fixture
def buoys(cluster: galileo.LocalCluster, fresh_name: Fresh, tmp_path: Path) -> Buoys:
    made = Buoys(tuple(cluster.addresses), fresh_name("buoys"), tmp_path)
    file = made.file("a,1.5", "b,2.5", "c,3.5")
    done = made.run("ingest", made.name, file, "--create", "--key", "station")
    assert "and the key station: " in done.stdout
    return made


def test_dataset_create_with_a_key_shows_it(buoys: Buoys, fresh_name: Fresh) -> None:
    name = fresh_name("keyed")
    features = ["--feature", "id::text", "--feature", "depth:m:int", "--feature", "t:K"]
    made = buoys.json("dataset", "create", name, *features, "--key", "id", "--key", "depth")
    assert made["key"] == ["id", "depth"]
    words = buoys.run("dataset", "show", name).stdout
    assert "key id, depth; " in words
    assert "cursor: " in words
    listed = {one["name"]: one for one in buoys.json("dataset", "list")}
    assert listed[name]["key"] == ["id", "depth"]
    assert "cursor" not in listed[name]


def test_dataset_create_with_a_feature_twice_in_the_key_is_refused(buoys: Buoys) -> None:
    words = ("dataset", "create", "twice", "--feature", "a::int", "--key", "a", "--key", "a")
    assert "[invalid_schema]" in buoys.run(*words, fails=2).stderr


def test_ingest_replaces_and_conditional_ingest_refuses(buoys: Buoys) -> None:
    before = buoys.cursor()
    buoys.run("ingest", buoys.name, buoys.file("a,9.5"), "--unchanged-since", before)
    assert buoys.waves() == {"a": 9.5, "b": 2.5, "c": 3.5}
    stale = ["ingest", buoys.name, buoys.file("a,7.5"), "--unchanged-since", before]
    assert "[conflict]" in buoys.run(*stale, fails=2).stderr
    assert buoys.waves() == {"a": 9.5, "b": 2.5, "c": 3.5}
    # A key that fits may be given again.
    buoys.run("ingest", buoys.name, buoys.file("b,8.5"), "--create", "--key", "station")
    assert buoys.waves()["b"] == 8.5


def test_cursors_of_another_dataset_are_refused(
    buoys: Buoys, cluster: galileo.LocalCluster, fresh_name: Fresh, tmp_path: Path
) -> None:
    other = Buoys(tuple(cluster.addresses), fresh_name("others"), tmp_path)
    other.run("ingest", other.name, other.file("a,7.5"), "--create", "--key", "station")
    for words in (
        ("ingest", buoys.name, buoys.file("a,9.5"), "--unchanged-since", other.cursor()),
        ("delete", buoys.name, "--file", buoys.file("a,9.5"), "--unchanged-since", other.cursor()),
        ("read", buoys.name, "--at", other.cursor()),
        ("dataset", "changes", buoys.name, "--after", other.cursor()),
    ):
        refused = buoys.run(*words, fails=2).stderr
        assert f"about dataset '{buoys.name}'" in refused
        assert "[invalid_input]" in refused
    assert buoys.waves() == {"a": 1.5, "b": 2.5, "c": 3.5}


def test_read_at_a_cursor_shows_what_was_there(buoys: Buoys, tmp_path: Path) -> None:
    before, path = buoys.cursor(), tmp_path / "before.parquet"
    buoys.run("delete", buoys.name, "--all", "--yes")
    assert buoys.waves() == {}
    assert buoys.waves("--at", before) == {"a": 1.5, "b": 2.5, "c": 3.5}
    buoys.run("read", buoys.name, "waves > 2", "--at", before, "-o", str(path))
    assert sorted(pq.read_table(path)["station"].to_pylist()) == ["b", "c"]
    buoys.run("read", buoys.name, "--at", before, "-o", str(path), "--order-by", "time")
    assert pq.read_table(path).num_rows == 3


def test_delete_by_a_condition_asks(buoys: Buoys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galileo.cli.datasets.is_terminal", lambda: True)
    done = buoys.run("delete", buoys.name, "waves > 2", answer="n\n", fails=1)
    assert f"Delete 2 observations of {buoys.name}? This cannot be undone." in done.stderr
    assert "Nothing was deleted." in done.stderr
    assert len(buoys.waves()) == 3
    done = buoys.run("delete", buoys.name, "waves > 2", answer="y\n")
    assert done.stdout == "deleted: 2 observations\n"
    assert buoys.waves() == {"a": 1.5}


def test_delete_with_yes_does_not_ask_and_prints_json(buoys: Buoys) -> None:
    deleted = buoys.json("delete", buoys.name, "station = 'b'", "--yes")
    assert deleted["rows"] == 1
    assert buoys.waves("--at", deleted["evaluated"]) == {"a": 1.5, "b": 2.5, "c": 3.5}
    assert buoys.waves() == {"a": 1.5, "c": 3.5}
    assert buoys.json("delete", buoys.name, "station = 'b'", "--yes")["rows"] == 0
    assert buoys.run("delete", buoys.name, "--all", "--yes").stdout == "deleted: 2 observations\n"


def test_delete_the_keys_of_a_file(buoys: Buoys) -> None:
    before = buoys.cursor()
    keys = buoys.file("b", "unknown", head="latitude,longitude,time,station\n")
    assert buoys.run("delete", buoys.name, "--file", keys).stdout == "deleted: 2 keys\n"
    assert buoys.waves() == {"a": 1.5, "c": 3.5}
    stale = ["delete", buoys.name, "--file", keys, "--unchanged-since", before]
    assert "[conflict]" in buoys.run(*stale, fails=2).stderr
    semicolons = Path(buoys.file("c", head="latitude,longitude,time,station\n"))
    semicolons.write_text(semicolons.read_text().replace(",", ";"))
    done = buoys.json("delete", buoys.name, "--file", str(semicolons), "--separator", ";")
    assert done["rows"] == 1
    assert buoys.waves() == {"a": 1.5}


def test_dataset_changes_between_cursors(buoys: Buoys, tmp_path: Path) -> None:
    first = buoys.cursor()
    buoys.run("ingest", buoys.name, buoys.file("a,9.5", "d,4.5"))
    second = buoys.cursor()
    buoys.run("delete", buoys.name, "station = 'a'", "--yes")

    def changes(*options: str) -> dict[str, Any]:
        answer = buoys.json("dataset", "changes", buoys.name, "--after", first, *options)
        return {row["station"]: row["waves"] for row in answer["rows"]}

    assert changes("--until", second) == {"a": 9.5, "d": 4.5}
    assert changes() == {"a": None, "d": 4.5}
    words = buoys.run("dataset", "changes", buoys.name, "--after", second).stdout
    assert "1 row\n" in words
    assert "cursor: " in words
    path = str(tmp_path / "changes.parquet")
    done = buoys.run("dataset", "changes", buoys.name, "--after", first, "-o", path)
    assert f"2 observations written to {path}" in done.stdout
    assert sorted(pq.read_table(path)["deleted"].to_pylist()) == [False, True]
