"""Pages of a real cluster's observations, and observations by id."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.client.results import Labels
from galileo.errors import InputError, InvalidToken

Fresh = Callable[[str], str]
QUERY = "S_INTERSECTS(geometry, BBOX(-95.3, -40.1, 88.7, 63.9)) AND temperature > 280"


def pages(client: galileo.Client, name: str, query: str = "", **options: Any) -> list[Any]:
    found = [client.select_page(name, query, **options)]
    while found[-1].next is not None:
        found.append(client.select_page(name, query, after=found[-1].next, **options))
    return found


def notes(found: list[Any]) -> list[str]:
    return sorted(note for page in found for note in page.table["note"].to_pylist())


@pytest.mark.parametrize("query", ["", QUERY, "false"])
def test_pages_together_are_what_select_finds(
    client: galileo.Client, explored: Any, query: str
) -> None:
    found = pages(client, explored.name, query, limit=250)
    wanted = client.select(explored.name, query)
    assert notes(found) == sorted(wanted["note"].to_pylist())
    assert [len(page) for page in found[:-1]] == [250] * (len(found) - 1)
    assert found[0].table.column_names == ["id", *wanted.column_names]
    ids = [text for page in found for text in page.table["id"].to_pylist()]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_pages_while_data_streams_in_have_what_was_there_at_the_first(
    client: galileo.Client, cluster: galileo.LocalCluster, fresh_name: Fresh, make_explored: Any
) -> None:
    schema, frame = make_explored
    name, stored = fresh_name("paged"), frame(600, 1)
    client.create_dataset(schema(name))
    client.ingest(name, stored)
    begun, enough = threading.Event(), threading.Event()

    def produce() -> None:
        with cluster.client() as producer:
            seed = 1
            while not enough.is_set():
                seed += 1
                more = frame(30, seed).assign(note=lambda f, s=seed: f"{s}-" + f["note"])
                producer.ingest(name, more)
                begun.set()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        first = client.select_page(name, limit=50)
        begun.wait()
        found = [first]
        while found[-1].next is not None:
            found.append(client.select_page(name, limit=50, after=found[-1].next))
    finally:
        enough.set()
        thread.join()
    ids = [text for page in found for text in page.table["id"].to_pylist()]
    assert len(set(ids)) == len(ids)
    # What the producer had stored before the first page, if anything, is whole commits.
    assert set(stored["note"]) <= set(notes(found))
    frontier = first_frontier(client, name, ids)
    assert len(ids) == frontier
    assert client.count(name) > 600


def first_frontier(client: galileo.Client, name: str, ids: list[str]) -> int:
    """The observations of the commits of which a page had any, or that came before these."""
    last: dict[int, int] = {}
    for text in ids:
        partition, sequence, _ = (int(part) for part in text[1:].split("."))
        last[partition] = max(last.get(partition, 0), sequence)
    table = client.query(name).table
    columns = zip(*(table[c].to_pylist() for c in ("partition", "sequence", "rows")), strict=True)
    return sum(rows for partition, sequence, rows in columns if sequence <= last.get(partition, 0))


def test_read_ids_returns_the_observations_in_their_order(
    client: galileo.Client, explored: Any
) -> None:
    page = client.select_page(explored.name, QUERY, limit=40)
    table = page.table.take(pa.array([39, 7, 0, 7]))
    again = client.read_ids(explored.name, table["id"].to_pylist())
    assert again.to_pylist() == table.to_pylist()
    few = client.read_ids(explored.name, table["id"].to_pylist(), columns=["note"])
    assert few.column_names == ["id", "note"]
    assert client.read_ids(explored.name, []).num_rows == 0


def test_ids_are_the_leaves_of_labels(client: galileo.Client, explored: Any) -> None:
    labels: Labels = client.query(explored.name, "temperature > 280", limit=5)
    leaves = [text.rsplit("/", 1)[1] for text in labels.texts().to_pylist()]
    table = client.read_ids(explored.name, leaves)
    assert (pd.Series(table["temperature"].to_pylist()) > 280).all()


@pytest.mark.parametrize("ids", [["p0.1"], ["p0.999999.0"], ["p99999.1.0"], "p0.1.0", [7]])
def test_read_ids_of_no_observation_is_refused(
    client: galileo.Client, explored: Any, ids: Any
) -> None:
    with pytest.raises(InputError):
        client.read_ids(explored.name, ids)


def test_page_with_a_wrong_token_or_limit_is_refused(client: galileo.Client, explored: Any) -> None:
    token = client.select_page(explored.name, limit=5).next
    assert token is not None
    for query, after in ((QUERY, token), ("", token[:-6]), ("", token[::-1])):
        with raises(InvalidToken, expected="page_token"):
            client.select_page(explored.name, query, after=after)
    for limit in (0, 10_001, 2**40):
        with raises(InputError, parameter="limit"):
            client.select_page(explored.name, limit=limit)


def test_page_command_lists_pages_and_ids(
    cluster: galileo.LocalCluster, explored: Any, tmp_path: Path
) -> None:
    def run(*words: str, status: int = 0) -> Result:
        done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words])
        assert done.exit_code == status, done.output
        return done

    first = json.loads(run("page", explored.name, "--limit", "5", "--json").stdout)
    assert len(first["rows"]) == 5
    after = ("--after", first["next"])
    second = run("page", explored.name, "--limit", "5", *after, "--columns", "note").stdout
    assert "5 observations; more with --after " in second
    one = first["rows"][3]
    again = json.loads(run("page", explored.name, "--id", one["id"], "--json").stdout)
    assert again["rows"] == [one]
    path = tmp_path / "page.parquet"
    written = run("page", explored.name, "--limit", "7", "--output", str(path))
    assert "more with --after " in written.stderr
    assert len(pd.read_parquet(path)) == 7
    run("page", explored.name, "--id", one["id"], *after, status=2)
