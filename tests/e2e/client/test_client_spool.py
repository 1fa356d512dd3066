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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.cli.main import main
from galileo.client import Labels, Spool, SpooledWindow, Update, WindowChange
from galileo.client.spool import FORMAT
from galileo.cursor import CommitRange
from galileo.errors import CcqCancelled, CorruptData, InputError, SpoolConflict, TransientError
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


def test_spool_new_is_empty(path):
    with Spool(path) as spool:
        assert (len(spool), spool.ccq_id, spool.token, spool.last_number) == (0, "", "", 0)
        assert list(spool.updates()) == []
        with raises(InputError, file=str(path)):
            spool.labels()


def test_spool_syncs_before_a_transaction_counts(path):
    """With less, a power cut takes updates back whose numbers are used again."""
    with Spool(path) as spool:
        settings = [
            spool._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode")
        ]
    assert settings == [3, "delete"]


def test_spool_reopened_has_what_was_stored(path):
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


def test_spool_forget_deletes_updates_and_keeps_numbering(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        spool.forget(until=1)
        assert (len(spool), spool.token, spool.last_number) == (0, "t1", 1)
        spool.store("ccq-1", Update(labels(2), "t2"))
        assert [one.number for one in spool.updates()] == [2]


def test_spool_store_without_labels_advances_the_token(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(), "t1"))
        assert (len(spool), spool.token, spool.last_number) == (0, "t1", 0)


def test_spool_keeps_gone_commits(path):
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
    assert "dropped by retention: 2 ranges of commits" in result.output


def test_spool_of_another_query_is_refused(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        for check in (spool.check, lambda other: spool.store(other, Update(labels(2), "t2"))):
            with raises(InputError, ccq_id="ccq-1"):
                check("ccq-2")
        assert (len(spool), spool.token) == (1, "t1")


def test_spool_with_two_writers_refuses_the_later(path):
    with Spool(path) as one, Spool(path) as two:
        one.store("ccq-1", Update(labels(1), "t1"))
        with raises(SpoolConflict):
            two.store("ccq-1", Update(labels(1), "t1"))
        assert (len(one), two.token) == (1, "t1")


@pytest.mark.parametrize("kind", ["text", "another database", "a later format"])
def test_spool_of_another_file_is_refused_and_unchanged(path, kind):
    if kind == "text":
        path.write_bytes(b"latitude,longitude\n" * 200)
    else:
        if kind == "a later format":
            Spool(path).close()
        with sqlite3.connect(path) as database:
            later = f"PRAGMA user_version = {FORMAT + 1}"
            database.execute(later if kind == "a later format" else "CREATE TABLE mine (a)")
        database.close()
    before = path.read_bytes()
    with raises(InputError, file=str(path)):
        Spool(path)
    assert path.read_bytes() == before


def test_spool_damaged_update_is_corrupt_data(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(*range(50)), "t1"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE updates SET arrow = substr(arrow, 1, 100)")
    database.close()
    with Spool(path) as spool, raises(CorruptData, update=1):
        spool.labels()


def test_spool_store_with_a_full_disk_changes_nothing(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        (pages,) = spool._database.execute("PRAGMA page_count").fetchone()
        spool._database.execute(f"PRAGMA max_page_count = {pages}")  # what a full disk does
        with raises(TransientError, file=str(path)):
            spool.store("ccq-1", Update(labels(*range(100_000)), "t2"))
        assert (len(spool), spool.token) == (1, "t1")
        spool._database.execute("PRAGMA max_page_count = 100000")
        spool.store("ccq-1", Update(labels(2), "t2"))
        assert (len(spool), spool.token) == (2, "t2")


def test_spool_in_a_missing_directory_is_refused(tmp_path):
    with raises(InputError, file=str(tmp_path / "nowhere" / "x.spool")):
        Spool(tmp_path / "nowhere" / "x.spool")


def test_spool_closed_is_refused(path):
    spool = Spool(path)
    spool.close()
    with raises(InputError, file=str(path)):
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
def test_spool_equals_a_list_with_a_token(tmp_path_factory, steps):
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


def test_spool_windows_grow_close_and_reopen(path):
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
        gone = Update(labels(hour=5), "t4", withdrawn=labels(1, hour=1))
        spool.store("ccq-1", replace(gone, windows=(change(0, 0, "reopened"),)))
        assert rows_of(spool.labels(held)) == [2, 4]
        assert [(one.labels, one.is_closed) for one in spool.windows()] == [(1, False), (2, True)]
        spool.forget(until=1)
        assert spool.window(held.start).labels == 1
        assert rows_of(spool.labels(held)) == [4]


def test_spool_update_with_labels_elsewhere_withdraws_labels_of_a_window(path):
    with Spool(path) as spool:
        first = Update(labels(1, 2, hour=1), "t1", windows=(change(0, 2, "open"),))
        spool.store("ccq-1", first)
        spool.store("ccq-1", Update(labels(3, hour=9), "t2", withdrawn=labels(1, hour=1)))
        assert rows_of(spool.labels(spool.window("1970-01-01"))) == [2]


def test_spool_reset_forgets_windows(path):
    with Spool(path) as spool:
        both = (change(0, 2, "closed"), change(2, 0, "closed"))
        spool.store("ccq-1", Update(labels(1, 2, hour=1), "t1", windows=both))
        again = (change(0, 1, "open"),)
        spool.store("ccq-1", Update(labels(2, hour=1), "t2", windows=again, reset=True))
        assert spool.windows() == (SpooledWindow(0, 2 * HOUR_US, 1, is_closed=False),)


def test_spool_unknown_window_is_refused(path):
    with Spool(path) as spool:
        spool.store("ccq-1", Update(labels(1), "t1"))
        assert spool.windows() == ()
        with raises(InputError, start="2012-03-01T06:00:00Z"):
            spool.window("2012-03-01T06:00:00Z")


def test_spool_conflict_stores_no_windows(path):
    with Spool(path) as one, Spool(path) as two:
        one.store("ccq-1", Update(labels(1), "t1", windows=(change(0, 1, "open"),)))
        with pytest.raises(SpoolConflict):
            two.store("ccq-1", Update(labels(1), "t1", windows=(change(0, 1, "closed"),)))
        assert two.windows() == (SpooledWindow(0, 2 * HOUR_US, 1, is_closed=False),)


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


def test_watch_with_a_spool_continues_where_it_ends(client, dataset, path):
    ccq = client.submit(dataset, "value > 0.5", interval="250ms", expiration="10m")
    ingest(client, dataset, rows=500, seed=1)
    with Spool(path) as spool:
        next(client.watch(ccq.id, spool=spool))
        with raises(InputError, parameter="token"):
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


def test_fetch_by_a_second_reader_returns_the_same_labels(client, dataset):
    ccq = client.submit(dataset, "value > 0.5", interval="250ms", expiration="10m")
    assert len(ccq.initial) == 0
    ingest(client, dataset, rows=2_000, seed=1)
    first = client.fetch(ccq.id, token=ccq.token, wait="60s")
    ingest(client, dataset, rows=2_000, seed=2)
    second = client.fetch(ccq.id, token=first.token, wait="60s")
    # Both were acknowledged away; a reader that stored only the first token still gets all.
    again = client.fetch(ccq.id, token=ccq.token, wait="60s")
    assert {*texts(first.labels)}.isdisjoint(texts(second.labels))
    assert sorted(texts(again.labels)) == sorted(texts(first.labels) + texts(second.labels))
    client.cancel(ccq.id)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_watch_with_a_spool_killed_at_random_delivers_exactly_once(
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
