"""The predicates of the conformance tests of OGC 21-065r2 select as many items as there."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from galileo.errors import InputError, UnsupportedQuery
from galileo.gateway.documents import CONFORMANCE
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query import parse

PLACES = "ne_110m_populated_places_simple"
FILES = {
    PLACES: "places.csv",
    "ne_110m_admin_0_countries": "countries.csv",
    "ne_110m_rivers_lake_centerlines": "rivers.csv",
}
TYPES = dict.fromkeys(("pop_max", "pop_min", "pop_other", "POP_EST"), "float")
TYPES["boolean"] = "bool"
UNDATED = 240
"""Places without a date, which cannot be observations of that date."""
REFUSED = {
    "S_EQUALS",
    "S_TOUCHES",
    "S_CROSSES",
    "S_CONTAINS",
    "S_OVERLAPS",
    "T_CONTAINS",
    "T_FINISHES",
    "T_FINISHEDBY",
    "T_MEETS",
    "T_METBY",
    "T_OVERLAPS",
    "T_OVERLAPPEDBY",
    "T_STARTS",
    "T_STARTEDBY",
    "GEOMETRYCOLLECTION",
    "INTERVAL",
}
Items = tuple[Schema, pa.Table]


def items(path: Path, time: str = "") -> Items:
    """The items of a file that have a time, as observations of that time."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not time or row[time]]
    names = [name for name in rows[0] if name not in ("latitude", "longitude", "label")]
    schema = Schema("items", [Feature(name, type=TYPES.get(name, "text")) for name in names])
    times_us = [micros(row[time]) if time else 0 for row in rows]
    columns = {
        "latitude": pa.array([float(row["latitude"]) for row in rows]),
        "longitude": pa.array([float(row["longitude"]) for row in rows]),
        "time": times_from_micros(np.array(times_us)),
    }
    for feature in schema.features:
        texts = pa.array([row[feature.name] or None for row in rows])
        numbers = texts if feature.type == "text" else texts.cast(pa.float64())
        columns[feature.name] = numbers.cast(feature.arrow_type)
    return schema, pa.table(columns).select(schema.observation_schema.names)


def test_predicates_select_as_many_items_as_the_standard_says(sample_data: Path) -> None:
    folder = sample_data / "cql2"
    if not folder.is_dir():
        pytest.skip("no predicates of OGC 21-065r2: GALILEO_SAMPLE_DATA has no directory cql2")
    data = {source: items(folder / name) for source, name in FILES.items()}
    timed = {name: items(folder / "places.csv", name) for name in ("date", "start")}
    with (folder / "predicates.tsv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["class"] != "class"]

    counts, refused, not_points = {}, {}, set()
    for row in rows:
        predicate = row["predicate"].replace("geom,", "geometry,")
        schema, table = data[row["source"]]
        key, expected = f"{row['class']} {row['source']}: {predicate}", int(row["items"])
        for name in ("date", "start"):
            written = '"date"' if name == "date" else name
            if written in predicate and f"interval({name}" not in predicate:
                predicate, (schema, table) = predicate.replace(written, "datetime"), timed[name]
                expected -= UNDATED if predicate.endswith("IS NULL") else 0
        declared = any(uri.endswith(f"cql2/1.0/conf/{row['class']}") for uri in CONFORMANCE)
        try:
            query = parse(predicate, schema)
        except (InputError, UnsupportedQuery) as error:
            refused[key] = (declared, error.message)
            continue
        if "geometry," in predicate and row["source"] != PLACES:
            not_points.add(key)
        else:
            counts[key] = (int(query.match_observations(table).sum()), expected)
    assert {key: pair for key, pair in counts.items() if pair[0] != pair[1]} == {}
    assert (len(rows), len(counts), len(refused), len(not_points)) == (139, 88, 27, 24)
    for key, (declared, message) in refused.items():
        assert not declared, key
        assert any(name in key.upper() and name in message.upper() for name in REFUSED), message
