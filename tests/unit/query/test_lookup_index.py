"""Subscriptions with rows of tables, compared with loops; templates that name columns of tables."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
import shapely
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidObservations
from galileo.model.enrichment import lookups_of
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table
from galileo.model.times import TIME_TYPE
from galileo.query.joins import Reference
from galileo.query.lookup_index import LookupIndex
from galileo.query.subscriptions import ParameterQuery, RowIndex

SCHEMA = Schema("air", [Feature("t"), Feature("s", type="text")])
OFFICERS = Table("officers", {"officer": "text", "place": "geometry", "name": "text"}, "officer")
LIMITS = Table("limits", {"level": "int", "kind": "text", "least": "int"}, ["level", "kind"])
TABLES = {table.name: table for table in (OFFICERS, LIMITS)}
LOOKUP = {"officers": ":officer", "limits": {":kind": "kind", ":level": "level"}}
NEAR = "S_DWITHIN(geometry, officers.place, 500) AND t >= limits.least AND t < :most"
EITHER = "(s = officers.name OR t >= limits.least) AND t < :most"
OWN = {"most": "float", "officer": "text", "kind": "text", "level": "int"}
PLACES = [shapely.Point(x, 50) for x in (1, 2, 3)]
NAMES, KINDS, LEVELS, NUMBERS = ("", "a", "b"), ("low", "high"), (1, 2), (1, 2, 3)
Row = dict[str, Any]


def query_of(text: str, lookup: Any = LOOKUP) -> ParameterQuery:
    return ParameterQuery(text, SCHEMA, lookups_of(lookup), TABLES)


def wkb(shape: shapely.Geometry | None) -> bytes | None:
    return None if shape is None else shapely.to_wkb(shape)


class History:
    """A template, and subscriptions and rows in dictionaries.

    Attributes:
        rows: of each table by key.
        seen: subscriptions and rows at the last call of `compare`.
        changes, changed_keys: since then.
    """

    def __init__(self, seed: int, text: str) -> None:
        self.chance, self.text = random.Random(seed), text
        query = query_of(text)
        columns = {"id": "text", "broker": "text", **dict(query.parameters)}
        self.table = Table("near.subscriptions", columns, "id")  # type: ignore[arg-type]
        self.index = LookupIndex(query, self.table, TABLES)
        self.subscriptions: dict[str, Row] = {}
        self.rows: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self.references = {
            name: Reference(table, table.arrow_schema.empty_table())
            for name, table in TABLES.items()
        }
        self.seen = dict(self.subscriptions), {name: dict(of) for name, of in self.rows.items()}
        self.changes: dict[str, Row] = {}
        self.changed_keys: dict[str, list[Row]] = {name: [] for name in TABLES}

    def subscribe(self, count: int, *, is_compared: bool = False) -> None:
        one = self.chance.choice
        rows = [
            {"id": name, "broker": one("xy"), "officer": one("pqrs"), "kind": one(KINDS)}
            | {"level": one(LEVELS), "most": one([2.5, 9.0]), "deleted": one([True, False, False])}
            for name in self.chance.sample([f"s{number}" for number in range(12)], k=count)
        ]
        if not is_compared:
            self.index.apply(pa.Table.from_pylist(rows, schema=self.table.observation_schema))
        for row in rows:
            self.changes[row["id"]] = row
            self.subscriptions.pop(row["id"], None)
            if not row["deleted"]:
                self.subscriptions[row["id"]] = row

    def upsert(self, name: str) -> None:
        one = self.chance.choice
        if name == "officers":
            shapes = [*PLACES, *PLACES, None, shapely.box(0, 0, 1, 1)]
            rows = [
                {"officer": officer, "place": one(shapes), "name": one([*NAMES, None])}
                for officer in self.chance.sample("pqrs", k=2)
            ]
        else:
            rows = [{"level": one(LEVELS), "kind": one(KINDS), "least": one([*NUMBERS, None])}]
        rows = [row | {"deleted": self.chance.random() < 0.3} for row in rows]
        table, known = TABLES[name], self.rows[name]
        self.changed_keys[name] += rows
        for row in rows:
            key = tuple(row[column] for column in table.key_columns)
            known.pop(key, None)
            if not row["deleted"]:
                known[key] = row
        self.references[name] = self.references[name].updated(self._stored(table, rows))
        if self.chance.random() < 0.1:  # It is read anew.
            whole = self._stored(table, list(known.values()))
            self.references[name] = Reference(table, whole)

    def _stored(self, table: Table, rows: list[Row]) -> pa.Table:
        stored = [row | ({"place": wkb(row["place"])} if "place" in row else {}) for row in rows]
        return pa.Table.from_pylist(stored, schema=table.observation_schema)

    def check(self, count: int) -> int:
        """Compares the matches of some observations; returns how many there are."""
        self.index.join(self.references)
        return self.check_matches(count)

    def compare(self, count: int) -> int:
        """Compares before and after changes; returns how many matches there are."""
        changes, changed_keys = self.changes, self.changed_keys
        self.changes, self.changed_keys = {}, {name: [] for name in TABLES}
        joined = self.index.joined_changes(
            pa.Table.from_pylist([*changes.values()], schema=self.table.observation_schema),
            self.references,
            {
                name: self._stored(TABLES[name], rows).select(TABLES[name].key_columns)
                for name, rows in changed_keys.items()
            },
        )
        changed = {row["officer"] for row in changed_keys["officers"]}
        limits = {(row["level"], row["kind"]) for row in changed_keys["limits"]}
        follow = {
            name
            for name, one in self.subscriptions.items()
            if one["officer"] in changed or (one["level"], one["kind"]) in limits
        }
        assert sorted(joined.column("id").to_pylist()) == sorted({*changes, *follow})
        seen, there = self.seen, (self.subscriptions, self.rows)
        self.subscriptions, self.rows = seen
        found = self.check_matches(count)
        self.subscriptions, self.rows = there
        self.index.apply(joined)
        self.seen = dict(there[0]), {name: dict(rows) for name, rows in there[1].items()}
        return found + self.check_matches(count)

    def check_matches(self, count: int) -> int:
        """As `check`, of the index as it is."""
        one = self.chance.choice
        observed = [(one(PLACES), float(one(NUMBERS)), one(NAMES)) for _ in range(count)]
        columns = {
            "latitude": [place.y for place, _, _ in observed],
            "longitude": [place.x for place, _, _ in observed],
            "time": pa.array([0] * count, TIME_TYPE),
            "t": [t for _, t, _ in observed],
            "s": [s for _, _, s in observed],
        }
        found = [
            (name, record["broker"], row)
            for record in self.index.match(
                RowIndex(self.index.query, pa.table(columns))
            ).to_pylist()
            for name in record["subscriptions"]
            for row in record["rows"]
        ]
        expected = [
            (name, subscription["broker"], row)
            for name, subscription in self.subscriptions.items()
            for row, observation in enumerate(observed)
            if self._matches(subscription, *observation)
        ]
        assert sorted(found) == sorted(expected)
        assert len(self.index) == len(self.subscriptions)
        return len(found)

    def _matches(self, subscription: Row, place: shapely.Point, t: float, s: str) -> bool:
        officer = self.rows["officers"].get((subscription["officer"],))
        limit = self.rows["limits"].get((subscription["level"], subscription["kind"]))
        if officer is None or limit is None or limit["least"] is None:
            return False
        if self.text == EITHER:
            if officer["name"] is None:
                return False
            matches = s == officer["name"] or t >= limit["least"]
        else:
            matches = officer["place"] == place and t >= limit["least"]
        return matches and t < subscription["most"]


@pytest.mark.parametrize("text", [NEAR, EITHER])
def test_random_histories_match_what_loops_over_subscriptions_and_rows_match(text: str) -> None:
    assert play_histories(text, is_compared=False) > 20


@pytest.mark.parametrize("text", [NEAR, EITHER])
def test_changes_of_random_histories_are_those_of_subscriptions_and_of_their_rows(
    text: str,
) -> None:
    assert play_histories(text, is_compared=True) > 40


def play_histories(text: str, *, is_compared: bool) -> int:
    """Checks the index after each of some steps; how much it has matched in all."""
    counts = []

    @examples(40)
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        history = History(seed, text)
        for _ in range(8):
            for _ in range(history.chance.randrange(3)):
                history.subscribe(history.chance.randint(1, 6), is_compared=is_compared)
            for _ in range(history.chance.randrange(4)):
                history.upsert(history.chance.choice(list(TABLES)))
            counts.append(history.compare(6) if is_compared else history.check(6))

    check()
    return sum(counts)


def test_rows_that_did_not_change_are_not_joined_again() -> None:
    history = History(0, NEAR)
    history.subscribe(12)
    history.check(1)
    applied: list[int] = []
    query = history.index.query
    fits = type(query).fits

    def count(self: ParameterQuery, rows: pa.Table) -> Any:
        applied.append(rows.num_rows)
        return fits(self, rows)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParameterQuery, "fits", count)
        history.check(1)
        subscription = next(iter(history.subscriptions.values()))
        row = {"officer": subscription["officer"], "place": PLACES[0], "deleted": False}
        history.rows["officers"][row["officer"],] = row | {"name": None}
        changes = history._stored(OFFICERS, [row])
        history.references["officers"] = history.references["officers"].updated(changes)
        history.check(1)
    officers = [one["officer"] for one in history.subscriptions.values()]
    assert applied == [officers.count(subscription["officer"])]


# --- templates -------------------------------------------------------------------------------


def test_parameters_are_those_of_subscriptions_and_keys() -> None:
    query = query_of(NEAR)
    assert dict(query.parameters) == OWN
    assert [(step.table, step.columns) for step in query.lookups] == [
        ("limits", ("least",)),
        ("officers", ("place",)),
    ]
    assert dict(
        query_of("t > :most AND s = officers.officer", {"officers": ":who"}).parameters
    ) == {
        "most": "float",
        "who": "text",
    }
    assert dict(query_of("s = :s AND s <> officers.name", {"officers": ":s"}).parameters) == {
        "s": "text"
    }


OFFICER = {"officers": ":officer"}


@pytest.mark.parametrize(
    ("text", "lookup", "parameter"),
    [
        ("t > :most", OFFICER, "lookup"),
        ("s = officers.nam", OFFICER, "lookup"),
        ("t > officers.name", OFFICER, "lookup"),
        ("S_DWITHIN(geometry, officers.name, 5)", OFFICER, "lookup"),
        ("S_DWITHIN(geometry, officers.place, :m) AND t > :officer", OFFICER, "lookup"),
        (":query AND s = officers.name", OFFICER, "lookup"),
        ("officers.name AND t > 3", OFFICER, "lookup"),
        ("s = officers.name AND t > officers.name", OFFICER, "officers.name"),
        ("t > limits.least", {"limits": ":level"}, "lookup"),
        ("t > limits.least", {"limits": {":level": "level", ":k": "sort"}}, "lookup"),
        ("s = officers.name", {"officers": ":id"}, "id"),
    ],
)
def test_templates_that_do_not_fit_their_tables_are_refused(
    text: str, lookup: Any, parameter: str
) -> None:
    with raises(InputError, parameter=parameter):
        query_of(text, lookup)


def test_column_of_a_table_that_is_not_looked_up_is_unknown() -> None:
    with raises(InputError, parameter="lookup"):
        query_of("s = officers.name AND t > limits.least", OFFICER)


def test_names_of_tables_can_have_points() -> None:
    columns = {"officer": "text", "name": "text"}
    tables = {name: Table(name, columns, "officer") for name in ("p", "p.q")}  # type: ignore[arg-type]
    lookups = lookups_of({"p": ":one", "p.q": ":two"})
    query = ParameterQuery('s = p.name OR s = "p.q.name"', SCHEMA, lookups, tables)
    assert dict(query.parameters) == {"one": "text", "two": "text"}
    assert [*query.places] == ["p.name", "p.q.name"]


def test_keys_and_other_parameters_are_checked_without_the_rows() -> None:
    query = query_of(EITHER)
    rows = {"id": ["a", "b"], "broker": ["x", "x"], "most": [1.0, 2.0], "officer": ["p", None]}
    table = pa.table(rows | {"kind": ["low", "low"], "level": pa.array([1, 1], pa.int64())})
    query.check(table.slice(0, 1))
    with raises(InvalidObservations, row=1, subscription="b"):
        query.check(table)
    general = query_of("s LIKE :s OR s = officers.name", OFFICER)
    with raises(InvalidObservations, row=0):
        general.check(pa.table({"id": ["a"], "broker": ["x"], "s": ["b\\"], "officer": ["p"]}))
