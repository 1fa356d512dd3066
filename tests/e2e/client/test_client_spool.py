"""The spool holds labels and token together, whatever ends its reader."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.cli.main import main
from galileo.client import Labels, Spool, SpooledWindow, Update, WindowChange
from galileo.cursor import CommitRange
from galileo.errors import CcqCancelled, CorruptData, InputError, SpoolConflict, TransientError
from galileo.labels import to_ipc
from galileo.model.schema import Feature, Schema

SCHEMA = Schema("gauges", [Feature("level", "m")], geohash_precision=3, time_bucket="1h")
KILLS = 6
HOUR_US = 3_600_000_000
WATCH = [sys.executable, "-m", "galileo"]


def labels(*rows: int, sequence: int = 1, hour: int = 0) -> Labels:
    count = len(rows)
    columns = {
        "cell": pa.array(np.full(count, 77, dtype=np.uint64)),
        "bucket": pa.array(np.full(count, hour * HOUR_US)).cast(pa.timestamp("us", tz="UTC")),
        "level": pa.array(np.asarray(rows, dtype=np.float64) / 4),
        "row": pa.array(np.asarray(rows, dtype=np.int32)),
        "rows": pa.array(np.ones(count, dtype=np.int32)),
        "partition": pa.array(np.zeros(count, dtype=np.int32)),
        "sequence": pa.array(np.full(count, sequence, dtype=np.int64)),
    }
    table = pa.table([columns[n] for n in SCHEMA.label_schema.names], schema=SCHEMA.label_schema)
    return Labels(SCHEMA, table, query='{"op":">"}')


def rows_of(found: galileo.Labels) -> list[int]:
    return found.rows.tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gauges.spool"


def test_a_new_spool_holds_nothing(path):
    with Spool(path) as spool:
        assert (len(spool), spool.ccq_id, spool.token, spool.last_number) == (0, "", "", 0)
        assert list(spool.updates()) == []
        with pytest.raises(InputError, match="holds nothing yet"):
            spool.labels()


def test_what_was_stored_is_there_when_it_is_opened_again(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1, 2), "t1"))
        spool.store("ccq-1", Update(labels(3), "t2"))
    with Spool(path) as spool:
        assert (len(spool), spool.ccq_id, spool.token, spool.last_number) == (3, "ccq-1", "t2", 2)
        found = spool.labels()
        assert rows_of(found) == [1, 2, 3]
        assert found.schema == SCHEMA
        assert found.query == '{"op":">"}'
        assert [(one.number, rows_of(one.labels)) for one in spool.updates(after=1)] == [(2, [3])]


def test_forgotten_updates_do_not_come_again_and_numbers_are_not_used_twice(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        spool.forget(until=1)
        assert (len(spool), spool.token, spool.last_number) == (0, "t1", 1)
        spool.store("ccq-1", Update(labels(2), "t2"))
        assert [one.number for one in spool.updates()] == [2]


def test_an_update_without_labels_moves_the_token(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(), "t1"))
        assert (len(spool), spool.token, spool.last_number) == (0, "t1", 0)


def test_what_is_gone_is_kept_with_its_token(path):
    gone = CommitRange(3, 4, 9)
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(), "t1", gone=(gone, CommitRange(0, 1, 2))))
        spool.store("ccq-1", Update(labels(1), "t2"))
        assert (len(spool), spool.last_number) == (1, 1)
    with Spool(path) as spool, Spool(path) as other:
        assert (spool.token, spool.gone) == ("t2", (CommitRange(0, 1, 2), gone))
        spool.store("ccq-1", Update(labels(2), "t3"))
        with pytest.raises(SpoolConflict):
            other.store("ccq-1", Update(labels(), "t4", gone=(CommitRange(3, 10, 11),)))
        assert other.gone == spool.gone == (CommitRange(0, 1, 2), gone)
    result = CliRunner().invoke(main, ["ccq", "spool", str(path)])
    assert "2 ranges of commits dropped by retention" in result.output


def test_a_spool_belongs_to_one_query(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        for check in (spool.check, lambda other: spool.store(other, Update(labels(2), "t2"))):
            with pytest.raises(InputError, match="ccq-2"):
                check("ccq-2")
        assert (len(spool), spool.token) == (1, "t1")


def test_the_later_of_two_writers_is_told_and_stores_nothing(path):
    with Spool(path) as one, Spool(path) as two:
        one.store("ccq-1", Update(labels(1), "t1"))
        with pytest.raises(SpoolConflict, match="another reader"):
            two.store("ccq-1", Update(labels(1), "t1"))
        assert (len(one), two.token) == (1, "t1")


def test_another_file_is_refused_and_left_alone(path):
    path.write_bytes(b"latitude,longitude\n" * 200)
    with pytest.raises(InputError, match="another file"):
        Spool(path)
    assert path.read_bytes() == b"latitude,longitude\n" * 200


def test_another_database_is_refused_and_left_alone(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (a)")
    database.close()
    with pytest.raises(InputError, match="another file"):
        Spool(path)


def test_a_damaged_update_is_never_served(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(*range(50)), "t1"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE updates SET arrow = substr(arrow, 1, 100)")
    database.close()
    with Spool(path) as spool, pytest.raises(CorruptData, match="update 1"):
        spool.labels()


def test_a_full_disk_leaves_the_spool_as_it_was(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        (pages,) = spool._database.execute("PRAGMA page_count").fetchone()
        spool._database.execute(f"PRAGMA max_page_count = {pages}")  # what a full disk does
        with pytest.raises(TransientError, match="full"):
            spool.store("ccq-1", Update(labels(*range(100_000)), "t2"))
        assert (len(spool), spool.token) == (1, "t1")
        spool._database.execute("PRAGMA max_page_count = 100000")
        spool.store("ccq-1", Update(labels(2), "t2"))
        assert (len(spool), spool.token) == (2, "t2")


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        Spool(tmp_path / "nowhere" / "x.spool")


def test_a_closed_spool_says_so(path):
    spool = Spool(path)
    spool.close()
    with pytest.raises(InputError, match="closed"):
        _ = spool.token


steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 4)),
        st.tuples(st.just("forget"), st.integers(1, 8)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=12,
)


@given(steps)
def test_a_spool_is_a_list_with_a_token(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("spool") / "x.spool"
    held: dict[int, list[int]] = {}
    token, row, number = "", 0, 0
    spool = Spool(path)
    for step, value in steps:
        if step == "store":
            new = list(range(row, row + value))
            row, token = row + value, f"t{row}"
            spool.store("ccq-1", Update(labels(*new), token))
            if new:
                number += 1
                held[number] = new
        elif step == "forget":
            spool.forget(until=value)
            held = {n: rows for n, rows in held.items() if n > value}
        else:
            spool.close()
            spool = Spool(path)
        assert spool.token == token
        assert {u.number: rows_of(u.labels) for u in spool.updates()} == held
        assert len(spool) == sum(map(len, held.values()))
    spool.close()


# --- windows ---------------------------------------------------------------------------------


def change(hour: int, count: int, state: str) -> WindowChange:
    return WindowChange(hour * HOUR_US, (hour + 2) * HOUR_US, count, state)  # type: ignore[arg-type]


def test_windows_grow_over_updates_and_close_and_open_again(path):
    with Spool(path) as spool:
        first = Update(labels(1, 2, hour=1), "t1", windows=(change(0, 2, "open"),))
        spool.store("ccq-1", first)
        assert spool.windows() == (SpooledWindow(0, 2 * HOUR_US, 2, is_closed=False),)
        closing = Update(
            labels(3, hour=-1), "t2", windows=(change(-2, 1, "open"), change(0, 0, "closed"))
        )
        spool.store("ccq-1", closing)
    with Spool(path) as spool:
        assert [(one.labels, one.is_closed) for one in spool.windows()] == [(1, False), (2, True)]
        late = Update(labels(4, hour=0), "t3", windows=(change(0, 1, "reopened"),))
        spool.store("ccq-1", late)
        held = spool.window("1970-01-01")
        assert (held.labels, held.is_closed, held.start.hour, held.end.hour) == (3, True, 0, 2)
        assert rows_of(spool.labels(held)) == [1, 2, 4]
        assert rows_of(spool.labels(change(-2, 1, "open"))) == [3]
        assert rows_of(spool.labels()) == [1, 2, 3, 4]
        spool.forget(until=1)
        assert spool.window(held.start).labels == 3
        assert rows_of(spool.labels(held)) == [4]


def test_a_window_of_which_nothing_was_told_is_named(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        assert spool.windows() == ()
        with pytest.raises(InputError, match=r"no window that starts at 2012-03-01T06:00:00Z"):
            spool.window("2012-03-01T06:00:00Z")


def test_windows_of_an_update_that_is_not_stored_are_not_there(path):
    with Spool(path) as one, Spool(path) as two:
        one.store("ccq-1", Update(labels(1), "t1", windows=(change(0, 1, "open"),)))
        with pytest.raises(SpoolConflict):
            two.store("ccq-1", Update(labels(1), "t1", windows=(change(0, 1, "closed"),)))
        assert two.windows() == (SpooledWindow(0, 2 * HOUR_US, 1, is_closed=False),)


# The tables of format 1, as they were written before there were windows.
FORMAT_1 = """
CREATE TABLE reader (
    one INTEGER PRIMARY KEY CHECK (one = 1), ccq TEXT NOT NULL, token TEXT NOT NULL,
    schema TEXT NOT NULL, query TEXT NOT NULL
);
CREATE TABLE updates (
    number INTEGER PRIMARY KEY AUTOINCREMENT, labels INTEGER NOT NULL, arrow BLOB NOT NULL
);
CREATE TABLE gone (
    partition INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (partition, first)
);
PRAGMA application_id = 1195461715;
PRAGMA user_version = 1;
"""


def test_a_spool_of_the_format_before_windows_goes_on(path):
    database = sqlite3.connect(path)
    database.executescript(FORMAT_1)
    schema = SCHEMA.to_json()
    database.execute("INSERT INTO reader VALUES (1, 'ccq-1', 't1', ?, '')", (schema,))
    data = to_ipc(labels(1, 2, hour=1).table, compression="lz4")
    database.execute("INSERT INTO updates (labels, arrow) VALUES (2, ?)", (data,))
    database.commit()
    database.close()
    with Spool(path) as spool:
        assert (spool.token, spool.windows()) == ("t1", ())
        spool.store("ccq-1", Update(labels(3, hour=0), "t2", windows=(change(0, 1, "open"),)))
    with Spool(path) as spool:
        assert rows_of(spool.labels(spool.window("1970-01-01"))) == [1, 2, 3]
        assert rows_of(spool.labels(change(5, 0, "closed"))) == []


def test_a_spool_of_a_later_format_is_refused_and_left_alone(path):
    Spool(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 3")
    database.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="a later version"):
        Spool(path)
    assert path.read_bytes() == before


# --- with a cluster --------------------------------------------------------------------------


def ingest(client: galileo.Client, dataset: str, *, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {
        "latitude": rng.uniform(-80, 80, rows),
        "longitude": rng.uniform(-180, 180, rows),
        "time": pa.array(np.full(rows, 1_393_632_000_000_000), pa.timestamp("us")),
        "value": rng.uniform(0, 1, rows),
    }
    client.ingest(dataset, pa.table(columns))


def texts(found: galileo.Labels) -> list[str]:
    return found.texts().to_pylist()


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("spooled")
    client.create_dataset(galileo.Schema(name, [Feature("value")], geohash_precision=4))
    return name


def test_a_watch_goes_on_where_its_spool_ends(client, dataset, path):
    ccq = client.submit(dataset, "value > 0.5", interval="250ms", expiration="10m")
    ingest(client, dataset, rows=500, seed=1)
    with Spool(path) as spool:
        next(client.watch(ccq.id, spool=spool))
        with pytest.raises(InputError, match="leave the token out"):
            next(client.watch(ccq.id, token=ccq.token, spool=spool))
    ingest(client, dataset, rows=500, seed=2)
    full = texts(client.query(dataset, "value > 0.5"))
    with Spool(path) as spool:
        watched = client.watch(ccq.id, spool=spool)
        while len(spool) < len(full):
            next(watched)
        assert sorted(texts(spool.labels())) == sorted(full)
        client.cancel(ccq.id)
        with pytest.raises(CcqCancelled):
            next(watched)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_watch_that_is_killed_at_random_misses_and_repeats_nothing(
    cluster, client, dataset, path, tmp_path
):
    ccq = client.submit(dataset, "value > 0.3", interval="250ms", expiration="10m")
    stopping = threading.Event()

    def stream() -> None:
        seed = 0
        while not stopping.wait(0.05):
            seed += 1
            ingest(client, dataset, rows=200, seed=seed)

    streaming = threading.Thread(target=stream)
    streaming.start()
    chance = random.Random(7)
    command = [*WATCH, "--node", cluster.addresses[0], "ccq", "watch", ccq.id, "--spool", str(path)]
    try:
        for _ in range(KILLS):
            watching = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            before = path.stat().st_size if path.exists() else 0
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                if path.exists() and path.stat().st_size > before:
                    break
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.4))
            watching.send_signal(signal.SIGKILL)
            watching.wait()
    finally:
        stopping.set()
        streaming.join()
    full = texts(client.query(dataset, "value > 0.3"))
    with Spool(path) as spool:
        killed_with = len(spool)
        watched = client.watch(ccq.id, spool=spool)
        while len(spool) < len(full):
            next(watched)
        watched.close()
        found = texts(spool.labels())
    assert killed_with > 0
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(full)
    client.cancel(ccq.id)

    output = tmp_path / "found.parquet"
    done = CliRunner().invoke(main, ["ccq", "spool", str(path), "--output", str(output), "--json"])
    assert done.exit_code == 0, done.output
    assert pyarrow.parquet.read_table(output).num_rows == len(full)
