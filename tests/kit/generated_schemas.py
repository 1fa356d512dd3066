"""Strategies of hypothesis: schemas with all that describes features, and tables of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from galileo.geo.geohash import PRECISION_MAX
from galileo.model.feature_metadata import described
from galileo.model.schema import ARROW_TYPES, RESERVED, Feature, Schema

NUMBERS = tuple(kind for kind in sorted(ARROW_TYPES) if kind not in ("text", "bool"))
TYPES = tuple(sorted(ARROW_TYPES))
UNITS = ("", "K", "degC", "m s-1", "kg m**-2", "%", "1e-3", "µg/m3", "decibar")

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name.lower() not in RESERVED
)
words = st.text(
    st.characters(exclude_categories=("C", "Z"), max_codepoint=0x2FF), min_size=1, max_size=8
)
lines = st.lists(words, max_size=4).map(" ".join)
meanings = st.from_regex(r"[A-Za-z0-9_.@+-]{1,12}", fullmatch=True)


@st.composite
def features(draw, types=TYPES):
    kind = draw(st.sampled_from(types))
    texts = draw(st.lists(meanings, max_size=5, unique=True)) if kind == "int" else []
    values = draw(
        st.lists(
            st.integers(-(1 << 63), (1 << 63) - 1),
            min_size=len(texts),
            max_size=len(texts),
            unique=True,
        )
    )
    return Feature(
        draw(names),
        unit=draw(st.sampled_from(UNITS)) if kind in ("float", "float32", "int") else "",
        type=kind,
        indexed=draw(st.booleans()),
        standard_name=draw(st.sampled_from(("", "air_temperature", "sea_water_salinity"))),
        description=draw(lines),
        flags=dict(zip(values, texts, strict=True)),
    )


def schemas_of(types=TYPES, by=lambda feature: feature.name):
    return st.builds(
        Schema,
        st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True),
        st.lists(features(types), min_size=1, max_size=6, unique_by=by),
        geohash_precision=st.integers(1, PRECISION_MAX),
        time_bucket=st.integers(10**6, 366 * 86400 * 10**6).map(lambda us: us / 10**6),
    )


schemas = schemas_of()

VALUES = {
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "float32": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "int": st.integers(-(1 << 53), 1 << 53),
    "text": st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6),
    "bool": st.booleans(),
}


@st.composite
def tables(draw, schema, *, nulls=True):
    """One to six observations of a schema, as people get them; each has a value."""
    rows = draw(st.integers(1, 6))
    columns = {
        "latitude": pa.array(np.linspace(-10, 10, rows)),
        "longitude": pa.array(np.linspace(0, 5, rows) ** 2),
        "time": pa.array([10**6 * n for n in range(rows)], pa.timestamp("us", "UTC")),
    }
    for number, feature in enumerate(schema.features):
        value = VALUES[feature.type]
        if nulls and number:
            value = st.none() | value
        values = draw(st.lists(value, min_size=rows, max_size=rows))
        columns[feature.name] = pa.array(values, feature.arrow_type)
    return described(pa.table(columns, schema=schema.observation_schema), schema.features)
