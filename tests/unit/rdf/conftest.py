"""Label sets to look at as RDF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema

HOUR_US = 3_600_000_000

MIXED = Schema(
    "nam",
    [
        Feature("temperature", "K", standard_name="air_temperature", description="at 2 m"),
        Feature("level", "m", type="int", flags={0: "ground", 1: "mast"}),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
        Feature("remark", type="text", indexed=False),
    ],
    geohash_precision=3,
)


def make_labels(rows: list[dict[str, Any]]) -> LabelSet:
    """Labels of `MIXED`; what a row does not say has a default, `row` counts up."""
    defaults = {"temperature": None, "level": None, "station": None, "raining": None}
    plain = {"geohash": "9xj", "bucket": 0, "rows": 1, "partition": 0, "sequence": 1}
    full = [{"row": number} | plain | defaults | row for number, row in enumerate(rows)]
    table = {name: [row.get(name) for row in full] for name in MIXED.label_schema.names}
    table["cell"] = geohash.from_text([row["geohash"] for row in full]).tolist()
    return LabelSet(MIXED, pa.table(table, schema=MIXED.label_schema))


@pytest.fixture(scope="session")
def mixed() -> Callable[[list[dict[str, Any]]], LabelSet]:
    return make_labels


@pytest.fixture(scope="session")
def weather() -> LabelSet:
    """200 labels with repeated values, missing values and two partitions."""
    rng = np.random.default_rng(20120301)
    stations = ["KDEN", "K/DEN", None, 'quo"te', "new\nline", "é~%"]
    rows = [
        {
            "geohash": ["9xj", "9xk", "dr5"][int(rng.integers(3))],
            "bucket": int(rng.integers(4)) * HOUR_US,
            "temperature": None if rng.random() < 0.2 else float(rng.integers(270, 280)) / 2,
            "level": int(rng.integers(-2, 3)),
            "station": stations[int(rng.integers(len(stations)))],
            "raining": [True, False, None][int(rng.integers(3))],
            "partition": int(rng.integers(2)),
            "sequence": int(rng.integers(1, 4)),
            "rows": int(rng.integers(1, 9)),
        }
        for _ in range(200)
    ]
    return make_labels(rows)


@pytest.fixture(scope="session")
def label_sets() -> SearchStrategy[LabelSet]:
    """Small label sets that share prefixes, with every awkward value."""
    awkward = st.sampled_from(
        ["", "~", ".", "..", "/", "%2F", 'a"b', "a\\n", "\n\r\t", "é/雪", "2"]
    )
    row = st.fixed_dictionaries(
        {
            "geohash": st.sampled_from(["9xj", "9xk", "000", "zzz"]),
            "bucket": st.sampled_from([0, HOUR_US, -HOUR_US, 123_456_789 * HOUR_US // 3600 + 1]),
            "temperature": st.none() | st.sampled_from([2.0, -0.0]) | st.floats(allow_nan=False),
            "level": st.none() | st.sampled_from([2]) | st.integers(-(2**63), 2**63 - 1),
            "station": st.none() | awkward | st.text(max_size=5),
            "raining": st.none() | st.booleans(),
            "partition": st.integers(0, 2),
            "sequence": st.integers(1, 3),
            "rows": st.integers(1, 5),
        }
    )
    return st.lists(row, max_size=12).map(make_labels)
