"""Channels of a cluster of processes, by the client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from executions import await_executed
from expected_errors import raises
from parameters import keep_quick

import galileo
from galileo.errors import (
    DatasetExists,
    InputError,
    InvalidObservations,
    InvalidToken,
    UnknownDataset,
)
from galileo.packing.arrow_streams import STREAM_BYTES_MAX

NOON = pd.Timestamp("2026-05-02T12:00Z")
QUIET = "100ms"
"""Followers wait for so long when all is executed."""
Pair = tuple[str, int]


def observations(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Observations with these values; others have defaults."""
    whole = {"latitude": 1.0, "longitude": 1.0, "time": NOON, "number": 0, "kind": "a"}
    return pd.DataFrame([whole | {"temperature": 9.0} | row for row in rows])


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps the definitions of channels."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def air(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """A dataset with numbered observations."""
    name = fresh_name("air")
    features = [
        galileo.Feature("number", type="int"),
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("kind", type="text"),
    ]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    return name


def observe(client: galileo.Client, air: str, channel: str, rows: list[dict[str, Any]]) -> None:
    """Ingests observations, and waits until all partitions have executed them."""
    await_executed(client, channel, client.ingest(air, observations(rows)).reached)


class World:
    """Observations, subscriptions, and all that is due to their brokers."""

    def __init__(self, client: galileo.Client, air: str, channel: str, seed: int) -> None:
        self.client, self.air, self.channel = client, air, channel
        self.chance = random.Random(seed)
        self.subscriptions: dict[str, tuple[str, float, str]] = {}
        self.due: dict[str, set[Pair]] = {"east": set(), "west": set()}
        self.possible: dict[str, set[Pair]] = {"east": set(), "west": set()}
        self.number = 0

    def subscribe(self) -> None:
        rows = {
            f"s{self.chance.randrange(40)}": (
                self.chance.choice(["east", "west"]),
                float(self.chance.choice([10, 20, 30])),
                self.chance.choice(["a", "b"]),
            )
            for _ in range(6)
        }
        brokers, least, kinds = zip(*rows.values(), strict=True)
        table = pd.DataFrame({"id": [*rows], "broker": brokers, "least": least, "kind": kinds})
        self.client.subscribe(self.channel, table)
        self.subscriptions |= rows

    def unsubscribe(self) -> None:
        gone = self.chance.sample(sorted(self.subscriptions), k=min(3, len(self.subscriptions)))
        self.client.unsubscribe(self.channel, gone)
        for name in gone:
            del self.subscriptions[name]

    def observe(self) -> None:
        """Some observations, once they are executed."""
        rows = []
        for _ in range(5):
            self.number += 1
            rows.append(
                {
                    "latitude": self.chance.uniform(-60, 60),
                    "longitude": self.chance.uniform(-170, 170),
                    "number": self.number,
                    "temperature": self.chance.uniform(0, 40),
                    "kind": self.chance.choice(["a", "b"]),
                }
            )
        observe(self.client, self.air, self.channel, rows)
        for name, (broker, least, kind) in self.subscriptions.items():
            for row in rows:
                if row["temperature"] > least and row["kind"] == kind:
                    self.due[broker].add((name, row["number"]))


def followed(client: galileo.Client, channel: str, broker: str, token: str = "") -> Any:
    """The pairs of a broker in their order, until there are none, and the last token."""
    pairs: list[Pair] = []
    for batch in client.follow(channel, broker, token=token, wait=QUIET):
        table = batch.to_arrow()
        assert len(batch) == table.num_rows
        pairs += zip(table["subscription"].to_pylist(), table["number"].to_pylist(), strict=True)
        token = batch.token
    return pairs, token


@pytest.mark.parametrize("rounds", keep_quick([2, 4], 2))
def test_each_subscription_gets_what_it_matches_once(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str], rounds: int
) -> None:
    """Each step waits for its executions, so that what is due is known exactly."""
    channel = fresh_name("alerts")
    template = "temperature > :least AND kind = :kind"
    client.create_channel(galileo.Channel(channel, air, template, period="200ms"))
    world = World(client, air, channel, seed=7)
    tokens, got = {"east": "", "west": ""}, {"east": [], "west": []}
    for _ in range(rounds):
        world.subscribe()
        world.observe()
        world.observe()
        for broker in tokens:
            pairs, tokens[broker] = followed(client, channel, broker, tokens[broker])
            got[broker] += pairs
        world.unsubscribe()
        world.observe()
    for broker, token in tokens.items():
        got[broker] += followed(client, channel, broker, token)[0]
        assert len(got[broker]) == len(set(got[broker])), "a pair came twice"
        assert set(got[broker]) == world.due[broker]
        assert sorted(followed(client, channel, broker)[0]) == sorted(got[broker])
    assert got["east"]
    assert got["west"]


@pytest.mark.slow
def test_an_execution_is_delivered_however_much_matches_at_once(
    client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    """A new subscription matches more at once than one message of a caller may bring."""
    reports, channel = fresh_name("reports"), fresh_name("long")
    features = [galileo.Feature("wind"), galileo.Feature("report", type="text", indexed=False)]
    client.create_dataset(galileo.Schema(reports, features))
    template = "wind > :least"
    client.create_channel(galileo.Channel(channel, reports, template, period="200ms", new="either"))
    texts = [f"{number:04}" + 80_000 * "-" for number in range(1_000)]
    columns = {"latitude": 10.0, "longitude": 20.0, "time": "2026-01-01T00:00Z", "wind": 2.0}
    receipt = client.ingest(reports, pd.DataFrame({"report": texts}).assign(**columns))
    await_executed(client, channel, receipt.reached)
    client.subscribe(channel, pa.table({"id": ["all"], "least": [1.0]}), broker="me")
    batch = next(iter(client.follow(channel, "me", wait="30s")))
    assert batch.observations.nbytes > STREAM_BYTES_MAX
    assert sorted(batch.to_arrow()["report"].to_pylist()) == texts


@pytest.mark.slow
async def test_calls_with_one_subscription_each_fail_alone(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    air: str,
    fresh_name: Callable[[str], str],
) -> None:
    channel = fresh_name("single")
    client.create_channel(galileo.Channel(channel, air, ":query", period="1h"))
    texts = {f"s{n}": "temprature > 30" if n % 10 == 9 else f"number = {n}" for n in range(60)}
    async with galileo.AsyncClient(*cluster.addresses) as users:
        outcomes = await asyncio.gather(
            *(
                users.subscribe(channel, {"id": [one], "query": [text]}, broker="me")
                for one, text in texts.items()
            ),
            return_exceptions=True,
        )
    refused = {one for one, text in texts.items() if "temprature" in text}
    for one, outcome in zip(texts, outcomes, strict=True):
        if one in refused:
            assert isinstance(outcome, InvalidObservations)
            assert (outcome.details["subscription"], outcome.details["row"]) == (one, 0)
        else:
            assert isinstance(outcome, galileo.Receipt)
            assert outcome.rows == 1
    stored = client.table(f"{channel}.subscriptions").rows
    assert {*stored["id"].to_pylist()} == texts.keys() - refused


def test_wrong_input_says_what_is_expected(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("wrong")
    channel = galileo.Channel(name, air, "temperature > :least")
    client.create_channel(channel)
    with pytest.raises(DatasetExists) as same:
        client.create_channel(channel)
    assert same.value.details["same"]
    with raises(InvalidObservations, expected="parameter", subscription="a"):
        client.subscribe(name, {"id": ["a"], "least": [1.0]})
    with raises(InvalidObservations, expected="parameter", subscription="a"):
        client.subscribe(name, {"id": ["a"]}, broker="me")
    with raises(InvalidObservations, expected="parameter", subscription="a"):
        client.upsert(f"{name}.subscriptions", {"id": ["a"], "broker": [""], "least": [1.0]})
    with raises(UnknownDataset, dataset="nothing"):
        client.subscribe("nothing", {"id": ["a"]}, broker="me")
    with raises(InputError, channel=name):
        client.drop_dataset(air)
    with raises(InputError, channel=name):
        client.drop_dataset(f"{name}.subscriptions")
    with raises(InputError, expected="dataset"):
        client.ingest(name, pd.DataFrame([{"latitude": 1.0}]))
    with raises(InvalidToken, expected="checksum"):
        next(client.follow(name, "me", token="nonsense"))
    [stored] = [one for one in client.channels() if one.name == name]
    client.drop_dataset(name)
    assert name not in {one.name for one in client.channels()}
    assert f"{name}.subscriptions" not in {one.name for one in client.tables()}
    client.create_channel(stored)
    again = client.subscribe(name, {"id": ["a"], "least": [1.0]}, broker="me")
    assert again.rows == 1, "the client has forgotten the table of the dropped channel"


def test_partitions_say_how_far_they_are(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    channel = fresh_name("status")
    client.create_channel(galileo.Channel(channel, air, "temperature > :least", period="100ms"))
    client.subscribe(
        channel, {"id": [f"s{n}" for n in range(50)], "least": [0.0] * 50}, broker="me"
    )
    observe(client, air, channel, [{"number": 3}])
    pairs, _ = followed(client, channel, "me")
    assert len(pairs) == 50
    partitions = client.describe_channel(channel)
    assert sum(one.subscriptions for one in partitions) == 50
    assert all(one.execution >= 1 and not one.failure and not one.behind for one in partitions)


@pytest.mark.slow
def test_fences_that_move_tell_who_enters_and_who_leaves(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    channel = fresh_name("moving")
    template = "number >= :least AND number <= :most"
    client.create_channel(
        galileo.Channel(channel, air, template, period="100ms", new="either", leave=True)
    )
    client.ingest(air, observations([{"number": number} for number in range(5)]))
    token = ""
    for least, most, entered, left in [
        (0, 1, {0, 1}, set()),
        (1, 3, {2, 3}, {0}),
        (9, 9, (), {1, 2, 3}),
    ]:
        fence = {"id": ["f"], "least": [float(least)], "most": [float(most)]}
        client.subscribe(channel, fence, broker="me")
        delivered: dict[bool, list[int]] = {False: [], True: []}
        for batch in client.follow(channel, "me", token=token, wait="1s"):
            for row in batch.to_arrow().select(["number", "left"]).to_pylist():
                delivered[row["left"]].append(row["number"])
            token = batch.token
        assert sorted(delivered[False]) == sorted(entered)
        assert sorted(delivered[True]) == sorted(left)


def test_a_broker_goes_on_at_the_position_that_it_has_stored(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    channel = fresh_name("positions")
    client.create_channel(galileo.Channel(channel, air, "temperature > :least", period="100ms"))
    client.subscribe(channel, {"id": ["s"], "least": [0.0]}, broker="me")
    assert client.position(channel, "me") == ""
    observe(client, air, channel, [{"number": 1}])
    pairs, token = followed(client, channel, "me")
    client.acknowledge(channel, "me", token)
    assert pairs == [("s", 1)]
    observe(client, air, channel, [{"number": 2}])
    position = client.position(channel, "me")
    assert followed(client, channel, "me", position)[0] == [("s", 2)]
    with raises(InvalidToken, expected="token_of_ccq"):
        client.acknowledge(channel, "other", token)


@pytest.mark.slow
def test_token_of_a_dropped_channel_is_none_of_its_successor(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    air: str,
    fresh_name: Callable[[str], str],
) -> None:
    """Although this client still knows the dropped one when it goes on."""
    name = fresh_name("again")
    hot = galileo.Channel(name, air, "temperature > :least", period="100ms")
    subscription = {"id": ["s"], "least": [0.0]}
    client.create_channel(hot)
    client.subscribe(name, subscription, broker="me")
    observe(client, air, name, [{"number": 1}])
    pairs, token = followed(client, name, "me")
    assert pairs == [("s", 1)]
    with cluster.client() as other:
        other.drop_dataset(name)
        other.create_channel(hot)
        other.subscribe(name, subscription, broker="me")
        observe(other, air, name, [{"number": 2}])
    with raises(UnknownDataset, dropped=name):
        list(client.follow(name, "me", token=token, wait=QUIET))
    with raises(InvalidToken, expected="token_of_ccq"):
        list(client.follow(name, "me", token=token, wait=QUIET))
    assert followed(client, name, "me")[0] == [("s", 2)]


@pytest.mark.slow
def test_answers_of_some_bytes_have_each_execution_once(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    """A broker without matches goes on behind the executions that were looked at."""
    channel = fresh_name("answers")
    client.create_channel(galileo.Channel(channel, air, "temperature > :least", period="100ms"))
    client.subscribe(channel, {"id": ["s", "t"], "least": [0.0, 1.0]}, broker="me")
    [nothing] = client.fetch_notifications(channel, "me")
    assert (nothing.execution, len(nothing), nothing.gone) == (0, 0, ())
    token, found = nothing.token, list[Pair]()
    for number in range(3):
        client.ingest(air, observations([{"number": number}]))
        while len(found) < 2 * (number + 1):
            for batch in client.fetch_notifications(
                channel, "me", token=token, wait=QUIET, bytes_max=1
            ):
                table, token = batch.to_arrow(), batch.token
                numbers = table["number"].to_pylist()
                found += zip(table["subscription"].to_pylist(), numbers, strict=True)
    assert sorted(found) == [(name, number) for name in "st" for number in range(3)]
    first = client.fetch_notifications(channel, "me", bytes_max=1)
    assert sum(map(len, first)) < len(found), "an answer ends with the execution that reaches it"
    [nothing] = client.fetch_notifications(channel, "other")
    assert len(nothing) == 0
    client.ingest(air, observations([{"number": 9}]))
    assert len(next(client.follow(channel, "me", token=token))) == 1
    [later] = client.fetch_notifications(channel, "other", token=nothing.token, wait="1ms")
    assert len(later) == 0
    assert later.token != nothing.token, "it does not look at these executions again"


def test_a_channel_of_a_name_that_was_dropped_is_another_one(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    channel = fresh_name("again")
    client.create_channel(galileo.Channel(channel, air, "temperature > :least"))
    client.subscribe(channel, {"id": ["s"], "least": [0.0]}, broker="me")
    client.drop_dataset(channel)
    client.create_channel(galileo.Channel(channel, air, "temperature < :most"))
    client.subscribe(channel, {"id": ["s"], "most": [0.0]}, broker="me")


@pytest.mark.slow
def test_notifications_and_answers_are_enriched_by_tables(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    """Rows that are stored before an observation are always there."""
    kinds, valid, zones, posts = (fresh_name(name) for name in ("kinds", "valid", "zones", "posts"))
    client.create_table(galileo.Table(kinds, {"kind": "text", "title": "text"}, "kind"))
    columns = {"kind": "text", "since": "time", "offset": "float"}
    client.create_table(galileo.Table(valid, columns, ["kind", "since"]))
    client.create_table(galileo.Table(zones, {"id": "text", "area": "geometry"}, "id"))
    client.create_table(galileo.Table(posts, {"id": "int", "at": "geometry"}, "id"))
    since = [NOON - pd.Timedelta("2h"), NOON, NOON + pd.Timedelta("1h")]
    client.upsert(valid, {"kind": ["a"] * 3, "since": since, "offset": [1.0, 2.0, 3.0]})
    client.upsert(zones, {"id": ["west", "all"], "area": [[-9, 0, 1, 9], [-180, -90, 180, 90]]})
    places = [f"POINT ({1 + number / 10} 1)" for number in range(5)]
    client.upsert(posts, {"id": [*range(5)], "at": places})
    steps = [
        galileo.Lookup(kinds, on="kind"),
        galileo.Lookup(valid, on="kind", as_of="since", columns=["offset"]),
        galileo.Within(zones),
        galileo.Nearest(posts, count=2, within="20km"),
    ]
    channel = fresh_name("hot")
    client.create_channel(
        galileo.Channel(channel, air, "temperature > :least", period="100ms", enrich=steps)
    )
    client.subscribe(channel, {"id": ["s"], "least": [0.0]}, broker="me")
    token = ""
    for number, title in enumerate(["first", "second", "third"]):
        client.upsert(kinds, {"kind": ["a"], "title": [title]})
        observe(client, air, channel, [{"number": number, "longitude": 1.01}])
        [batch] = client.follow(channel, "me", token=token, wait=QUIET)
        token = batch.token
        [row] = batch.to_pandas().to_dict("records")
        assert (row["number"], row[f"{kinds}.title"], row[f"{valid}.offset"]) == (
            number,
            title,
            2.0,
        )
        assert [one["id"] for one in row[zones]] == ["all"]
        assert [(one["id"], round(one["distance"])) for one in row[posts]] == [
            (0, 1112),
            (1, 10006),
        ]
    selected = client.select(
        air, columns=["number"], order_by="time", limit=10, enrich=[*steps[:2], steps[3]]
    )
    assert selected.column_names == ["number", f"{kinds}.title", f"{valid}.offset", posts]
    assert set(selected[f"{kinds}.title"].to_pylist()) == {"third"}
    assert [len(one) for one in selected[posts].to_pylist()] == [2] * 3
    whole = client.select(air, enrich=steps)
    assert whole.select(["number", posts]).sort_by("number") == selected.select(
        ["number", posts]
    ).sort_by("number")
    with raises(InputError, channel=channel):
        client.drop_dataset(zones)
    with raises(InputError, parameter="on"):
        client.select(air, enrich=[galileo.Lookup(kinds, on="number")])
    with raises(UnknownDataset, dataset="no-table"):
        client.select(air, enrich=[galileo.Within("no-table")])
    client.drop_dataset(channel)
    client.drop_dataset(zones)


@pytest.mark.slow
def test_follow_moves_an_acknowledged_position_past_what_is_not_for_its_broker(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    channel = fresh_name("advancing")
    client.create_channel(galileo.Channel(channel, air, "temperature > :least", period="100ms"))
    client.subscribe(channel, {"id": ["s"], "least": [5.0]}, broker="me")
    observe(client, air, channel, [{"number": 1}])
    _, token = followed(client, channel, "me")
    observe(client, air, channel, [{"number": 2, "temperature": 0.0}])
    assert followed(client, channel, "me", token)[0] == []
    assert client.position(channel, "me") == "", "nothing is acknowledged"
    client.acknowledge(channel, "me", "")
    assert followed(client, channel, "me", token)[0] == []
    assert client.position(channel, "me") == "", "the notification is not acknowledged"
    client.acknowledge(channel, "me", token)
    assert followed(client, channel, "me", token)[0] == []
    position = client.position(channel, "me")
    assert position != token
    observe(client, air, channel, [{"number": 3}])
    assert followed(client, channel, "me", position)[0] == [("s", 3)]
    assert client.position(channel, "me") == position


@pytest.mark.slow
def test_subscriptions_follow_the_rows_of_a_table(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    """An officer moves, and all who subscribed to the officer get what is near the new place."""
    officers, channel = fresh_name("officers"), fresh_name("near")
    columns = {"officer": "text", "place": "geometry"}
    client.create_table(galileo.Table(officers, columns, key="officer"))
    template = f'temperature > :least AND S_DWITHIN(geometry, "{officers}.place", 500)'
    lookup = {officers: ":officer"}
    client.create_channel(galileo.Channel(channel, air, template, lookup=lookup, period="100ms"))
    [made] = [one for one in client.channels() if one.name == channel]
    assert dict(made.parameters) == {"least": "float", "officer": "text"}
    people = {"id": ["a", "b", "c"], "least": [0.0] * 3, "officer": ["p", "p", "q"]}
    client.subscribe(channel, people, broker="me")
    token, found = "", []
    for number, (p, q) in enumerate([(1, 5), (2, 1), (5, 1)]):
        places = [f"POINT ({p} 1)", f"POINT ({q} 1)"]
        client.upsert(officers, {"officer": ["p", "q"], "place": places})
        observe(client, air, channel, [{"number": number, "longitude": 1.001, "latitude": 1.0}])
        pairs, token = followed(client, channel, "me", token)
        found.append(sorted(pairs))
    assert found == [[("a", 0), ("b", 0)], [("c", 1)], [("c", 2)]]
    client.delete(officers, ["q"])
    observe(client, air, channel, [{"number": 3, "longitude": 1.001, "latitude": 1.0}])
    assert followed(client, channel, "me", token)[0] == []
    with raises(InputError, channel=channel):
        client.drop_dataset(officers)
    client.drop_dataset(channel)
    client.drop_dataset(officers)


@pytest.mark.slow
def test_a_repetitive_channel_delivers_again_what_is_recent(
    client: galileo.Client, air: str, fresh_name: Callable[[str], str]
) -> None:
    """With texts of their own, groups, tables that enrich, and tokens."""
    kinds, channel = fresh_name("kinds"), fresh_name("now")
    client.create_table(galileo.Table(kinds, {"kind": "text", "title": "text"}, "kind"))
    client.upsert(kinds, {"kind": ["a"], "title": ["first"]})
    steps = [galileo.Lookup(kinds, on="kind")]
    repetitive = galileo.Channel(
        channel, air, ":query", period="100ms", new="none", age_max="1h", enrich=steps
    )
    client.create_channel(repetitive)
    now = pd.Timestamp.now("UTC")
    rows = [
        {"number": 1, "time": now, "temperature": 30.0},
        {"number": 2, "time": now - pd.Timedelta("2h"), "temperature": 30.0},
        {"number": 3, "time": now, "temperature": 10.0},
        {"number": 4, "time": now + pd.Timedelta("2h"), "temperature": 30.0},
    ]
    await_executed(client, channel, client.ingest(air, observations(rows)).reached)
    client.subscribe(channel, {"id": ["s", "t"], "query": ["temperature > 20"] * 2}, broker="me")
    token, executions, delivered = "", dict[int, list[int]](), set[str]()
    for batch in client.follow(channel, "me"):
        token = batch.token
        delivered.update(batch.to_arrow().column("subscription").to_pylist())
        executions.setdefault(batch.partition, []).append(batch.execution)
        assert len(batch.groups()) == 1
        assert sorted(batch.observations.column("number").to_pylist()) == [1, 4]
        assert set(batch.observations.column(f"{kinds}.title").to_pylist()) == {"first"}
        if delivered == {"s", "t"} and min(map(len, executions.values())) > 1:
            break
    for numbers in executions.values():
        assert numbers == sorted(set(numbers))
    again = next(client.follow(channel, "me"))
    assert again.execution == executions[again.partition][0]
    client.upsert(kinds, {"kind": ["a"], "title": ["second"]})
    for batch in client.follow(channel, "me", token=token):
        if set(batch.observations.column(f"{kinds}.title").to_pylist()) == {"second"}:
            break
    client.unsubscribe(channel, ["s", "t"])
    for batch in client.follow(channel, "me", token=token, wait="300ms"):  # It ends.
        token = batch.token
    client.drop_dataset(channel)
