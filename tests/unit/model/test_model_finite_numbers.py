"""Numbers in definitions that are infinite, not numbers, or beyond what can be counted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import galileo
from galileo.errors import InputError
from galileo.model.channel import Channel
from galileo.model.retention import Retention
from galileo.model.schema import read_json
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.times import DURATION_MAX_S, seconds

HUGE = ("1e308", "-1e308", "1e999", "-1e999", "NaN", "Infinity", "1" + "0" * 25, "9" * 400)
DEFINITIONS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "schema": (
        galileo.Schema("air", [galileo.Feature("pm10", "ug")]).to_dict(),
        stored_schema_from_json,
    ),
    "table": (
        galileo.Table("officers", {"name": "text", "place": "geometry"}, key="name").to_dict(),
        stored_schema_from_json,
    ),
    "channel": (
        Channel(
            "smog",
            "air",
            "pm10 > :least",
            period="10s",
            keep="2d",
            enrich=[galileo.Near("officers", within="5km")],
        ).to_dict(),
        stored_schema_from_json,
    ),
    "repetitive channel": (
        Channel("hourly", "air", "pm10 > :least", new="none", age_max="1h").to_dict(),
        stored_schema_from_json,
    ),
    "broker": (
        galileo.Broker(
            "ops",
            galileo.Webhook("https://example.org"),
            hold="1d",
            attempts_max=3,
            age_max="10m",
        ).to_dict(),
        galileo.Broker.from_json,
    ),
    "retention": (Retention("1d", bytes=50 << 30).to_dict(), Retention.from_json),
}


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers, and of nulls, which may stand for some."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float) or value is None:
        yield path


@pytest.mark.parametrize("name", DEFINITIONS)
def test_huge_numbers_in_definitions_are_errors_of_input_or_read_as_they_are(name: str) -> None:
    whole, read = DEFINITIONS[name]
    assert read(json.dumps(whole)).to_dict() == whole
    places = list(numbers(whole))
    assert places or name == "table"
    for *keys, last in places:
        for huge in HUGE:
            changed = copy.deepcopy(whole)
            inner = changed
            for key in keys:
                inner = inner[key]
            inner[last] = "HERE"
            text = json.dumps(changed).replace('"HERE"', huge)
            try:
                value = read(text)
            except InputError:
                continue
            assert read(json.dumps(value.to_dict(), allow_nan=False)) == value


@pytest.mark.parametrize(
    "value", [1e308, float("inf"), float("nan"), 10**400, "9" * 400, "1e5y", 0]
)
def test_durations_are_bounded(value: Any) -> None:
    with pytest.raises(InputError):
        seconds(value)


def test_longest_duration_is_accepted() -> None:
    assert seconds(DURATION_MAX_S) == seconds("9999y") == DURATION_MAX_S


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"a": [1e999]}', "[1, -1e400]"])
def test_json_of_definitions_has_finite_numbers(text: str) -> None:
    with pytest.raises(InputError):
        read_json(text, "schema")
