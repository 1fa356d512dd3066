"""Joins of observations with tables, compared with loops over all pairs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import InputError, MessageTooLarge
from galileo.geo.circles import Circle, metres
from galileo.model.enrichment import (
    Lookup,
    Near,
    Nearest,
    Step,
    Within,
    added_fields,
    check_steps,
    step_from_dict,
    step_to_dict,
    steps_of,
)
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table, versions_of
from galileo.model.times import times_from_micros
from galileo.query import joins
from galileo.query.joins import Reference, enrich, keys_of

Row = dict[str, Any]
AIR = Schema("air", [Feature("station", type="text"), Feature("number", type="int")])
RATINGS = Table("ratings", {"id": "text", "stars": "int", "place": "geometry"}, "id")
PAIRS = Table("pairs", {"a": "int", "b": "text", "value": "float"}, ["a", "b"])
VALID = Table(
    "valid",
    {"station": "text", "since": "time", "to": "time", "offset": "float"},
    ["station", "since"],
)
EDGES = [-180.0, -179.9, 179.9, 180.0]


def observations(chance: random.Random, count: int) -> pa.Table:
    """Observations near the poles, the antimeridian and elsewhere, some without a station."""
    rows = [
        {
            "latitude": chance.choice([-90.0, 90.0, 89.99, chance.uniform(-90, 90), 10.0]),
            "longitude": chance.choice([*EDGES, chance.uniform(-180, 180), 10.0]),
            "time": chance.randrange(20),
            "station": chance.choice(["a", "b", "c", "", None]),
            "number": chance.choice([1, 2, 3, None]),
        }
        for _ in range(count)
    ]
    return pa.table(
        [
            pa.array([row["latitude"] for row in rows]),
            pa.array([row["longitude"] for row in rows]),
            times_from_micros(np.array([row["time"] for row in rows], dtype=np.int64)),
            pa.array([row["station"] for row in rows], pa.string()),
            pa.array([row["number"] for row in rows], pa.int64()),
        ],
        schema=AIR.observation_schema,
    )


def reference(table: Table, rows: list[Row]) -> Reference:
    return Reference(table, versions_of(table, pa.Table.from_pylist(rows, table.arrow_schema)))


def shape(chance: random.Random) -> shapely.Geometry | None:
    """A region of any kind, perhaps across the antimeridian, or none."""
    kind, x, y = chance.randrange(6), chance.uniform(-200, 200), chance.uniform(-80, 80)
    wide, high = chance.uniform(0.1, 120), chance.uniform(0.1, min(90 - abs(y), 60))
    if kind == 0:
        return None
    if kind == 1:
        return shapely.Point(max(-180.0, min(x, 180.0)), y)
    if kind == 2:
        return shapely.Polygon([(x, y), (x + wide, y), (x, y + high)])
    return shapely.box(x, y, x + wide, y + high)


def places(chance: random.Random, count: int, make: Any) -> list[Row]:
    return [
        {"id": f"r{number}", "stars": number, "place": None if one is None else shapely.to_wkb(one)}
        for number in range(count)
        for one in [make(chance)]
    ]


def point(chance: random.Random) -> shapely.Geometry | None:
    if chance.random() < 0.1:
        return chance.choice([None, shapely.box(9, 9, 11, 11)])
    x = chance.choice([*EDGES, 10.0, 190.0, chance.uniform(-180, 180)])
    return shapely.Point(x, chance.choice([90.0, -90.0, 10.0, chance.uniform(-90, 90)]))


def distance_m(row: Row, wkb: bytes | None) -> float:
    """Of an observation from a point; infinite from anything else."""
    one = None if wkb is None else shapely.from_wkb(wkb)
    if one is None or one.geom_type != "Point":
        return float("inf")
    circle = Circle(one.y, one.x - 360.0 if one.x > 180 else one.x, 1.0)
    chords = circle.half_chords(np.array([row["latitude"]]), np.array([row["longitude"]]))
    return float(metres(chords)[0])


@pytest.mark.parametrize("seed", range(20))
def test_rows_within_are_those_of_a_loop(seed: int) -> None:
    chance = random.Random(seed)
    seen, rows = observations(chance, 60), places(chance, 40, shape)
    step = Within("ratings")
    result = enrich(seen, [step], {"ratings": reference(RATINGS, rows)})
    assert result.schema == pa.schema([*seen.schema, *added_fields([step], {"ratings": RATINGS})])
    for row in result.to_pylist():
        turned = [
            shapely.Point(row["longitude"] + turn, row["latitude"]) for turn in (0, 360, -360)
        ]
        expected = sorted(
            [
                {"id": one["id"], "stars": one["stars"]}
                for one in rows
                if one["place"] is not None
                and any(shapely.from_wkb(one["place"]).intersects(p) for p in turned)
            ],
            key=lambda one: one["id"],
        )
        assert row["ratings"] == expected


@pytest.mark.parametrize("seed", keep_quick(range(8), *range(3)))
@pytest.mark.parametrize("within", [0.0, 50.0, 2e6, 3e7])
def test_rows_near_are_those_of_a_loop(seed: int, within: float) -> None:
    chance = random.Random(seed)
    seen, rows = observations(chance, 40), places(chance, 40, point)
    steps: list[Step] = [Near("ratings", within=within, columns=["id"])]
    near = enrich(seen, steps, {"ratings": reference(RATINGS, rows)}).to_pylist()
    steps = [Nearest("ratings", count=3, within=within, columns=["id"])]
    nearest = enrich(seen, steps, {"ratings": reference(RATINGS, rows)}).to_pylist()
    for row, first in zip(near, nearest, strict=True):
        apart = {one["id"]: distance_m(row, one["place"]) for one in rows}
        expected = {name for name, metres in apart.items() if metres <= within}
        found = row["ratings"]
        assert {one["id"] for one in found} == expected
        distances = [one["distance"] for one in found]
        assert distances == sorted(distances)
        assert distances == pytest.approx([apart[one["id"]] for one in found], abs=1e-5)
        assert first["ratings"] == found[:3]


def test_nearest_keeps_the_first_ones_of_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    seen, rows = observations(chance, 50), places(chance, 80, point)
    step = Nearest("ratings", count=2, within=3e7)
    whole = enrich(seen, [step], {"ratings": reference(RATINGS, rows)})
    monkeypatch.setattr(joins, "PAIRS_MAX", 320)
    monkeypatch.setattr(joins, "ROWS_AT_ONCE", 5)
    assert enrich(seen, [step], {"ratings": reference(RATINGS, rows)}) == whole
    with raises(MessageTooLarge, bound=320):
        enrich(seen, [Near("ratings", within=3e7)], {"ratings": reference(RATINGS, rows)})


@pytest.mark.parametrize("seed", range(8))
def test_lookup_gives_the_row_of_the_key(seed: int) -> None:
    chance = random.Random(seed)
    seen = observations(chance, 50)
    rows = [{"a": a, "b": b, "value": chance.random()} for a in (1, 2) for b in ("a", "", "z")]
    step = Lookup("pairs", {"station": "b", "number": "a"})
    check_steps([step], seen.schema, {"pairs": PAIRS})
    keys = keys_of(seen, step, PAIRS)
    assert keys.schema == PAIRS.key_schema
    assert {(row["a"], row["b"]) for row in keys.to_pylist()} == {
        (row["number"], row["station"])
        for row in seen.to_pylist()
        if None not in (row["number"], row["station"])
    }
    assert len(keys) == len({tuple(row.values()) for row in keys.to_pylist()})
    by_key = {(row["a"], row["b"]): row["value"] for row in rows}
    for row in enrich(seen, [step], {"pairs": reference(PAIRS, rows)}).to_pylist():
        assert row["pairs.value"] == by_key.get((row["number"], row["station"]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("until", ["", "to"])
def test_lookup_as_of_gives_the_row_that_is_valid(seed: int, until: str) -> None:
    chance = random.Random(seed)
    seen = observations(chance, 60)
    keys = {(chance.choice("abx"), chance.randrange(-3, 20)) for _ in range(25)}
    rows: list[Row] = [
        {
            "station": station,
            "since": since,
            "to": chance.choice([None, since + chance.randrange(8)]),
            "offset": chance.random(),
        }
        for station, since in sorted(keys)
    ]
    chance.shuffle(rows)
    step = Lookup("valid", "station", as_of="since", until=until, columns=["offset"])
    check_steps([step], seen.schema, {"valid": VALID})
    result = enrich(seen, [step], {"valid": reference(VALID, rows)})
    times = seen.column("time").cast(pa.int64()).to_pylist()
    for row, time in zip(result.to_pylist(), times, strict=True):
        earlier = [one for one in rows if one["station"] == row["station"] and one["since"] <= time]
        last = max(earlier, key=lambda one: one["since"], default=None)
        if last is not None and until and last["to"] is not None and last["to"] <= time:
            last = None
        assert row["valid.offset"] == (last and last["offset"])


@pytest.mark.parametrize("seed", range(10))
def test_changes_of_a_reference_give_what_all_rows_give(seed: int) -> None:
    chance = random.Random(seed)
    seen = observations(chance, 40)
    steps: list[Step] = [
        Lookup("ratings", "station"),
        Within("ratings", columns=["id", "stars", "place"]),
        Near("ratings", within="5000km"),
    ]
    made, rows = reference(RATINGS, []), dict[str, Row]()
    for _ in range(6):
        changes: dict[str, Row] = {}
        for number, one in enumerate(places(chance, 12, chance.choice([point, shape]))):
            name = chance.choice(["a", "b", "c", "", *(f"r{n}" for n in range(20))])
            changes[name] = one | {"id": name, "stars": number, "deleted": chance.random() < 0.3}
        rows |= changes
        rows = {name: row for name, row in rows.items() if not row["deleted"]}
        made = made.updated(pa.Table.from_pylist([*changes.values()], RATINGS.observation_schema))
        anew = reference(RATINGS, [*rows.values()])
        assert len(made) == len(rows)
        for step in steps:  # What is derived is there from the first time on.
            assert enrich(seen, [step], {"ratings": made}) == enrich(
                seen, [step], {"ratings": anew}
            )
    assert made.nbytes > made.rows.nbytes


def test_updated_rows_that_stay_have_the_number_of_their_state() -> None:
    """Else all rows would be news after each change."""
    old = [{"id": name, "stars": 1, "place": None} for name in "abc"]
    before = reference(RATINGS, old)
    changes = [{"id": "b", "stars": 2, "place": None, "deleted": False}]
    after = before.updated(pa.Table.from_pylist(changes, RATINGS.observation_schema))
    since = dict(zip(after.rows["id"].to_pylist(), after.since.tolist(), strict=True))
    assert before.since.tolist() == [before.number] * 3
    assert since == {"a": before.number, "b": after.number, "c": before.number}


def test_table_without_geometries_joins_nothing_by_place() -> None:
    rows: list[Row] = [{"id": f"r{number}", "stars": 1, "place": None} for number in range(3)]
    seen = observations(random.Random(0), 5)
    steps: list[Step] = [Within("ratings"), Near("ratings", within=3e7)]
    for step in steps:
        result = enrich(seen, [step], {"ratings": reference(RATINGS, rows)})
        assert result.column("ratings").to_pylist() == [[]] * 5


def test_enrichment_of_nothing_has_the_columns() -> None:
    nothing = AIR.observation_schema.empty_table()
    steps = [
        Within("ratings"),
        Lookup("valid", "station", as_of="since"),
        Lookup("pairs", {"station": "b", "number": "a"}),
    ]
    tables = {table.name: table for table in (RATINGS, VALID, PAIRS)}
    empty = {name: reference(table, []) for name, table in tables.items()}
    names = ["ratings", "valid.since", "valid.to", "valid.offset", "pairs.value"]
    for seen in (nothing, observations(random.Random(0), 3)):
        result = enrich(seen, steps, empty)
        assert result.schema == pa.schema([*seen.schema, *added_fields(steps, tables)])
        assert result.column_names == [*seen.column_names, *names]
    assert result.column("ratings").to_pylist() == [[], [], []]


STEPS: list[Step] = [
    Lookup("ratings", "station"),
    Lookup("pairs", {"station": "b", "number": "a"}, columns=["value"]),
    Lookup("valid", "station", as_of="since", until="to"),
    Within("ratings", columns=["stars"]),
    Near("ratings", within="20km"),
    Nearest("ratings", count=3, within=1),
]


@pytest.mark.parametrize("step", STEPS)
def test_step_as_json_is_read_again(step: Step) -> None:
    assert step_from_dict(step_to_dict(step)) == step


@pytest.mark.parametrize(
    ("raw", "parameter"),
    [
        ("lookup", "enrich"),
        ({}, "enrich"),
        ({"step": "join", "table": "ratings"}, "enrich"),
        ({"step": "lookup", "table": "ratings"}, "enrich"),
        ({"step": "lookup", "table": "ratings", "on": {}}, "on"),
        ({"step": "lookup", "table": "ratings", "on": {"a": 1}}, "on"),
        ({"step": "lookup", "table": "ratings", "on": "a", "until": "b"}, "until"),
        ({"step": "lookup", "table": "ratings", "on": "a", "as_of": 1}, "as_of"),
        ({"step": "within", "table": "ratings", "columns": "a"}, "columns"),
        ({"step": "within", "table": "ratings", "columns": ["a", "a"]}, "columns"),
        ({"step": "within", "table": "ratings", "where": "a"}, "enrich"),
        ({"step": "nearest", "table": "ratings", "count": 0, "within": 1}, "count"),
    ],
)
def test_json_that_is_no_step_is_refused(raw: Any, parameter: str) -> None:
    with raises(InputError, parameter=parameter):
        step_from_dict(raw)


def test_distances_have_units() -> None:
    assert Near("officers", within="1.5 km").within_m == 1500.0
    with raises(InputError, expected="distance"):
        Near("officers", within="20 miles")


@pytest.mark.parametrize(
    "steps", ["ratings", [1], [Within("a")] * 17, [Within("a"), Near("a", within=1)]]
)
def test_steps_are_different_tables_in_a_list(steps: Any) -> None:
    with raises(InputError, parameter="enrich"):
        steps_of(steps)


@pytest.mark.parametrize(
    ("step", "table", "parameter"),
    [
        (Lookup("pairs", "number"), PAIRS, "on"),
        (Lookup("pairs", {"number": "a"}), PAIRS, "on"),
        (Lookup("pairs", {"number": "a", "station": "value"}), PAIRS, "on"),
        (Lookup("pairs", {"station": "a", "number": "b"}), PAIRS, "on"),
        (Lookup("ratings", "town"), RATINGS, "on"),
        (Lookup("ratings", "number"), RATINGS, "on"),
        (Lookup("pairs", "number", as_of="b"), PAIRS, "as_of"),
        (Lookup("ratings", "station", as_of="id"), RATINGS, "as_of"),
        (Lookup("valid", "station", as_of="since", until="offset"), VALID, "until"),
        (Lookup("ratings", "station", columns=["town"]), RATINGS, "columns"),
        (Within("pairs"), PAIRS, "table"),
        (Within("ratings", columns=["town"]), RATINGS, "columns"),
        (
            Near("far", within=1),
            Table("far", {"id": "text", "distance": "float", "at": "geometry"}, "id"),
            "columns",
        ),
    ],
)
def test_steps_that_do_not_fit_are_refused(step: Step, table: Table, parameter: str) -> None:
    with raises(InputError, parameter=parameter):
        check_steps([step], AIR.observation_schema, {table.name: table})


def test_table_with_the_name_of_a_column_is_refused() -> None:
    table = Table("station", {"id": "text", "at": "geometry"}, "id")
    with raises(InputError, parameter="enrich"):
        check_steps([Within("station")], AIR.observation_schema, {"station": table})
