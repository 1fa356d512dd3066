"""A year of made-up earthquakes with corrections, compared with PostgreSQL that gets the same ones.

Every other day a bulletin brings first reports, reviews that change the magnitude, the place and
the time, also into another block, and events that were no earthquakes. A continuous query is the
alarm.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import galileo
from benchmarks import postgis
from galileo.client import Client
from galileo.generate import QuakesLike
from galileo.generate.quakes import Bulletin

DAYS, PER_DAY = 365, 4
STRONG, NEARLY = 6.0, 5.5
MOMENT = 30
"""After so many bulletins the whole catalogues are compared."""
Event: TypeAlias = tuple[Any, ...]
Alarms: TypeAlias = dict[str, float]
COLUMNS = ("event", "latitude", "longitude", "time", "magnitude", "depth", "status")


@pytest.fixture
def session() -> Iterator[postgis.Session]:
    try:
        with postgis.running() as running:
            yield running
    except postgis.NoServer as error:
        pytest.skip(str(error))


class Catalogue:
    """The earthquakes in a keyed dataset and in a table of PostgreSQL, and the alarm.

    Attributes:
        standing: magnitudes of the alarms that the reader holds, by block and event.
        counts: of what has happened.
    """

    def __init__(self, client: Client, session: postgis.Session, name: str) -> None:
        self.client, self.session, self.name = client, session, name
        schema = QuakesLike().schema(name)
        client.create_dataset(schema)
        session.ask(
            "CREATE TABLE quakes (event text PRIMARY KEY, latitude double precision, longitude "
            "double precision, time timestamptz, magnitude double precision, "
            "depth double precision, status text)"
        )
        strong = galileo.f.magnitude >= STRONG
        self.alarm = client.submit(name, strong, interval="250ms", expiration="6h")
        self.token = self.alarm.token
        self.standing = by_key(self.alarm.initial)
        self.counts = Counter[str]()

    def store(self, bulletin: Bulletin) -> bool:
        """Whether an alarm may have changed."""
        client, events = self.client, bulletin.reports["event"].to_pylist()
        deleted = list(bulletin.deleted)
        earlier = client.select(self.name, galileo.f.event.isin([*events, *deleted]))
        magnitudes = dict(
            zip(*(earlier[c].to_pylist() for c in ("event", "magnitude")), strict=True)
        )
        assert len(magnitudes) == earlier.num_rows, "an event is there twice"
        corrected = earlier.filter(
            pc.is_in(earlier["event"], value_set=pa.array(events, pa.string()))
        )
        if events:
            keys = client.version(self.name).cursor
            client.ingest(self.name, bulletin.reports, replaces=corrected)
            changes = client.changes(self.name, keys).rows.to_pylist()
            self.counts["moved"] += sum(change["deleted"] for change in changes)
            rows = ", ".join(map(sql_row, rows_of(bulletin.reports)))
            replaced = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
            self.session.ask(
                f"INSERT INTO quakes VALUES {rows} ON CONFLICT (event) DO UPDATE SET {replaced}"
            )
        if deleted:
            client.delete(self.name, galileo.f.event.isin(deleted))
            names = ", ".join(f"'{event}'" for event in deleted)
            self.session.ask(f"DELETE FROM quakes WHERE event IN ({names})")
        self.counts["corrected"] += corrected.num_rows
        self.counts["deleted"] += len(deleted)
        now: list[float] = bulletin.reports["magnitude"].to_pylist()
        return any(magnitude >= NEARLY for magnitude in (*now, *magnitudes.values()))

    def follow(self) -> Alarms:
        """The alarms after everything that is stored; an update is folded by key."""
        stored = self.client.version(self.name).cursor
        while True:
            update = self.client.fetch(self.alarm, token=self.token, wait="300ms")
            assert not update.reset
            assert update.withdrawn is not None
            for key in by_key(update.withdrawn):
                del self.standing[key]
            self.standing |= by_key(update.labels)
            self.token = update.token
            if update.labels.frontier.covers(stored) and not update.more:
                alarms = {event: magnitude for (_, event), magnitude in self.standing.items()}
                assert len(alarms) == len(self.standing), "an event has two alarms"
                return alarms

    def strong_ones(self) -> Alarms:
        """What the alarms have to be, as PostgreSQL says."""
        return {row[0]: row[4] for row in self.asked(f"WHERE magnitude >= {STRONG}")}

    def asked(self, where: str = "") -> list[Event]:
        shown = "to_char(time, 'YYYY-MM-DD HH24:MI:SS.US')"
        columns = ", ".join(shown if name == "time" else name for name in COLUMNS)
        rows = self.session.ask(
            f"SELECT json_build_array({columns}) FROM quakes {where} ORDER BY event"
        )[1]
        return [tuple(json.loads(row)) for row in rows]

    def selected(self) -> list[Event]:
        return sorted(rows_of(self.client.select(self.name)))

    def note(self, before: Alarms, alarms: Alarms) -> None:
        """Counts what has changed about alarms."""
        catalogue = {row[0]: row[4] for row in self.asked()}
        self.counts["raised"] += len(alarms.keys() - before.keys())
        self.counts["changed"] += sum(before[e] != alarms[e] for e in alarms.keys() & before.keys())
        for event in before.keys() - alarms.keys():
            self.counts["revised down" if event in catalogue else "false alarm"] += 1


def by_key(labels: galileo.Labels) -> dict[tuple[Any, str], float]:
    rows = labels.table.to_pylist()
    return {((row["cell"], row["bucket"]), row["event"]): row["magnitude"] for row in rows}


def rows_of(reports: Any) -> list[Event]:
    """Times as texts with microseconds."""
    return [
        tuple(
            row[name].strftime("%Y-%m-%d %H:%M:%S.%f") if name == "time" else row[name]
            for name in COLUMNS
        )
        for row in reports.to_pylist()
    ]


def sql_row(row: Event) -> str:
    return (
        "("
        + ", ".join(f"'{value}'" if isinstance(value, str) else repr(value) for value in row)
        + ")"
    )


@pytest.mark.slow(200)
@pytest.mark.timeout(600)
def test_a_year_of_corrections_is_that_of_postgresql(
    client: Client,
    session: postgis.Session,
    fresh_name: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalogue = Catalogue(client, session, fresh_name("quakes"))
    quakes = QuakesLike(seed=7, per_day=PER_DAY, magnitude_min=4.5)
    alarms: Alarms = {}
    for number, bulletin in enumerate(quakes.bulletins("2013-01-01", days=DAYS, every="2d")):
        if catalogue.store(bulletin):
            before, alarms = alarms, catalogue.follow()
            assert alarms == catalogue.strong_ones(), bulletin.published
            catalogue.note(before, alarms)
        if number % MOMENT == 0:
            assert catalogue.selected() == catalogue.asked(), bulletin.published
    rows = catalogue.selected()
    assert rows == catalogue.asked()
    assert catalogue.follow() == catalogue.strong_ones()
    client.cancel(catalogue.alarm)
    wanted = ("corrected", "deleted", "moved", "raised", "changed", "revised down", "false alarm")
    assert all(catalogue.counts[name] for name in wanted), catalogue.counts
    with capsys.disabled():
        print(f"\n{number + 1} bulletins, {len(rows)} earthquakes: {dict(catalogue.counts)}")
