"""Wrong calls, and what their errors say: the problem, what was expected and what came."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises

import galileo
from galileo import f
from galileo.errors import (
    CcqCancelled,
    GalileoError,
    InputError,
    InvalidToken,
    MessageTooLarge,
    Unavailable,
)
from galileo.wire.channel import MESSAGE_BYTES_MAX

Fresh = Callable[[str], str]

FRAME = pd.DataFrame(
    {
        "latitude": [40.0],
        "longitude": [-105.0],
        "time": ["2014-03-01T06:00Z"],
        "temperature": [290.0],
        "station": ["KDEN"],
        "note": ["a"],
    }
)
LEAKS = re.compile(
    r"__init__|object at 0x|base64|NoneType|\$\.|at \$|of \[['\"]|bad argument type|Traceback|_pb2"
)
"""What belongs to Python or to the wire, and to no message."""


@dataclass
class World:
    """What the calls go wrong on; `name` is a dataset with one observation."""

    c: galileo.Client
    name: str
    ccq: galileo.Ccq
    labels: galileo.Labels
    cluster: galileo.LocalCluster
    closed: galileo.Client
    directory: Path

    def ingest(self, **columns: Any) -> Any:
        return self.c.ingest(self.name, FRAME.assign(**columns))


@pytest.fixture(scope="module")
def world(
    client: galileo.Client,
    cluster: galileo.LocalCluster,
    fresh_name: Fresh,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    name = fresh_name("messages")
    features = [
        galileo.Feature("temperature", "K"),
        galileo.Feature("station", type="text"),
        galileo.Feature("note", type="text", indexed=False),
    ]
    client.create_dataset(galileo.Schema(name, features))
    client.ingest(name, FRAME)
    closed = galileo.connect(*cluster.addresses)
    closed.close()
    ccq, directory = client.submit(name), tmp_path_factory.mktemp("messages")
    yield World(client, name, ccq, client.query(name), cluster, closed, directory)
    client.cancel(ccq)


Case = tuple[Callable[[World], Any], str, str]
WRONG: dict[str, Case] = {
    # --- names ---
    "a dataset that is a number": (
        lambda w: w.c.query(5),
        "invalid_input",
        "name of a dataset, .*5",
    ),
    "no dataset": (lambda w: w.c.count(None), "invalid_input", "name of a dataset, got None"),
    "explain nothing": (lambda w: w.c.explain(None), "invalid_input", "name of a dataset"),
    "nearest of nothing": (
        lambda w: w.c.nearest(None, latitude=1, longitude=1),
        "invalid_input",
        "name of a dataset",
    ),
    "retention of no name": (lambda w: w.c.retention(3), "invalid_input", "name of a dataset"),
    "retention of none": (lambda w: w.c.set_retention("berg", None), "unknown_dataset", "'berg'"),
    "a node that is not there": (
        lambda w: w.c.drain("node-9"),
        "invalid_input",
        "^node 'node-9' does not exist; nodes: node-1",
    ),
    "a node that is a number": (lambda w: w.c.drain(1), "invalid_input", "name of a node, got 1"),
    "a local node": (
        lambda w: w.cluster.node("node-9"),
        "invalid_input",
        "^no node is named 'node-9",
    ),
    "a partition beyond": (lambda w: list(w.c.move(99, to="node-1")), "invalid_input", "got 99"),
    "a partition as text": (lambda w: list(w.c.move("1", to="node-1")), "invalid_input", "got '1'"),
    # --- queries ---
    "a geohash that is a number": (lambda w: galileo.geohash(5), "invalid_input", "text, .* got 5"),
    "an interval backwards": (lambda w: galileo.during("2013", "2012"), "invalid_input", "'2012'"),
    "no parentheses": (lambda w: f.x > 1 & f.y, "invalid_input", "in parentheses"),
    "an unknown unit": (lambda w: galileo.near(1, 1, "5 miles"), "invalid_input", "'5 miles'"),
    "a feature that is not indexed": (
        lambda w: w.c.query(w.name, "note = 'x'"),
        "unsupported_query",
        "note.*index",
    ),
    # --- continuous queries ---
    "a long wait": (lambda w: w.c.fetch(w.ccq, wait="2h"), "invalid_input", "0 to 60 s"),
    "a token": (
        lambda w: w.c.fetch(w.ccq, token="bogus"),
        "invalid_token",
        "^'bogus' is no resume",
    ),
    "a token that is an update": (lambda w: w.c.fetch(w.ccq, token=7), "invalid_input", "got 7"),
    "a query that is not there": (lambda w: w.c.fetch("ccq-nope"), "unknown_ccq", "'ccq-nope'"),
    "cancel what is not there": (lambda w: w.c.cancel("ccq-nope"), "unknown_ccq", "'ccq-nope'"),
    "cancel a number": (lambda w: w.c.cancel(123), "invalid_input", "or its id, .*got 123"),
    "watch nothing": (lambda w: next(w.c.watch(None)), "invalid_input", "or its id, .*got None"),
    "a negative wait": (lambda w: w.c.fetch(w.ccq, wait=-1), "invalid_input", "above zero, got -1"),
    "a wait": (lambda w: w.c.fetch(w.ccq, wait="soon"), "invalid_input", "such as .* got 'soon'"),
    "a DataFrame for a path": (
        lambda w: w.c.ingest_file(w.name, pd.DataFrame({"time": ["2014-03-01"]})),
        "invalid_input",
        "got DataFrame; client.ingest",
    ),
    "a compression": (
        lambda w: w.c.submit(w.name, compression="zip"),
        "invalid_input",
        "got 'zip'",
    ),
    "a window as text": (
        lambda w: w.c.submit(w.name, window="tumbling:1h"),
        "invalid_input",
        "galileo.Window.tumbling.*got 'tumbling:1h'",
    ),
    "a slide": (
        lambda w: galileo.Window.sliding("1h", slide="7m"),
        "invalid_input",
        "whole multiple",
    ),
    "a window's text": (lambda w: galileo.Window.parse("hourly"), "invalid_input", "got 'hourly'"),
    "a window's JSON": (
        lambda w: galileo.Window.from_json("{}"),
        "invalid_input",
        "windows as JSON",
    ),
    "a spool as text": (
        lambda w: next(w.c.watch(w.ccq, spool="x")),
        "invalid_input",
        "a galileo.Spool",
    ),
    "a spool nowhere": (
        lambda w: galileo.Spool("/nowhere/x"),
        "invalid_input",
        "spool /nowhere/x does not exist",
    ),
    # --- samplers ---
    "a sampler's name": (
        lambda w: galileo.sampler(5),
        "invalid_input",
        "name of a sampler, .*got 5",
    ),
    "a seed": (lambda w: galileo.sampler("uniform", seed="a"), "invalid_input", "as seed, got 'a'"),
    "an archive as text": (lambda w: w.c.send_sampler("a.py"), "invalid_input", "sampler_archive"),
    "a short digest": (lambda w: w.c.revoke_sampler("abc"), "invalid_input", "digits .* got 'abc'"),
    "no digest": (lambda w: w.c.revoke_sampler(None), "invalid_input", "digits .* got None"),
    # --- schemas and data ---
    "a unit": (
        lambda w: galileo.Feature("a", unit=5),
        "invalid_schema",
        "the unit of feature 'a' as a text .* got 5",
    ),
    "a retention": (lambda w: galileo.Retention(), "invalid_input", "got neither"),
    "a time": (
        lambda w: w.ingest(time="yesterday"),
        "invalid_observations",
        "'yesterday' in row 0",
    ),
    "a missing column": (
        lambda w: w.c.ingest(w.name, FRAME.drop(columns="time")),
        "invalid_observations",
        "missing: time",
    ),
    "a misspelt column": (
        lambda w: w.c.ingest(w.name, FRAME.rename(columns={"temperature": "temprature"})),
        "invalid_observations",
        r"unknown: temprature \(did you mean temperature\?\).*Rename or drop",
    ),
    "a column too many": (
        lambda w: w.ingest(humidity=3.0),
        "invalid_observations",
        "unknown: humidity.*drop columns",
    ),
    "times as numbers": (
        lambda w: w.ingest(time=1_393_632_000),
        "invalid_observations",
        "times in column 'time'.*int64.*convert numbers first",
    ),
    "a time that is missing": (
        lambda w: w.ingest(time=[pd.NaT]),
        "invalid_observations",
        "value in every row of column 'time'.*row 0",
    ),
    "a producer with a blank": (
        lambda w: w.c.ingest(w.name, FRAME, producer="my radar"),
        "invalid_input",
        "'my radar'",
    ),
    "a producer": (
        lambda w: w.c.ingest(w.name, FRAME, producer=5),
        "invalid_input",
        "name .*got 5",
    ),
    "a long producer": (
        lambda w: w.c.ingest(w.name, FRAME, producer=5000 * "x"),
        "message_too_large",
        "^.{0,300}$",
    ),
    "progress": (lambda w: w.c.ingest(w.name, FRAME, progress=5), "invalid_input", "got 5"),
    # --- exploration and results ---
    "a depth": (lambda w: list(w.c.tree(w.name, depth="x")), "invalid_input", "depth .* got 'x'"),
    "labels as text": (lambda w: w.c.read(w.name), "invalid_input", "labels, .* got a str"),
    "what is plotted": (lambda w: w.labels.plot("foo"), "invalid_input", "numbers .* got 'foo'"),
    "what is written": (
        lambda w: galileo.to_geojson(5),
        "invalid_input",
        "an Arrow table .* got 5",
    ),
    "SPARQL": (lambda w: w.labels.sparql("SELEC ?x"), "query_syntax", "in 'SELEC"),
    "a prefix": (
        lambda w: w.labels.sparql("SELECT ?x {?x no:such ?y}"),
        "query_syntax",
        "PREFIX no:",
    ),
    "a time limit": (
        lambda w: w.labels.sparql("SELECT ?x {?x ?p ?y}", timeout_s="x"),
        "invalid_input",
        "timeout_s .* got 'x'",
    ),
    # --- connections ---
    "a closed client": (
        lambda w: w.closed.count(w.name),
        "invalid_input",
        "^this client is closed",
    ),
    "no node": (
        lambda w: galileo.connect("127.0.0.1:9", timeout=0.1).datasets(),
        "unavailable",
        "^no node could be reached at 127.0.0.1:9; check that",
    ),
    "a URL": (lambda w: galileo.connect("http://h:1"), "invalid_input", "got 'http://h:1'"),
    "a timeout": (
        lambda w: galileo.connect("127.0.0.1:9", timeout="so"),
        "invalid_input",
        "got 'so'",
    ),
    "a token file": (
        lambda w: galileo.connect("127.0.0.1:9", token_file="/nowhere"),
        "config",
        "token_file to be a readable file",
    ),
    "nodes as text": (lambda w: galileo.LocalCluster(nodes="3"), "invalid_input", "got '3' nodes"),
}


TYPES: list[tuple[Callable[[galileo.Client, str], Any], str]] = [
    (lambda c, _: c.create_dataset("stations"), r"expected a schema, .* got 'stations'"),
    (lambda c, d: c.set_retention(d, "30d"), r"expected galileo.Retention\('30d'\) or None"),
    (lambda c, d: c.ingest(FRAME, d), "name of a dataset, got a DataFrame"),
    (lambda c, d: c.ingest(c.schema(d), FRAME), "name of a dataset, got a Schema"),
    (lambda c, d: c.ingest(d, None), "expected a DataFrame .* got None"),
    (lambda c, d: c.ingest(d, "a.csv"), "there is no file at a.csv"),
    (lambda c, d: c.ingest(d, [Path("a.csv")]), "there is no file at a.csv"),
    (lambda c, d: c.ingest(d, FRAME.to_dict("records")), r"single values; .*DataFrame\("),
    (lambda c, d: c.ingest(d, {"lat": [1, 2], "t": [1]}), r"same length, got lat \(2\), t"),
    (lambda c, d: c.ingest(d, {"lat": np.ones((2, 2))}), "one dimension and type in .* 'lat'"),
    (lambda c, d: c.ingest(d, FRAME.iloc[0]), r"got Series; .* pandas.DataFrame\("),
    (lambda c, d: c.ingest(d, FRAME, mapping=3), "expected a mapping such as"),
    (
        lambda c, d: c.ingest(d, FRAME.set_index("time")),
        r"missing: time; in the index: time, write \.reset_index\(\)",
    ),
    (lambda c, d: c.ingest(d, FRAME, batch_rows="10"), "a whole number of .* got '10'"),
    (lambda c, d: c.ingest(d, FRAME, batch_rows=2.5), "a whole number of .* got 2.5"),
    (lambda c, d: c.ingest(d, FRAME, batch_rows=0), "a whole number of at least 1, got 0"),
    (lambda c, d: c.select(d, columns="time"), r"such as \['time'\], got 'time'"),
    (lambda c, d: c.query(d, sampler="uniform"), r"such as galileo.sampler\('uniform', "),
    (lambda c, d: c.read(d, "t > 1"), r"labels, .* got a str and a str; use client.select"),
    (lambda c, d: next(c.read_batches(d)), r"labels, .* got a str; use client.select"),
    (lambda c, d: c.read(d), r"labels, .* got a str; use client.select\(dataset, query\)"),
    (lambda c, d: c.nearest(d, latitude="40", longitude=3), "a latitude, got '40'"),
    (lambda c, d: c.nearest(d, latitude=40, longitude=None), "a longitude, got None"),
    (lambda c, d: c.nearest(d, latitude=40, longitude=3, k=2.5), "a number k .* 2.5"),
    (lambda c, d: c.nearest(d, latitude=40, longitude=3, within_m="5km"), "metres, got '5km'"),
    (lambda c, d: c.summarise(d, feature="temperature", bins=4.5), "bins, or their edges"),
    (lambda c, d: c.estimate(d, feature="temperature", quantiles=0.5), "a list of quantiles"),
    (lambda c, _: c.fetch(123), r"a continuous query, as submit .* its id, .* got 123"),
    (lambda c, _: list(c.watch(None)), "its id, .* got None"),
    (lambda c, _: c.cancel(["ccq-1"]), "its id, "),
    (lambda c, _: c.sparql_view(FRAME), "its id, "),
    (lambda c, _: c.fetch("ccq-1", token=7), r"token of an update \(update.token\), got 7"),
    (lambda c, _: c.fetch("ccq-1", labels_max="3"), "labels_max as a whole number"),
    (lambda c, d: c.query(d).where([True, True]), "truth values, one for each label"),
    (lambda c, d: c.query(d).where("temperature > 2"), "truth values, one for each label"),
    (lambda c, d: c.query(d).slice("a", 2), "places as whole numbers, got 'a' and 2"),
    (lambda c, d: c.query(d).slice(2, 1), "0 <= start <= stop, got 2 and 1"),
    (lambda *_: galileo.Schema.from_json("{}"), "the key 'name' is missing"),
    (lambda *_: galileo.Retention.from_json("{}"), "the key 'age_s' is missing"),
    (lambda *_: galileo.SamplerSpec.from_json("{}"), "the key 'name' is missing"),
    (lambda c, d: galileo.to_xarray(c.select(d).to_pandas()), "Arrow table, .* a DataFrame"),
    (lambda c, d: galileo.to_geojson(c.select(d).to_pandas()), "Arrow table, .* a DataFrame"),
]
"""Arguments of a wrong type."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_call_is_refused_with_kind_and_message(world: World, name: str) -> None:
    call, kind, message = WRONG[name]
    with pytest.raises(GalileoError) as caught:
        call(world)
    assert caught.value.kind == kind
    check_message(caught.value, message)


@pytest.mark.parametrize(("call", "message"), TYPES)
def test_argument_of_a_wrong_type_is_refused_with_a_message(
    world: World, call: Callable[[galileo.Client, str], Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        call(world.c, world.name)
    check_message(caught.value, message)


def check_message(error: GalileoError, pattern: str) -> None:
    assert re.search(pattern, error.message), error.message
    assert not LEAKS.search(error.message), error.message


@pytest.mark.parametrize("query", ["temprature > 3", "station > 3", "(temperature > 3", '{"op": '])
def test_submit_of_a_wrong_query_is_refused_before_it_begins(world: World, query: str) -> None:
    with pytest.raises(InputError):
        world.c.submit(world.name, query, interval="1s", expiration="1h")
    assert {info.id for info in world.c.list_ccqs() if info.dataset == world.name} == {world.ccq.id}


def test_fetch_with_a_foreign_or_damaged_token_is_refused(world: World) -> None:
    other = world.c.submit(world.name, "temperature > 280", interval="1h", expiration="2h")
    middle = len(world.ccq.token) // 2
    damaged = world.ccq.token[:middle] + world.ccq.token[middle:][::-1]
    assert damaged != world.ccq.token
    for token in (other.token, damaged, "Bürgermeister"):
        with raises(InvalidToken):
            world.c.fetch(world.ccq, token=token)
    assert world.c.fetch(world.ccq, token=world.ccq.token).token == world.ccq.token
    world.c.cancel(other)
    with raises(CcqCancelled):
        world.c.fetch(other, token=other.token)


def test_ingest_of_a_row_above_message_bytes_max_is_refused(world: World) -> None:
    with raises(MessageTooLarge):
        world.ingest(station="x" * MESSAGE_BYTES_MAX)


def test_call_without_a_reachable_node_names_the_addresses(world: World) -> None:
    with galileo.connect("127.0.0.1:9", timeout="100ms") as lonely:
        for call in (lambda: lonely.query(world.name), lambda: lonely.ingest(world.name, FRAME)):
            with raises(Unavailable, addresses=["127.0.0.1:9"]):
                call()


def test_wrong_calls_leave_everything_as_it_was(world: World) -> None:
    assert world.c.count(world.name) == 1
    assert world.ccq.id in {info.id for info in world.c.list_ccqs()}
