"""Pages of a continuous query have each label once, however its updates are cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_ccq import CCQ, SCHEMA, FakeClient, Key, KeyedLog, Log

import galileo
from galileo.client.results import Labels, Update
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, InputError
from galileo.gateway.ccq_collections import (
    FETCHES_MAX,
    LabelFilter,
    Place,
    label_properties,
    page,
)
from galileo.geo import geohash
from galileo.wire import token as tokens

ALL = LabelFilter(None, None)


def keys_of(labels: Labels) -> list[Key]:
    return list(zip(labels.partitions.tolist(), labels.sequences.tolist(), strict=True))


@pytest.mark.parametrize("make", [Log, KeyedLog])
@pytest.mark.parametrize("seed", range(5))
async def test_pages_have_each_label_that_counts_once(seed: int, make: type[Log]) -> None:
    rng = random.Random(seed)
    log = make(rng)
    client: Any = FakeClient(log, rng)
    for _ in range(30):
        log.commit()
    last = Cursor(log.last)
    expected = Counter(keys_of(log.counting(last, EMPTY_CURSOR, last)))
    taken, place, pages = Counter[Key](), Place.parse(""), 0
    while True:
        limit = rng.randint(1, 7)
        labels, following = await page(client, CCQ, place, limit=limit, wanted=ALL)
        assert len(labels) <= limit
        taken.update(keys_of(labels))
        pages += 1
        log.commit()
        if following is None:
            break
        place = Place.parse(str(following))
    assert taken == expected
    assert pages > 5


@pytest.mark.parametrize("wrong", ["reset", "other part"])
async def test_pages_of_what_is_not_there_any_more_are_refused(wrong: str) -> None:
    rng = random.Random(1)
    log = Log(rng)
    client: Any = FakeClient(log, rng)
    for _ in range(30):
        log.commit()
    _, following = await page(client, CCQ, Place(), limit=1, wanted=ALL)
    assert following is not None
    if wrong == "reset":
        following = following._replace(after=tokens.begin_anew(CCQ))
    else:
        following = following._replace(until=tokens.Position(place=Cursor({1: 1})).encode(CCQ))
    with pytest.raises(DataExpired):
        await page(client, CCQ, following, limit=1, wanted=ALL)


class Scripted:
    """Answers each fetch with the labels of one cell."""

    def __init__(self, count: int) -> None:
        self.fetches = 0
        self._count = count

    async def fetch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> Update:
        self.fetches += 1
        token = tokens.Position(Cursor({1: 9}), place=Cursor({1: 1})).encode(ccq)
        return Update(labels_in(["9x"]), token, more=self.fetches < self._count)


def labels_in(cells: list[str], buckets: list[int] | None = None) -> Labels:
    schema = SCHEMA.label_schema
    columns = {name: pa.array([0] * len(cells)) for name in schema.names}
    columns["cell"] = pa.array(geohash.from_text(pa.array(cells)))
    columns["bucket"] = pa.array(buckets or [0] * len(cells))
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return Labels(SCHEMA, pa.table(arrays, schema=schema))


async def test_page_looks_through_updates_until_a_label_is_wanted() -> None:
    nowhere = LabelFilter((0.0, 0.0, 1.0, 1.0), None)
    few: Any = Scripted(3)
    labels, following = await page(few, CCQ, Place.parse(""), limit=5, wanted=nowhere)
    assert (len(labels), following, few.fetches) == (0, None, 3)
    many: Any = Scripted(1_000)
    labels, following = await page(many, CCQ, Place.parse(""), limit=5, wanted=nowhere)
    assert (len(labels), many.fetches) == (0, FETCHES_MAX)
    assert following is not None


@pytest.mark.parametrize(
    "text", ["x", "1", "1.a", "1.a.b", "-1.a.b.c", "9999999999.a.b.c", "1.a.b.c-d", "..."]
)
def test_place_of_other_texts_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Place.parse(text)


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ("-180,-90,180,90", [0, 1, 2]),
        ("-106,38,-104,42", [0]),
        ("-106,38,0,-104,42,9000", [0]),
        ("170,-20,-170,20", [1, 2]),
        ("100,-20,120,20", []),
    ],
)
def test_filter_by_box(bbox: str, expected: list[int]) -> None:
    # Colorado, and the cells at both sides of the antimeridian.
    labels = labels_in(["9xj5s", "xbpbp", "80000"], [0, 1, 2])
    chosen = LabelFilter.of({"bbox": bbox}).apply(labels)
    assert chosen.buckets.tolist() == expected


def test_filter_by_time_takes_buckets_that_overlap() -> None:
    hour = SCHEMA.time_bucket_us
    labels = labels_in(["9xj5s"] * 4, [0, hour, 2 * hour, 3 * hour])
    for text, expected in (
        ("1970-01-01T01:30:00Z/1970-01-01T02:00:00Z", [1, 2]),
        ("1970-01-01T02:59:59Z", [2]),
        ("../1970-01-01T00:59:00Z", [0]),
        ("1970-01-01T02:00:00Z/", [2, 3]),
        ("../..", [0, 1, 2, 3]),
    ):
        chosen = LabelFilter.of({"datetime": text}).apply(labels)
        assert (chosen.buckets // hour).tolist() == expected, text


@pytest.mark.parametrize(
    "given",
    [
        {"bbox": "1,2,3"},
        {"bbox": "a,b,c,d"},
        {"bbox": "nan,0,1,1"},
        {"bbox": "0,0,inf,1"},
        {"datetime": ""},
        {"datetime": ".."},
        {"datetime": "soon"},
    ],
)
def test_filter_refuses_what_is_no_box_or_time(given: dict[str, str]) -> None:
    with pytest.raises(InputError):
        LabelFilter.of(given)


def test_properties_of_labels() -> None:
    features = [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("wet", type="bool", indexed=True),
        galileo.Feature("count", type="int"),
    ]
    properties = label_properties(galileo.Schema("weather", features))
    assert set(properties) >= {"geohash", "time", "temperature", "block", "label"}
    assert properties["temperature"] == {
        "title": "temperature",
        "type": "number",
        "x-ogc-unit": "K",
    }
    assert properties["wet"]["type"] == "boolean"
    assert properties["time"]["format"] == "date-time"
    assert np.all([one["title"] == name for name, one in properties.items()])
