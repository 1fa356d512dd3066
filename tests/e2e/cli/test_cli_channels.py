"""`galileo channel` against a cluster, for people and for programs."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from executions import await_executed

import galileo
from galileo.cli import datasets, session
from galileo.cli.channels import print_batch
from galileo.cli.main import main
from galileo.cli.output import Output
from galileo.client import Notifications
from galileo.cursor import CommitRange
from galileo.model.channel import LEFT, MATCHES_SCHEMA
from galileo.model.times import iso, micros

Fresh = Callable[[str], str]
Run = Callable[..., Result]
COLUMNS = 80
SETTLED_S = "200ms"
"""An execution comes within this time."""


@pytest.fixture
def run(cluster: galileo.LocalCluster) -> Run:
    """`run("list", "--json")`: the result of a command, which must exit with status `fails`."""

    def ran(*words: str, fails: int = 0, **more: Any) -> Result:
        done = CliRunner().invoke(main, ["--node", cluster.addresses[0], "channel", *words], **more)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == fails, done.output
        return done

    return ran


@pytest.fixture
def air(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("air")
    features = [galileo.Feature("temperature", "K"), galileo.Feature("station", type="text")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    return name


@pytest.fixture
def hot(run: Run, air: str, fresh_name: Fresh) -> Iterator[str]:
    """A channel without subscriptions."""
    name = fresh_name("hot")
    run("create", name, air, "temperature > :least", "--period", "100ms")
    yield name
    run("drop", name, "--yes", fails=0 if name in run("list", "--wide").output else 2)


@pytest.fixture(scope="module")
def unchanged(client: galileo.Client, fresh_name: Fresh) -> Iterator[dict[str, str]]:
    """The names of a dataset and a channel, for commands that are refused."""
    names = {"air": fresh_name("air"), "hot": fresh_name("hot")}
    features = [galileo.Feature("temperature", "K"), galileo.Feature("station", type="text")]
    client.create_dataset(galileo.Schema(names["air"], features, geohash_precision=3))
    client.create_channel(galileo.Channel(names["hot"], names["air"], "temperature > :least"))
    yield names
    client.drop_dataset(names["hot"])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write for 80 columns, though to no terminal."""
    monkeypatch.setattr(session, "Output", functools.partial(Output, columns=COLUMNS))


def warm(client: galileo.Client, air: str, channel: str, *temperatures: float) -> None:
    """Ingests observations, and waits until the channel has executed them."""
    rows = len(temperatures)
    frame = pd.DataFrame({"latitude": [40.0] * rows, "longitude": [-105.0] * rows})
    noon = pd.Timestamp("2026-05-02T12:00Z")
    warm_day = frame.assign(time=noon, temperature=temperatures, station='K"EN')
    await_executed(client, channel, client.ingest(air, warm_day).reached)


def notified(done: Result) -> list[tuple[str, float]]:
    """The pairs of subscription and temperature that `follow --json` has printed."""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        (line["subscription"], line["observation"]["temperature"])
        for line in lines
        if "subscription" in line
    ]


def token_of(done: Result) -> str:
    return done.stderr.rpartition("token: ")[2].strip()


def test_channel_is_created_listed_shown_and_dropped(
    run: Run, client: galileo.Client, air: str, fresh_name: Fresh
) -> None:
    name = fresh_name("mild")
    words = (name, air, "temperature > :least AND station = :station", "--period", "100ms")
    columns = ("--column", "time", "--column", "temperature", "--keep", "12h")
    assert run("create", *words, *columns).output == f"created channel {name}\n"
    [listed] = [one for one in json.loads(run("list", "--json").output) if one["name"] == name]
    assert listed == {
        "name": name,
        "dataset": air,
        "template": "temperature > :least AND station = :station",
        "parameters": {"least": "float", "station": "text"},
        "columns": ["time", "temperature"],
        "new": "observations",
        "leave": False,
        "age_max_s": None,
        "enrich": [],
        "lookup": {},
        "period_s": 0.1,
        "keep_s": 43_200,
    }
    assert "least:float, station:text" in run("list").output
    run(
        "subscribe", name, "--id", "anna", "--set", "least=285", "--set", "station=K", "--broker=me"
    )
    warm(client, air, name, 290.0)
    deadline = time.monotonic() + 20
    while (shown := json.loads(run("show", name, "--json").stdout))["missing"] or (
        shown["subscriptions"] < 1
    ):
        assert time.monotonic() < deadline, shown
    assert sum(one["subscriptions"] for one in shown["partitions"]) == 1
    assert shown["parameters"] == {"least": "float", "station": "text"}
    assert run("drop", name, "--yes").output == f"dropped channel {name}\n"
    assert "does not exist" in run("show", name, fails=2).stderr


def test_a_repetitive_channel_is_created_and_shown(run: Run, air: str, fresh_name: Fresh) -> None:
    name = fresh_name("now")
    words = (name, air, "temperature > :least", "--new", "none", "--age-max", "90m")
    created = json.loads(run("create", *words, "--json").output)
    assert (created["new"], created["age_max_us"]) == ("none", 5_400_000_000)
    shown = run("show", name).output
    assert "delivers all that matches and is at most 90m old, each time\n" in shown
    assert json.loads(run("show", name, "--json").stdout)["age_max_s"] == 5_400
    refused = run("create", fresh_name("no"), air, words[2], "--age-max", "1h", fails=2)
    assert "with new='none' alone" in refused.stderr


def test_subscriptions_come_from_files_and_options_and_are_removed(
    run: Run, client: galileo.Client, hot: str, tmp_path: Path
) -> None:
    people, left = tmp_path / "people.csv", tmp_path / "left.csv"
    people.write_text("id,least\nanna,285\nbert,300\ncleo,310\n")
    done = run("subscribe", hot, str(people), "--broker", "me")
    assert done.output.startswith("people.csv: 3 subscriptions stored")
    people.write_text("id,broker,least\nanna,you,286\n")
    assert json.loads(run("subscribe", hot, str(people), "--json").output)["rows"] == 1
    done = run("subscribe", hot, "--id", "dora", "--set", "least=1e2", "--broker", "me")
    assert done.output == "subscribed dora\n"
    assert run("unsubscribe", hot, "bert", "absent").output == "unsubscribed: 2 ids\n"
    left.write_text("id\ncleo\n")
    assert run("unsubscribe", hot, "--file", str(left)).output == "unsubscribed: 1 id\n"
    left.write_bytes("# gone\nname;id\nJosé;emil\n".encode("latin-1"))
    written = ["--separator", ";", "--encoding", "latin-1"]
    assert run("subscribe", hot, "--id", "emil", "--set", "least=1", "--broker", "me").output
    done = run("unsubscribe", hot, "--file", str(left), "--skip", "1", *written)
    assert done.output == "unsubscribed: 1 id\n"
    rows = client.table(f"{hot}.subscriptions").rows.sort_by("id").to_pylist()
    assert rows == [
        {"id": "anna", "broker": "you", "least": 286.0},
        {"id": "dora", "broker": "me", "least": 100.0},
    ]


def test_follow_continues_at_a_token_and_at_a_file(
    run: Run, client: galileo.Client, air: str, hot: str, tmp_path: Path
) -> None:
    run("subscribe", hot, "--id", "anna", "--set", "least=285", "--broker", "me")
    run("subscribe", hot, "--id", "bert", "--set", "least=300", "--broker", "me")
    follow = ("follow", hot, "me", "--wait", SETTLED_S)
    nothing = run(*follow)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing came for broker 'me'" in nothing.stderr
    warm(client, air, hot, 284.0, 291.0)
    first = run(*follow)
    assert first.stdout == (
        "anna: latitude=40, longitude=-105, time=2026-05-02T12:00:00Z, temperature=291, "
        'station=K\\"EN\n'
    )
    token = token_of(first)
    warm(client, air, hot, 301.0)
    pairs = [("anna", 301.0), ("bert", 301.0)]
    assert sorted(notified(run(*follow, "--token", token, "--json"))) == pairs
    assert sorted(notified(run(*follow, "--json"))) == [("anna", 291.0), *pairs]

    file = tmp_path / "me.token"
    resumed = (*follow, "--resume", str(file), "--json")
    one = run(*resumed, "--limit", "1")
    assert len(notified(one)) == 1, "an execution of a partition has one match here"
    assert file.read_text() == f"{token_of(one)}\n"
    last = run(*resumed)
    assert sorted(notified(one) + notified(last)) == [("anna", 291.0), *pairs]
    tokens = [json.loads(line).get("token") for line in last.stdout.splitlines()]
    assert tokens[-1] == token_of(last) == file.read_text().strip()
    assert notified(run(*resumed)) == []
    assert run("follow", hot, "you", "--wait", SETTLED_S).stdout == ""
    file.write_text("no token\n")
    assert f"{file} holds no position of broker/{hot}/me" in run(*resumed, fails=2).stderr
    refused = run("follow", hot, "you", "--token", token, fails=2)
    assert "expected a resume token" in refused.stderr


@pytest.mark.slow
def test_follow_ends_by_an_interrupt_with_its_token(
    cluster: galileo.LocalCluster, run: Run, client: galileo.Client, air: str, hot: str
) -> None:
    run("subscribe", hot, "--id", "anna", "--set", "least=285", "--broker", "me")
    warm(client, air, hot, 291.0)
    command = ["--node", cluster.addresses[0], "channel", "follow", hot, "me"]
    # Where the tests run in the background, programs are started with Ctrl-C ignored.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from galileo.cli.main import main; main({command})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("anna: ")
        time.sleep(1.0)  # The token is noted once the batch is printed.
        os.kill(process.pid, signal.SIGINT)
        rest, noted = process.communicate(timeout=60)
    assert (process.returncode, rest) == (130, "")
    assert noted.startswith("token: ")
    assert len(noted.splitlines()) == 1
    token = noted.removeprefix("token: ").strip()
    assert run("follow", hot, "me", "--token", token, "--wait", SETTLED_S).stdout == ""


def test_print_batch_is_that_of_a_loop_over_random_pairs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An observation may have a column named as that of the ids."""
    chance = random.Random(3)
    texts = ["", 'a"b', "c\\d", "e\nf", None, "\u00e9\x9b"]
    observations = pa.table(
        {
            "time": pa.array(range(20), pa.timestamp("us", "UTC")),
            "heat": [chance.choice([None, 1.5, chance.random()]) for _ in range(20)],
            "subscription": [chance.choice(texts) for _ in range(20)],
        }
    )
    matches = [
        {
            "rows": chance.sample(range(20), chance.randrange(5)),
            "subscriptions": [chance.choice(["anna", 'b"', "c\td"]) for _ in range(3)],
        }
        for _ in range(9)
    ]
    gone = (CommitRange(4, 1, 5),)
    columns = pa.schema([MATCHES_SCHEMA.field(name) for name in ("rows", "subscriptions")])
    batch = Notifications(4, 7, observations, pa.Table.from_pylist(matches, columns), "token", gone)
    rows = observations.to_pylist()
    pairs = [(s, rows[n]) for one in matches for n in one["rows"] for s in one["subscriptions"]]
    print_batch(Output(as_json=True), batch)
    *lines, last = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"subscription": name, "observation": row | {"time": iso(micros(row["time"]))}}
        for name, row in pairs
    ]
    first_to_last = {"partition": 4, "first": 1, "last": 5}
    end = {"token": "token", "partition": 4, "execution": 7, "gone": [first_to_last]}
    assert json.loads(last) == end
    print_batch(Output(as_json=False), batch)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == len(pairs) == len(batch)
    moving = replace(batch, matches=batch.matches.append_column(LEFT, pa.array([True] * 9)))
    print_batch(Output(as_json=True), moving)
    assert all(json.loads(line)["left"] for line in capsys.readouterr().out.splitlines()[:-1])
    print_batch(Output(as_json=False), moving)
    assert all(" left: time=" in line for line in capsys.readouterr().out.splitlines())
    assert "gone: partition 4, commits 1 to 5" in printed.err


def test_drop_asks_as_other_commands_do(
    run: Run, client: galileo.Client, hot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no terminal to confirm it on; add --yes" in run("drop", hot, fails=2).stderr
    run("subscribe", hot, "--id", "anna", "--set", "least=285", "--broker", "me")
    monkeypatch.setattr(datasets, "is_terminal", lambda: True)
    asked = run("drop", hot, input="n\n", fails=1)
    assert f"Drop channel {hot} with " in asked.output
    assert " subscriptions? This cannot be undone." in asked.output
    assert "Nothing was dropped." in asked.stderr
    assert "does not exist" in run("drop", f"{hot}.subscriptions", "--yes", fails=2).stderr
    assert f"dropped channel {hot}" in run("drop", hot, input="y\n").stdout
    assert hot not in {one.name for one in client.channels()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "{hot}x"], "did you mean '{hot}'?"),
        (["follow", "{hot}"], "Missing argument 'BROKER'"),
        (["follow", "{hot}", ""], "the name of a broker"),
        (["follow", "{hot}", "me", "--token", "x", "--resume", "y"], "one of --token, --resume"),
        (["follow", "{hot}", "me", "--token", "nonsense"], "token"),
        (["subscribe", "absent", "--id", "a", "--broker", "me"], "channel 'absent' does not exist"),
        (["subscribe", "{hot}"], "FILES or --id"),
        (["subscribe", "{hot}", "--set", "least=3"], "FILES or --id"),
        (["subscribe", "{hot}", "--id", "a", "--set", "least=3"], "a value of 'broker'"),
        (["subscribe", "{hot}", "--id", "a", "--broker", "me"], "a value of 'least'"),
        (["subscribe", "{hot}", "--id", "a", "--broker", "me", "--set", "least"], "NAME=VALUE"),
        (["subscribe", "{hot}", "--id", "a", "--set", "least=abc"], "float as 'least', got 'abc' "),
        (["subscribe", "{hot}", "--id", "a", "--broker", "me", "--set", "least=hot"], "a float"),
        (["subscribe", "{hot}", "--id", "a", "--broker", "me", "--set", "leest=3"], "mean least?"),
        (["unsubscribe", "{hot}"], "IDS or --file"),
        (["drop", "absent", "--yes"], "channel 'absent' does not exist"),
    ],
)
def test_wrong_commands_say_what_they_expect(
    run: Run, unchanged: dict[str, str], words: list[str], message: str
) -> None:
    done = run(*(word.format(**unchanged) for word in words), fails=2)
    assert message.format(**unchanged) in " ".join(done.stderr.split())


@pytest.mark.usefixtures("narrow")
def test_channel_commands_fit_80_columns(
    run: Run, client: galileo.Client, air: str, fresh_name: Fresh
) -> None:
    name = fresh_name("long-name-of-a-channel")
    template = (
        "temperature > :least AND temperature < :most AND station = :station AND "
        "S_DWITHIN(geometry, POINT(1 2), :metres)"
    )
    run("create", name, air, template, "--period", "100ms")
    settings = ("least=285", "most=300", "station=KDEN", "metres=5000")
    run("subscribe", name, "--id=a", "--broker=me", *(f"--set={one}" for one in settings))
    warm(client, air, name, 290.0)
    run("follow", name, "me", "--wait", SETTLED_S)
    for command in (["list"], ["show", name]):
        lines = run(*command).stdout.splitlines()
        assert [line for line in lines if len(line) > COLUMNS] == []
    shown = run("show", name).stdout
    assert "Not shown" not in shown
    assert "parameters: least:float, most:float, station:text, metres:float" in shown
    assert "1 subscription in " in shown
    assert "0 commits behind; 0 failed" in shown
    run("drop", name, "--yes")


def test_create_with_enrich_prints_rows_of_tables(
    run: Run, client: galileo.Client, air: str, fresh_name: Fresh
) -> None:
    stations, posts, hot = fresh_name("stations"), fresh_name("posts"), fresh_name("hot")
    columns = {"id": "text", "town": "text", "at": "geometry"}
    client.create_table(galileo.Table(stations, columns, "id"))
    client.upsert(stations, {"id": ['K"EN'], "town": ["Denver"], "at": ["POINT (1 2)"]})
    client.create_table(galileo.Table(posts, {"id": "text", "at": "geometry"}, "id"))
    client.upsert(posts, {"id": ["p"], "at": ["POINT (-105 40)"]})
    lookup = {"step": "lookup", "table": stations, "on": "station"}
    near = {"step": "near", "table": posts, "within": "1km"}
    steps = ["--enrich", json.dumps(lookup), "--enrich", json.dumps(near)]
    words = ["--period", "100ms", "--column", "temperature", *steps]
    run("create", hot, air, "temperature > :least", *words)
    assert json.loads(run("show", hot, "--json").stdout)["enrich"] == [
        lookup,
        near | {"within": 1000.0},
    ]
    assert f'"table": "{stations}"' in run("show", hot).stdout
    run("subscribe", hot, "--id", "anna", "--set", "least=5", "--broker", "me")
    warm(client, air, hot, 9.0)
    place = {"type": "Point", "coordinates": [1.0, 2.0]}
    line = json.loads(
        run("follow", hot, "me", "--wait", SETTLED_S, "--json").stdout.splitlines()[0]
    )
    assert line["observation"] == {
        "temperature": 9.0,
        f"{stations}.town": "Denver",
        f"{stations}.at": place,
        posts: [{"id": "p", "distance": 0.0}],
    }
    printed = run("follow", hot, "me", "--wait", SETTLED_S).stdout
    assert f"{stations}.town=Denver" in printed
    assert f'{posts}=[{{"id":"p","distance":0}}]' in printed
    for wrong in ("near", "{}"):
        done = run("create", f"{hot}2", air, "temperature > :t", "--enrich", wrong, fails=2)
        assert "expected a step" in done.stderr
    run("drop", hot, "--yes")


@pytest.mark.slow
def test_create_with_lookup_compares_with_rows_of_tables(
    run: Run, client: galileo.Client, air: str, fresh_name: Fresh
) -> None:
    limits, hot = fresh_name("limits"), fresh_name("hot")
    columns = {"level": "int", "kind": "text", "least": "float"}
    client.create_table(galileo.Table(limits, columns, ["level", "kind"]))
    client.upsert(limits, {"level": [1, 2], "kind": ["a", "a"], "least": [5.0, 15.0]})
    key = '{":level": "level", ":kind": "kind"}'
    words = ["--period", "100ms", "--lookup", f"{limits}={key}"]
    run("create", hot, air, f'temperature > "{limits}.least"', *words)
    shown = json.loads(run("show", hot, "--json").stdout)
    assert shown["lookup"] == {limits: json.loads(key)}
    assert shown["parameters"] == {"level": "int", "kind": "text"}
    assert f'looks up: {{"{limits}"' in run("show", hot).stdout
    for name, level in (("anna", 1), ("bert", 2)):
        sets = ("--set", f"level={level}", "--set", "kind=a")
        run("subscribe", hot, "--id", name, *sets, "--broker", "me")
    warm(client, air, hot, 9.0)
    lines = run("follow", hot, "me", "--wait", SETTLED_S, "--json").stdout.splitlines()
    notified = [json.loads(line) for line in lines]
    assert [line["subscription"] for line in notified if "subscription" in line] == ["anna"]
    for wrong in (limits, f"{limits}={{", f"{limits}=level"):
        more = ("--lookup", wrong)
        done = run("create", f"{hot}2", air, f'temperature > "{limits}.least"', *more, fails=2)
        assert "expected" in done.stderr
    run("drop", hot, "--yes")
