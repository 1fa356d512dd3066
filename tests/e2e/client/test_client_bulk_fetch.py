"""Many continuous queries of one reader, against real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import galileo
from galileo import errors
from galileo.client import Submitted, UpdateBatch

Fresh = Callable[[str], str]
TIMEOUT_S = 180.0
QUERIES = [f"value >= {number} AND value < {number + 2}" for number in range(12)]


def frame(first: int) -> pd.DataFrame:
    count = 24
    return pd.DataFrame(
        {
            "latitude": [10.0 + number for number in range(count)],
            "longitude": [(-170.0 + 14 * number) for number in range(count)],
            "time": pd.date_range("2014-03-01", periods=count, freq="h", tz="UTC"),
            "value": [float((first + number) % 14) for number in range(count)],
        }
    )


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    """With rows that were there before any query."""
    name = fresh_name("many")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("value")], geohash_precision=2))
    client.ingest(name, frame(0))
    return name


@pytest.fixture(scope="module")
def asked(client: galileo.Client, dataset: str) -> Iterator[list[galileo.Submission]]:
    made = [galileo.Submission(dataset, query, interval="0.2s") for query in QUERIES]
    yield made
    for one in made:
        client.cancel(one.id)


@pytest.fixture(scope="module")
def submitted(client: galileo.Client, asked: list[galileo.Submission]) -> list[Submitted]:
    result: list[int] = []
    done = client.submit_many(asked, progress=result.append)
    assert sum(result) == len(asked)
    return done


def delivered(
    client: galileo.Client, tokens: dict[str, str], rows: int
) -> tuple[pa.Table, dict[str, str]]:
    """So many labels, fetched again and again, and the tokens then."""
    tables: list[pa.Table] = []
    deadline = time.monotonic() + TIMEOUT_S
    while sum(table.num_rows for table in tables) < rows:
        assert time.monotonic() < deadline, "the updates did not come"
        updates = client.fetch_many(tokens, wait="5s")
        assert not updates.errors
        tokens = updates.tokens
        if updates:
            tables.append(updates.to_arrow())
    return pa.concat_tables(tables), tokens


def test_submit_many_answers_in_order(
    asked: list[galileo.Submission], submitted: list[Submitted]
) -> None:
    assert [one.id for one in submitted] == [one.id for one in asked]
    assert all(one.error is None and one.coordinator and one.token for one in submitted)


def test_submit_many_repeated_changes_nothing(
    client: galileo.Client,
    dataset: str,
    asked: list[galileo.Submission],
    submitted: list[Submitted],
) -> None:
    again = client.submit_many(asked)
    assert [(one.id, one.token, one.coordinator) for one in again] == [
        (one.id, one.token, one.coordinator) for one in submitted
    ]
    listed = [one.id for one in client.list_ccqs() if one.dataset == dataset]
    assert sorted(listed) == sorted(one.id for one in asked)


def test_fetch_many_delivers_each_label_once(
    client: galileo.Client, dataset: str, submitted: list[Submitted]
) -> None:
    tokens = {one.id: one.token for one in submitted}
    expected = {
        one.id: len(client.query(dataset, q)) for one, q in zip(submitted, QUERIES, strict=True)
    }
    found, tokens = delivered(client, tokens, sum(expected.values()))
    assert {row["values"]: row["counts"] for row in pc.value_counts(found["ccq"]).to_pylist()} == (
        expected
    )
    before = sum(expected.values())
    client.ingest(dataset, frame(5))
    expected = {
        one.id: len(client.query(dataset, q)) for one, q in zip(submitted, QUERIES, strict=True)
    }
    more, tokens = delivered(client, tokens, sum(expected.values()) - before)
    both = pa.concat_tables([found, more])
    assert {row["values"]: row["counts"] for row in pc.value_counts(both["ccq"]).to_pylist()} == (
        expected
    )
    places = both.select(["ccq", "partition", "sequence", "row"]).to_pandas()
    assert not places.duplicated().any()
    nothing = client.fetch_many(tokens)
    assert (len(nothing), nothing.more, nothing.is_news) == (0, False, False)
    single = client.fetch(submitted[0].id)
    assert len(single.labels) == expected[submitted[0].id]


def test_fetch_many_update_equals_a_single_fetch(
    client: galileo.Client, dataset: str, submitted: list[Submitted]
) -> None:
    tokens = {one.id: one.token for one in submitted}
    expected = sum(len(client.query(dataset, query)) for query in QUERIES)
    found: dict[str, set[str]] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while sum(map(len, found.values())) < expected and time.monotonic() < deadline:
        updates = client.fetch_many(tokens, labels_max=7)
        tokens = updates.tokens
        for ccq_id in updates:
            update = updates[ccq_id]
            assert update.labels.query
            found.setdefault(ccq_id, set()).update(update.labels.texts().to_pylist())
    for one in submitted:
        alone = client.fetch(one.id).labels
        assert found.get(one.id, set()) == set(alone.texts().to_pylist())


def test_submit_many_with_invalid_queries_submits_the_others(
    client: galileo.Client, dataset: str, asked: list[galileo.Submission]
) -> None:
    good = galileo.Submission(dataset, "value > 3", interval="1h", expiration="2h")
    wrong = [
        galileo.Submission(dataset, "valu > 3"),
        galileo.Submission("nowhere"),
        galileo.Submission(dataset, "value >"),
        galileo.Submission(dataset, interval="1h", expiration="1s"),
        galileo.Submission(dataset, id="No Name"),
        galileo.Submission(dataset, interval="never"),
        galileo.Submission(dataset, sampler=galileo.sampler("uniform", fraction=7.0)),
        replace(asked[0], query="value > 1000"),
    ]
    done = client.submit_many([wrong[0], good, *wrong[1:]])
    assert [type(one.error) for one in done] == [
        errors.UnknownProperty,
        type(None),
        errors.UnknownDataset,
        errors.QuerySyntaxError,
        *[errors.InputError] * 5,
    ]
    assert client.fetch_many({good.id: done[1].token}).errors == {}
    client.cancel(good.id)


def test_fetch_many_returns_errors_beside_updates(
    client: galileo.Client, dataset: str, submitted: list[Submitted]
) -> None:
    (gone,) = client.submit_many([galileo.Submission(dataset, "value > 3", interval="1h")])
    client.cancel(gone.id)
    tokens = {
        gone.id: gone.token,
        submitted[0].id: submitted[0].token,
        submitted[1].id: submitted[0].token,
        submitted[2].id: "no token",
        "ccq-0123": "",
    }
    deadline = time.monotonic() + TIMEOUT_S
    while gone.id not in (updates := client.fetch_many(tokens, wait="1s")).errors:
        assert time.monotonic() < deadline, "its coordinator did not hear that it was cancelled"
    kinds = {ccq_id: error.kind for ccq_id, error in updates.errors.items()}
    assert kinds == {
        gone.id: "ccq_cancelled",
        submitted[1].id: "invalid_token",
        submitted[2].id: "invalid_token",
        "ccq-0123": "unknown_ccq",
    }
    assert list(updates) == [submitted[0].id]


def test_watch_many_ends_when_all_have_ended(client: galileo.Client, dataset: str) -> None:
    made = [galileo.Submission(dataset, f"value > {n}", interval="0.2s") for n in (3, 5)]
    tokens = {one.id: one.token for one in client.submit_many(made)}
    got: list[UpdateBatch] = []
    for updates in client.watch_many(tokens):
        got.append(updates)
        if len(got) == 1:
            for ccq_id in tokens:
                client.cancel(ccq_id)
    over = {ccq_id for updates in got for ccq_id in updates.errors}
    assert over == set(tokens)
    assert any(len(updates) for updates in got)


def test_fetch_many_returns_windows(client: galileo.Client, dataset: str) -> None:
    window = galileo.Window.tumbling("6h")
    asked = galileo.Submission(dataset, interval="0.2s", window=window)
    (made,) = client.submit_many([asked])
    deadline = time.monotonic() + TIMEOUT_S
    while made.id not in (updates := client.fetch_many({made.id: made.token}, wait="30s")):
        assert time.monotonic() < deadline, "the first update did not come"
    changes = updates[made.id].windows
    assert sum(change.labels for change in changes) == len(updates[made.id].labels) > 0
    assert any(change.is_closed for change in changes)
    client.cancel(made.id)
