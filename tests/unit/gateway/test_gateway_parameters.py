"""Parameters of requests, as conditions."""

from __future__ import annotations

import pytest
from expected_errors import raises
from starlette.datastructures import QueryParams

import galileo
from galileo.errors import InputError, QuerySyntaxError, Unauthenticated
from galileo.gateway import edr_requests
from galileo.gateway.callers import token_of
from galileo.gateway.ccq_collections import LabelFilter
from galileo.gateway.formats import MEDIA_TYPES, preferred
from galileo.gateway.parameters import LIMIT_MAX, filter_of, filtered, items_request
from galileo.gateway.routes import ROUTES
from galileo.model.times import micros

SCHEMA = galileo.Schema(
    "weather",
    [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("station", type="text"),
        galileo.Feature("rising", type="bool"),
        galileo.Feature("level", type="int"),
        galileo.Feature("note", type="text", indexed=False),
    ],
)


def at(time: str) -> str:
    return f"TIMESTAMP('{time}')"


def whole(first: str, last: str) -> str:
    return f"datetime >= {at(first)} AND datetime <= {at(last)}"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", ""),
        ("bbox=-110,35,-100,42", "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"),
        ("bbox=-110,35,0,-100,42,9", "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"),
        (
            "bbox=35,-110,42,-100&bbox-crs=http://www.opengis.net/def/crs/EPSG/0/4326",
            "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))",
        ),
        (
            "filter=S_INTERSECTS(geometry, POINT(35 -110)) OR level < 3&filter-crs=EPSG:4326",
            "S_INTERSECTS(geometry, POINT(-110 35)) OR level < 3",
        ),
        (
            "filter=S_WITHIN(geometry, BBOX(35,-110,42,-100))&filter-crs=EPSG:4326",
            "S_WITHIN(geometry, BBOX(-110, 35, -100, 42))",
        ),
        ("datetime=2014-03-01T06:00:00Z", "datetime = TIMESTAMP('2014-03-01T06:00:00Z')"),
        ("datetime=2014-03-01T06:00:00Z/..", "datetime >= TIMESTAMP('2014-03-01T06:00:00Z')"),
        ("datetime=/2014-03-01T06:00:00Z", "datetime <= TIMESTAMP('2014-03-01T06:00:00Z')"),
        ("datetime=../..", "true"),
        (
            "datetime=2014-03-01T06:00:00.5%2B01:00",
            f"datetime = {at('2014-03-01T05:00:00.500000Z')}",
        ),
        ("datetime=2014-03-01", whole("2014-03-01T00:00:00Z", "2014-03-01T23:59:59.999999Z")),
        ("datetime=20140301", whole("2014-03-01T00:00:00Z", "2014-03-01T23:59:59.999999Z")),
        ("datetime=2012-02", whole("2012-02-01T00:00:00Z", "2012-02-29T23:59:59.999999Z")),
        ("datetime=2014", whole("2014-01-01T00:00:00Z", "2014-12-31T23:59:59.999999Z")),
        (
            "datetime=2014-03-01/2014-03-07",
            whole("2014-03-01T00:00:00Z", "2014-03-07T23:59:59.999999Z"),
        ),
        ("datetime=2014/2015-01", whole("2014-01-01T00:00:00Z", "2015-01-31T23:59:59.999999Z")),
        ("datetime=2014-03-01/..", f"datetime >= {at('2014-03-01T00:00:00Z')}"),
        ("datetime=/2014-03-01", f"datetime <= {at('2014-03-01T23:59:59.999999Z')}"),
        (
            "datetime=2014-03-01T06:00:00Z/2014-03-01T06:00:00Z",
            f"datetime = {at('2014-03-01T06:00:00Z')}",
        ),
        ("temperature=290.5", "temperature = 290.5"),
        ("station=O'Hare", "station = 'O''Hare'"),
        ("rising=true", "rising = true"),
        ("level=-3", "level = -3"),
        ("filter=level < 3 OR level > 5&level=4", "level = 4 AND (level < 3 OR level > 5)"),
        (
            'filter={"op":"<","args":[{"property":"level"},3]}&filter-lang=cql2-json',
            "level < 3",
        ),
    ],
)
async def test_items_request_has_the_condition(text: str, query: str) -> None:
    assert str((await items_request(QueryParams(text), SCHEMA)).query) == query


async def test_items_request_columns_and_limit() -> None:
    wanted = await items_request(QueryParams("properties=station,time&limit=7"), SCHEMA)
    assert wanted.columns == ("latitude", "longitude", "time", "station")
    assert wanted.limit == 7
    assert (await items_request(QueryParams("limit=99999999"), SCHEMA)).limit == LIMIT_MAX


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("limt=1", "limt"),
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limit=%C2%B2", "limit"),
        ("bbox=1,2,3", "bbox"),
        ("bbox=a,b,c,d", "bbox"),
        ("datetime=yesterday", "datetime"),
        ("datetime=", "datetime"),
        ("datetime=..", "datetime"),
        ("datetime=2015/2014", "datetime"),
        ("datetime=2014-03-02/2014-03-01T06:00:00Z", "datetime"),
        ("datetime=2014/03/01", "datetime"),
        ("datetime=2013/2014/03", "datetime"),
        ("datetime=2014-02-30", "datetime"),
        ("datetime=2014-03-01T06:00:00+01:00", "datetime"),
        ("rising=yes", "rising"),
        ("level=3.5", "level"),
        ("note=hello", "note"),
        ("filter=level>3&filter-lang=cql-text", "filter-lang"),
        ("filter=level>3&filter-crs=EPSG:25832", "filter-crs"),
        ("bbox=1,2,3,4&bbox-crs=EPSG:25832", "bbox-crs"),
        ("bbox=1,2,3,4,5", "bbox"),
        ("bbox=1,2,nan,4", "bbox"),
        ("bbox=1,2,3,inf&bbox-crs=EPSG:4326", "bbox"),
        ("crs=", "crs"),
    ],
)
async def test_items_request_with_a_wrong_parameter_names_it(text: str, parameter: str) -> None:
    with raises(InputError, parameter=parameter):
        await items_request(QueryParams(text), SCHEMA)


@pytest.mark.parametrize("text", ["level >", "level > 3) OR (level < 5", "(" * 100_000])
async def test_filter_that_does_not_parse_is_refused(text: str) -> None:
    with pytest.raises(QuerySyntaxError):
        await filter_of(QueryParams({"filter": text, "query": "ASK {}"}))


@pytest.mark.parametrize(
    ("given", "accept", "format"),
    [
        (None, "", "geojson"),
        (None, "*/*", "geojson"),
        (None, "text/html,application/xhtml+xml", "geojson"),
        (None, "text/csv", "csv"),
        (None, "text/csv;q=0.1, application/vnd.apache.parquet", "parquet"),
        (None, "text/csv;q=0", "geojson"),
        ("arrow", "text/csv", "arrow"),
        ("json", "text/csv", "geojson"),
    ],
)
def test_preferred_format(given: str | None, accept: str, format: str) -> None:
    assert preferred(given, accept, MEDIA_TYPES) == format


def test_preferred_format_that_is_unknown_is_refused() -> None:
    with raises(InputError, parameter="f"):
        preferred("xml", "", MEDIA_TYPES)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("", ""),
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic YW5uOmFiYw==", "abc"),
        ("Basic OmE6Yg==", "a:b"),
    ],
)
def test_token_of_a_header(header: str, token: str) -> None:
    assert token_of(header) == token


def test_token_that_is_too_long_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        token_of("Bearer " + "x" * 10_000)


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Digest abc", "Basic abc", "Basic YW5u", "Bearer é", "Bearer a\tb"],
)
def test_token_of_a_malformed_header_is_refused(header: str) -> None:
    with pytest.raises(Unauthenticated):
        token_of(header)


async def test_day_is_whole_on_all_paths_with_datetime() -> None:
    """Those of items, groups, tiles, EDR, and labels of continuous queries."""
    day = whole("2014-03-01T00:00:00Z", "2014-03-01T23:59:59.999999Z")
    query = QueryParams("datetime=2014-03-01")
    paths = [route for route in ROUTES if "datetime" in route.parameters]
    of_edr = (*edr_requests.QUERIES, "location")
    filtered_by = {route.name: route.parameters for route in paths if route.name not in of_edr}
    assert {"items", "cells", "series", "latest", "tile", "locations"} <= set(filtered_by)
    for known in filtered_by.values():
        assert str((await filtered(query, SCHEMA, known))[1]) == day
    request = edr_requests.edr_request("location", query, SCHEMA, "")
    assert [str(one) for one in request.conditions] == [day]
    first, last = LabelFilter.of(query).interval or (None, None)
    assert (first, last) == (micros("2014-03-01"), micros("2014-03-02") - 1)
