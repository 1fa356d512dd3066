"""Named readers of a dataset on real nodes, as users see them."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.cursor import Cursor
from galileo.errors import InputError, UnknownDataset

SETTINGS = {
    "storage": {
        "segment_bytes_max": 4_096,
        "compaction": False,
        "retention_check_s": 600.0,
        "retention_min_age_s": 0.1,
    },
    "membership": {"failure_timeout_s": 60.0},
}
"""However busy this machine is, no node holds the other one dead."""
FEATURES = [galileo.Feature("number")]


@pytest.fixture(scope="module")
def keeping(no_evaluator: dict[str, Any]) -> Iterator[galileo.LocalCluster]:
    settings = SETTINGS | {"evaluator": no_evaluator}
    with galileo.LocalCluster(nodes=2, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(keeping: galileo.LocalCluster) -> galileo.Client:
    return keeping.client()


def observe(client: galileo.Client, dataset: str) -> Cursor:
    """Ingests observations of three hours ago into several files; the cursor behind them."""
    at = dt.datetime.now(dt.UTC) - dt.timedelta(hours=3)
    rows = pd.DataFrame(
        {
            "latitude": [number % 80 for number in range(400)],
            "longitude": [number % 170 for number in range(400)],
            "time": at,
            "number": range(400),
        }
    )
    client.ingest(dataset, rows, batch_rows=20)
    return client.query(dataset).frontier


def apply(client: galileo.Client, dataset: str) -> set[str]:
    """Applies retention to all commits; the readers that hold some back."""
    client.apply_retention(dataset)
    deadline = time.monotonic() + 60.0
    while True:
        time.sleep(0.2)
        reports = client.apply_retention(dataset)
        held = [part for report in reports for part in report.held_back]
        # Until nodes know which continuous queries there are, readers are unknown.
        if all(part["readers"] for part in held) or time.monotonic() > deadline:
            return {name for part in held for name in part["readers"]}


def run(cluster: galileo.LocalCluster, *words: str) -> Any:
    done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words, "--json"])
    assert done.stdout, (done.output, done.exc_info)
    return json.loads(done.output)


@pytest.mark.slow
def test_retention_waits_for_named_readers(
    keeping: galileo.LocalCluster, client: galileo.Client
) -> None:
    client.create_dataset(galileo.Schema("air", FEATURES), retention=galileo.Retention("30m"))
    assert client.readers("air") == []
    first = observe(client, "air")
    client.advance_reader("air", "nightly", Cursor(), hold="7d")
    client.advance_reader("air", "yearly", first, hold="1d")
    assert apply(client, "air") == {"nightly"}
    assert client.count("air") == 400

    nightly, yearly = client.readers("air")
    assert (nightly.name, nightly.hold_s, nightly.cursor) == ("nightly", 7 * 86_400.0, Cursor())
    assert (nightly.behind, yearly.behind) == (sum(first.values()), 0)
    shown = run(keeping, "retention", "show", "air")
    assert [reader["name"] for reader in shown["readers"]] == ["nightly", "yearly"]
    assert {held["held back by"] for held in shown["held_back"]} == {"nightly"}
    [finding] = [one for one in run(keeping, "doctor")["findings"] if "is behind" in one["what"]]
    assert "reader 'nightly' of dataset 'air'" in finding["what"]

    # A position never goes back.
    client.advance_reader("air", "nightly", first, hold="7d")
    client.advance_reader("air", "nightly", Cursor(), hold="7d")
    assert client.readers("air")[0].cursor == first
    assert apply(client, "air") == set()
    assert client.count("air") < 400

    # What is older than the policy and the hold goes, once a reader has stood still for its hold.
    client.advance_reader("air", "yearly", first, hold="1h")
    observe(client, "air")
    assert apply(client, "air") == {"nightly", "yearly"}
    client.advance_reader("air", "yearly", first, hold="10ms")
    assert apply(client, "air") == {"nightly"}
    run(keeping, "retention", "drop-reader", "air", "nightly")
    assert [reader.name for reader in client.readers("air")] == ["yearly"]
    assert apply(client, "air") == set()
    assert client.count("air") < 400


def test_readers_do_not_hold_what_a_policy_may_pass(client: galileo.Client) -> None:
    policy = galileo.Retention("30m", past_readers=True)
    client.create_dataset(galileo.Schema("passed", FEATURES), retention=policy)
    observe(client, "passed")
    client.advance_reader("passed", "nightly", Cursor(), hold="7d")
    assert apply(client, "passed") == set()
    assert client.count("passed") < 400


def test_readers_of_a_dropped_dataset_do_not_count(client: galileo.Client) -> None:
    schema = galileo.Schema("again", FEATURES)
    client.create_dataset(schema)
    client.advance_reader("again", "nightly", observe(client, "again"), hold="7d")
    client.drop_dataset("again")
    with raises(UnknownDataset):
        client.readers("again")
    client.create_dataset(schema)
    assert client.readers("again") == []
    client.advance_reader("again", "nightly", Cursor(), hold="7d")
    assert client.readers("again")[0].cursor == Cursor()


def test_wrong_readers_are_refused(client: galileo.Client) -> None:
    client.create_dataset(galileo.Schema("wrong", FEATURES))
    with raises(InputError, expected="reader_name"):
        client.advance_reader("wrong", "a/b", Cursor(), hold="7d")
    with raises(InputError, expected="hold", bound=90 * 86_400.0):
        client.advance_reader("wrong", "nightly", Cursor(), hold="91d")
    with raises(InputError, expected="positive_duration"):
        client.advance_reader("wrong", "nightly", Cursor(), hold=0)
    with raises(InputError):
        client.advance_reader("wrong", "nightly", {0: 1}, hold="7d")  # type: ignore[arg-type]
    with raises(UnknownDataset, nearest="wrong"):
        client.advance_reader("wrnog", "nightly", Cursor(), hold="7d")
    client.advance_reader("wrong", "nightly", Cursor(), hold="7d")
    with raises(InputError, reader="nightyl", nearest="nightly"):
        client.drop_reader("wrong", "nightyl")
