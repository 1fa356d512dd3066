"""Windows of continuous queries, on real nodes, with data that comes late."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.client import Spool, Update
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import InputError, InvalidToken
from galileo.model.windows import Window, WindowProgress
from galileo.wire import token

WAIT = "30s"


def at(hour: float, *values: float) -> pd.DataFrame:
    """One observation for each value, all in one block of 2014-06-01, and hence in one commit."""
    return pd.DataFrame(
        {
            "latitude": 47.0,
            "longitude": 8.0,
            "time": pd.Timestamp("2014-06-01T00:00Z") + pd.Timedelta(hours=hour),
            "value": np.array(values, dtype=float),
        }
    )


def result(update: Update) -> list[tuple[int, int, str]]:
    """Hour of the day, labels and state of each window of an update."""
    return [(one.start.hour, one.labels, one.state) for one in update.windows]


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("windowed")
    features = [galileo.Feature("value")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3, time_bucket="30m"))
    return name


@pytest.fixture
def submit(client: galileo.Client, dataset: str) -> Iterator[Callable[..., galileo.Ccq]]:
    made: list[galileo.Ccq] = []

    def submitted(window: Window | None) -> galileo.Ccq:
        made.append(
            client.submit(
                *(dataset, "value > 0"), interval="250ms", expiration="10m", window=window
            )
        )
        return made[-1]

    yield submitted
    for one in made:
        client.cancel(one.id)


def test_window_closes_by_event_time_and_reopens_for_late_labels(client, dataset, submit):
    client.ingest(dataset, at(0, 1, 2, 3))
    ccq = submit(Window.tumbling("1h"))
    assert [(one.labels, one.state) for one in ccq.windows] == [(3, "open")]
    watched = client.watch(ccq.id, token=ccq.token)

    client.ingest(dataset, at(0.5, 4))
    update = next(watched)
    assert (result(update), update.clock.minute) == ([(0, 1, "open")], 30)
    # Nothing of this matches, and it says that the hour is over.
    client.ingest(dataset, at(1.0, -1))
    update = next(watched)
    assert (result(update), len(update.labels), update.clock.hour) == ([(0, 0, "closed")], 0, 1)
    client.ingest(dataset, at(0.25, 5, 6))
    update = next(watched)
    assert result(update) == [(0, 2, "reopened")]
    assert len(update.in_window(update.windows[0])) == 2
    watched.close()
    # A fetch from an earlier token returns the same at every node.
    again = client.fetch(ccq.id, token=ccq.token)
    assert result(again) == [(0, 3, "closed")]
    everything = client.fetch(ccq.id)
    assert result(everything) == [(0, 6, "closed")]


@pytest.mark.slow
def test_window_sliding_with_lateness_stays_open(client, dataset, submit):
    ccq = submit(Window.sliding("2h", slide="1h", lateness="1h"))
    assert (ccq.windows, ccq.clock_us) == ((), None)
    client.ingest(dataset, at(2, 1, 2))
    first = client.fetch(ccq.id, token=ccq.token, wait=WAIT)
    assert result(first) == [(1, 2, "open"), (2, 2, "open")]
    client.ingest(dataset, at(2.5, -1))
    client.ingest(dataset, at(1, 3))
    second = client.fetch(ccq.id, token=first.token, wait=WAIT)
    assert result(second) == [(0, 1, "open"), (1, 1, "open")]
    client.ingest(dataset, at(4.5, 4))
    third = client.fetch(ccq.id, token=second.token, wait=WAIT)
    assert result(third) == [
        (0, 0, "closed"),
        (1, 0, "closed"),
        (3, 1, "open"),
        (4, 1, "open"),
    ]


def test_spool_collects_the_labels_of_a_window(client, dataset, submit, tmp_path):
    ccq = submit(Window.tumbling("1h"))
    with Spool(tmp_path / "windows.spool") as spool:
        watched = client.watch(ccq.id, token=ccq.token, spool=spool)
        for hour, values in ((0, (1, 2)), (0.5, (3,)), (1, (4,)), (0, (5,))):
            client.ingest(dataset, at(hour, *values))
            next(watched)
        watched.close()
    with Spool(tmp_path / "windows.spool") as spool:
        assert [(one.labels, one.is_closed) for one in spool.windows()] == [(4, True), (1, False)]
        first = spool.window("2014-06-01T00:00Z")
        assert sorted(spool.labels(first).to_pandas()["value"]) == [1, 2, 3, 5]


@pytest.mark.slow
def test_ccq_commands_show_windows(cluster, client, dataset, tmp_path: Path):
    def run(*words: str, fails: int = 0) -> str:
        done = CliRunner().invoke(main, ["--node", cluster.addresses[1], "ccq", *words])
        assert done.exit_code == fails, done.output
        return done.output

    client.ingest(dataset, at(0, 1, 2))
    client.ingest(dataset, at(1, 3))
    submitting = ("submit", dataset, "value > 0", "--interval", "250ms")
    windows = ("--window", "tumbling:1h", "--lateness", "10m")
    ccq = json.loads(run(*submitting, *windows, "--json"))
    try:
        (listed,) = [one for one in json.loads(run("list", "--json")) if one["id"] == ccq["id"]]
        assert listed["window"] == "tumbling:1h, lateness 10m"
        shown = json.loads(run("watch", ccq["id"], "--from", "start", "--updates", "1", "--json"))
        assert shown["clock"] == "2014-06-01T01:00:00Z"
        assert [(one["new"], one["state"]) for one in shown["windows"]] == [
            (2, "open"),
            (1, "open"),
        ]
        client.ingest(dataset, at(1.5, 4))
        assert len(client.fetch(ccq["id"], token=ccq["token"], wait=WAIT).labels) == 1
        spool = ("--spool", str(tmp_path / "x.spool"))
        closed = run("watch", ccq["id"], *spool, "--updates", "1", "--closed-only")
        assert "window 2014-06-01T00:00:00Z to 2014-06-01T01:00:00Z closed\n" in closed
        assert "\n2 labels\n" in closed
        client.ingest(dataset, at(0, 5))
        late = json.loads(
            run("watch", ccq["id"], *spool, "--updates", "1", "--closed-only", "--json")
        )
        assert (late["state"], late["new"]) == ("reopened", 1)
        assert sorted(one["value"] for one in late["labels"]) == [1, 2, 5]
        held = json.loads(run("spool", spool[1], "--json"))["windows"]
        assert [(one["labels"], one["state"]) for one in held] == [(3, "closed"), (2, "open")]
        words = run("watch", ccq["id"], "--from", "start", "--updates", "1")
        assert "window 2014-06-01T00:00:00Z to 2014-06-01T01:00:00Z closed\n" in words
    finally:
        client.cancel(ccq["id"])
    assert "--lateness needs --window" in run(*submitting, "--lateness", "10m", fails=2)
    assert "'tumbling:1h'" in run(*submitting, "--window", "hourly", fails=2)


def test_ccq_watch_closed_only_without_windows_is_refused(cluster, submit):
    ccq = submit(None)
    words = ["--node", cluster.addresses[0], "ccq", "watch", ccq.id, "--closed-only"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "has none" in done.output


def test_window_over_commit_time_is_refused(client, dataset, submit):
    with raises(InputError):
        submit(Window.tumbling("1h", over="commit"))


def test_fetch_with_impossible_windows_in_the_token_is_refused(client, submit):
    ccq = submit(Window.tumbling("1h"))
    forged = token.Position(EMPTY_CURSOR, WindowProgress(0, ((2**50, 1),))).encode(ccq.id)
    with raises(InvalidToken):
        client.fetch(ccq.id, token=forged)
