"""What people get wrong, end to end: each has its class, its advice, and loses nothing.

The last test prints all messages in one table, for a person to read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

import galileo
from galileo import errors
from galileo.model.schema import Feature, Schema
from galileo.wire.channel import MESSAGE_BYTES_MAX

Fresh = Callable[[str], str]

ROWS = 40


@dataclass
class Refusals:
    """The messages of this module, in the order in which they came."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    @contextmanager
    def refusal(self, case: str, cls: type[errors.GalileoError]) -> Iterator[list[Any]]:
        """Expects an error of exactly this class; the list then holds it."""
        caught: list[Any] = []
        with pytest.raises(errors.GalileoError) as raised:
            yield caught
        error = raised.value
        self.rows.append((case, error.kind, error.message))
        assert type(error) is cls, f"got {type(error).__name__}: {error}"
        caught.append(error)


@pytest.fixture(scope="module")
def refusals() -> Refusals:
    return Refusals()


def schema(name: str, **options: Any) -> Schema:
    features = [Feature("temperature", "K"), Feature("station", type="text", indexed=False)]
    return Schema(name, features, geohash_precision=3, **options)


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(2014)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(-90, 90, rows),
            "longitude": rng.uniform(-180, 180, rows),
            "time": pd.Timestamp("2014-03-01", tz="UTC"),
            "temperature": rng.uniform(250, 310, rows),
            "station": [f"station {number}" for number in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("mistakes")
    client.create_dataset(schema(name))
    client.ingest(name, frame(), producer="before")
    return name


@pytest.fixture(autouse=True)
def _nothing_is_lost(client: galileo.Client, dataset: str) -> Iterator[None]:
    yield
    labels = client.query(dataset)
    assert labels.complete
    assert sorted(client.read(labels).column("station").to_pylist()) == sorted(frame()["station"])


# --- queries -------------------------------------------------------------------------------------

QUERIES: dict[str, tuple[str, type[errors.GalileoError], list[str], dict[str, Any]]] = {
    "an unknown property": (
        "temprature > 290",
        errors.UnknownProperty,
        ["temprature", "temperature"],
        {"property": "temprature", "nearest": "temperature", "position": 0},
    ),
    "a feature that is not indexed": (
        "temperature > 290 AND station = 'x'",
        errors.UnsupportedQuery,
        ["station", "index"],
        {},
    ),
    "malformed CQL2": (
        "temperature > 290 AND",
        errors.QuerySyntaxError,
        ["line 1, column 22", "expected", "^"],
        {"position": 21},
    ),
    "malformed CQL2 JSON": ('{"op": ', errors.QuerySyntaxError, ["CQL2 JSON"], {"position": 7}),
    "a number against a text": (
        "temperature > 'warm'",
        errors.UnsupportedQuery,
        ["float feature 'temperature'", '"warm"'],
        {},
    ),
    "a polygon of two points": (
        "S_INTERSECTS(geometry, POLYGON((0 0, 1 1, 0 0)))",
        errors.InputError,
        ["olygon"],
        {},
    ),
    "a box upside down": (
        "S_INTERSECTS(geometry, BBOX(0, 50, 10, 40))",
        errors.InputError,
        ["50", "40"],
        {},
    ),
    "a time that is none": (
        "datetime > TIMESTAMP('yesterday')",
        errors.UnsupportedQuery,
        ["yesterday"],
        {},
    ),
    "a geohash that is none": ("geohash LIKE 'aa%'", errors.InputError, ["'aa"], {}),
}


@pytest.mark.parametrize("case", QUERIES)
def test_a_wrong_query(client: galileo.Client, dataset: str, refusals: Refusals, case: str) -> None:
    text, cls, words, details = QUERIES[case]
    with refusals.refusal(case, cls) as caught:
        client.query(dataset, text)
    assert all(word in caught[0].message for word in words), caught[0].message
    assert details.items() <= caught[0].details.items()


@pytest.mark.parametrize("case", QUERIES)
def test_a_wrong_continuous_query_is_refused_before_it_begins(
    client: galileo.Client, dataset: str, case: str
) -> None:
    text, cls, _, _ = QUERIES[case]
    with pytest.raises(cls):
        client.submit(dataset, text, interval="1s", expiration="1h")
    assert dataset not in {one.dataset for one in client.list_ccqs()}


# --- observations --------------------------------------------------------------------------------

TABLES: dict[str, tuple[Callable[[pd.DataFrame], Any], list[str], dict[str, Any]]] = {
    "latitude 91": (
        lambda data: data.assign(
            latitude=np.where(np.arange(len(data)) == 3, 91, data["latitude"])
        ),
        ["latitude from -90 to 90", "91.0", "row 3", "nothing of this table was stored"],
        {"row": 3},
    ),
    "longitude -181": (
        lambda data: data.assign(longitude=-181.0),
        ["longitude from -180 to 360", "-181.0", "row 0"],
        {"row": 0},
    ),
    "a wrong column type": (
        lambda data: data.assign(temperature="warm"),
        ["float values in column 'temperature'", "string", "convert the column first"],
        {},
    ),
    "a missing column": (
        lambda data: data.drop(columns="temperature"),
        ["missing: temperature", "fill a missing feature with nulls"],
        {},
    ),
    "a misspelt column": (
        lambda data: data.rename(columns={"temperature": "temprature"}),
        ["unknown: temprature (did you mean temperature?)", "Rename or drop"],
        {},
    ),
    "a column too many": (
        lambda data: data.assign(humidity=3.0),
        ["unknown: humidity", "drop columns"],
        {},
    ),
    "times as numbers": (
        lambda data: data.assign(time=1_393_632_000),
        ["times in column 'time'", "int64", "convert numbers first"],
        {},
    ),
    "a missing time": (
        lambda data: data.assign(time=[pd.NaT, *data["time"][1:]]),
        ["value in every row of column 'time'", "row 0"],
        {"row": 0},
    ),
    "no table at all": (lambda _: [3], ["a DataFrame (pandas", "got int"], {}),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_wrong_table(client: galileo.Client, dataset: str, refusals: Refusals, case: str) -> None:
    change, words, details = TABLES[case]
    with refusals.refusal(case, errors.InvalidObservations) as caught:
        client.ingest(dataset, change(frame()))
    assert all(word in caught[0].message for word in words), caught[0].message
    assert details.items() <= caught[0].details.items()


def test_a_wrong_batch_size(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    with refusals.refusal("batches of no rows", errors.InputError):
        client.ingest(dataset, frame(), batch_rows=0)


def test_a_wrong_producer(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    with refusals.refusal("a producer with a blank", errors.InputError) as caught:
        client.ingest(dataset, frame(), producer="my radar")
    assert "'my radar'" in caught[0].message


def test_a_batch_number_used_twice(
    client: galileo.Client, dataset: str, refusals: Refusals
) -> None:
    with refusals.refusal("one batch number for two batches", errors.BatchConflict) as caught:
        client.ingest(dataset, frame().iloc[:20], producer="before")
    assert "give each producer a name of its own" in caught[0].message


def test_a_batch_above_the_limit_of_a_message(
    client: galileo.Client, dataset: str, refusals: Refusals
) -> None:
    wide = frame(1).assign(station="x" * MESSAGE_BYTES_MAX)
    with refusals.refusal("a row of 64 MB", errors.MessageTooLarge) as caught:
        client.ingest(dataset, wide)
    assert "send smaller batches" in caught[0].message


# --- datasets ------------------------------------------------------------------------------------


def test_an_unknown_dataset(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    wrong = dataset.replace("mistakes", "mistake")
    with refusals.refusal("an unknown dataset, asked", errors.UnknownDataset) as asked:
        client.query(wrong)
    with refusals.refusal("an unknown dataset, filled", errors.UnknownDataset) as filled:
        client.ingest(wrong, frame())
    with refusals.refusal("an unknown dataset, watched", errors.UnknownDataset) as watched:
        client.submit(wrong, interval="1s", expiration="1h")
    for (error,) in (asked, filled, watched):
        assert f"did you mean '{dataset}'?" in error.message
        assert str(error).endswith("; create it first with create_dataset")
        assert error.details["nearest"] == dataset


def test_a_dataset_that_exists(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    with refusals.refusal("a dataset created twice", errors.DatasetExists) as caught:
        client.create_dataset(schema(dataset))
    assert "go on with it" in caught[0].message
    assert caught[0].details["same"] is True
    with refusals.refusal("a dataset created anew", errors.DatasetExists) as caught:
        client.create_dataset(schema(dataset, time_bucket="1d"))
    assert "choose another name" in caught[0].message
    assert caught[0].details["same"] is False
    assert client.schema(dataset) == schema(dataset)


def test_a_wrong_schema(refusals: Refusals) -> None:
    with refusals.refusal("a feature named like a coordinate", errors.InvalidSchema):
        Feature("time")
    with refusals.refusal("a dataset name with capitals", errors.InvalidSchema):
        schema("NAM")


# --- continuous queries --------------------------------------------------------------------------

SUBMISSIONS: dict[str, tuple[dict[str, Any], type[errors.GalileoError], str]] = {
    "an interval of 1 ms": ({"interval": "1ms"}, errors.InputError, "interval of at least 0.05 s"),
    "an interval that is none": ({"interval": "soon"}, errors.InputError, "got 'soon'"),
    "an expiration within the interval": (
        {"interval": "1h", "expiration": "1m"},
        errors.InputError,
        "got an interval of 3,600 s and an expiration of 60 s; choose a shorter interval",
    ),
    "an expiration in ten years": (
        {"expiration": "4000d"},
        errors.InputError,
        "at most 31,622,400 s, got 345,600,000 s",
    ),
    "an unknown sampler": (
        {"sampler": galileo.sampler("unifrom")},
        errors.UnknownSampler,
        "did you mean 'uniform'?",
    ),
    "a wrong option of a sampler": (
        {"sampler": galileo.sampler("uniform", fraction=2)},
        errors.InputError,
        "fraction",
    ),
    "an unknown compression": ({"compression": "zip"}, errors.InputError, "'none' or 'lz4'"),
}


@pytest.mark.parametrize("case", SUBMISSIONS)
def test_a_wrong_submission(
    client: galileo.Client, dataset: str, refusals: Refusals, case: str
) -> None:
    changes, cls, words = SUBMISSIONS[case]
    arguments: dict[str, Any] = {"interval": "1s", "expiration": "1h"} | changes
    with refusals.refusal(case, cls) as caught:
        client.submit(dataset, **arguments)
    assert words in caught[0].message
    assert dataset not in {one.dataset for one in client.list_ccqs()}


def test_tokens_that_do_not_fit(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    one, other = (
        client.submit(dataset, f"temperature > {kelvin}", interval="1h", expiration="2h")
        for kelvin in (270, 280)
    )
    try:
        with refusals.refusal("a token of another CCQ", errors.InvalidToken) as caught:
            client.fetch(one.id, token=other.token)
        assert one.id in caught[0].message
        assert other.id in caught[0].message
        middle = len(one.token) // 2
        damaged = one.token[:middle] + "AA" + one.token[middle + 2 :]
        with refusals.refusal("a damaged token", errors.InvalidToken):
            client.fetch(one.id, token=damaged)
        with refusals.refusal("a token that is none", errors.InvalidToken):
            client.fetch(one.id, token="Bürgermeister")
        update = client.fetch(one.id, token=one.token)
        assert (len(update.labels), update.token) == (0, one.token)
    finally:
        client.cancel(one.id)
        client.cancel(other.id)
    with refusals.refusal("a CCQ that was cancelled", errors.CcqCancelled):
        client.fetch(one.id, token=one.token)


@pytest.mark.slow
def test_a_ccq_that_expired(client: galileo.Client, dataset: str, refusals: Refusals) -> None:
    made = client.submit(dataset, interval="1s", expiration="5s")
    with refusals.refusal("a CCQ that expired", errors.CcqExpired) as caught:
        client.fetch(made.id, token=made.token, wait="60s")
    assert made.id in caught[0].message
    assert len(client.read(made.initial)) == ROWS
    assert made.id not in {one.id for one in client.list_ccqs()}


def test_a_ccq_that_never_was(client: galileo.Client, refusals: Refusals) -> None:
    with refusals.refusal("an unknown CCQ", errors.UnknownCcq) as caught:
        client.fetch("ccq-0123")
    assert "ccq-0123" in caught[0].message
    with refusals.refusal("an unknown CCQ, cancelled", errors.UnknownCcq):
        client.cancel("ccq-0123")


def test_waiting_for_ever(client: galileo.Client, refusals: Refusals) -> None:
    with refusals.refusal("a wait of two hours", errors.InputError) as caught:
        client.fetch("ccq-0123", wait="2h")
    assert "0 to 60 s" in caught[0].message


# --- no node --------------------------------------------------------------------------------


def test_no_node_reachable(dataset: str, refusals: Refusals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with galileo.connect(address, timeout="1s") as lonely:
        with refusals.refusal("no node reachable, asked", errors.Unavailable) as caught:
            lonely.query(dataset)
        assert address in caught[0].message
        assert "check that the cluster runs" in caught[0].message
        assert caught[0].details["addresses"] == [address]
        with refusals.refusal("no node reachable, filled", errors.Unavailable):
            lonely.ingest(dataset, frame())


def test_one_wrong_address_among_right_ones_is_no_trouble(
    cluster: galileo.LocalCluster, dataset: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with galileo.connect(address, cluster.addresses[2], timeout="1s") as one:
        assert len(one.read(one.query(dataset))) == ROWS


# --- for people ----------------------------------------------------------------------------------


def test_the_messages_can_be_read_at_once(
    refusals: Refusals, capsys: pytest.CaptureFixture[str]
) -> None:
    width = max((len(case) for case, _, _ in refusals.rows), default=0)
    with capsys.disabled():
        print(f"\n\nWhat people read ({len(refusals.rows)} mistakes):\n")
        for case, kind, message in refusals.rows:
            first, *rest = message.splitlines()
            print(f"  {case:{width}}  [{kind}] {first}")
            for line in rest:
                print(f"  {'':{width}}  {line}")
    assert len({case for case, _, _ in refusals.rows}) == len(refusals.rows)
    assert not [case for case, _, message in refusals.rows if "Traceback" in message]
