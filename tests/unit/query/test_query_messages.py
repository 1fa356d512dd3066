"""What people read when a query is wrong: the place, what was expected, and what to write."""

from __future__ import annotations

import pytest

from galileo.errors import InputError, QuerySyntaxError, UnknownProperty, UnsupportedQuery
from galileo.model.schema import Feature, Schema
from galileo.query import binding, cql_syntax, parse

SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("humidity", "%"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
        Feature("pressure", "Pa", indexed=False),
    ],
)
VALUE = "expected a property, a number, a text in single quotes, a geometry or '('"
OPERATOR = "expected an operator such as AND, OR, =, <, BETWEEN, IN, LIKE or IS NULL, or "


def refused(source, kind):
    with pytest.raises(kind) as caught:
        parse(source, SCHEMA)
    assert type(caught.value) is kind
    return caught.value


@pytest.mark.parametrize(
    ("text", "position", "expectation"),
    [
        ("temperature >> 2", 13, VALUE),
        ("temperature >", 13, VALUE),
        ("temperature > 1 AND", 19, VALUE),
        ("(temperature > 1", 16, OPERATOR + "')'"),
        ("temperature > 1)", 15, OPERATOR + "the end of the query"),
        ("station = 'a' 'b'", 14, OPERATOR + "the end of the query"),
        ("station = 'a", 10, VALUE),
        ("temperature BETWEEN 1", 21, "expected AND and the upper bound of BETWEEN"),
        ("temperature IS nul", 15, "expected NULL or NOT NULL"),
        ("temperature IN ()", 16, VALUE),
        ("S_INTERSECTS(geometry, POLYGON((0 0,1 x)))", 38, "expected a number"),
        ("temperature > 1\n  AND humidity << 5", 32, VALUE),
        ("station = '😀é' AND >", 19, VALUE),
    ],
)
def test_parse_invalid_text_raises_with_position(text, position, expectation):
    error = refused(text, QuerySyntaxError)
    first, *shown = error.message.split("\n")
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    assert error.details == {"position": position}
    assert first == f"{expectation} at line {line}, column {column} of the query"
    assert shown[0][2:] == text.split("\n")[line - 1]
    assert shown[1].index("^") == column + 1


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("SELECT * FROM nam WHERE temperature > 1", 0, "CQL2, not SQL; write only the part after"),
        ("  where temperature > 1", 0, "CQL2, not SQL"),
        ("station = 'a==b' AND temperature == 1", 33, "write = in place of =="),
        ("temperature > 1 && humidity > 1", 16, "write AND in place of &&"),
        ("temperature > 1 || humidity > 1", 16, "write OR in place of ||"),
        ("temperature IN 3", 15, "a list of values in parentheses after IN"),
        ("station NOT IN\n 'a' AND count in (1)", 16, "write IN (1, 2), or = for a single value"),
        ("'IN 3' = station AND count IN(1) OR count IN -1", 45, "parentheses after IN"),
        ('station IN "in"', 11, "parentheses after IN"),
    ],
)
def test_parse_sql_words_raises_with_replacement(text, position, said):
    error = refused(text, QuerySyntaxError)
    assert said in error.message
    assert error.details == {"position": position}


def test_parse_property_named_in_is_not_the_operator():
    schema = Schema("nam", [Feature("in"), Feature("station", type="text")])
    texts = ("in = 3", "in IN (3)", "in NOT IN (3)", "NOT in BETWEEN 1 AND 2", "station = 'IN 3'")
    for text in texts:
        assert parse(text, schema).to_json()


def test_parse_exclamation_mark_equals_unequal():
    query = parse("count != 3", SCHEMA)
    assert query.to_json() == parse("count <> 3", SCHEMA).to_json()


@pytest.mark.parametrize(
    "condition",
    [
        "{} >= TIMESTAMP('2012-03-01T06:00:00Z')",
        "T_DURING({}, INTERVAL('2012-03-01T00:00:00Z', '2012-03-02T00:00:00Z'))",
        "{} BETWEEN DATE('2012-03-01') AND DATE('2012-03-07')",
    ],
)
def test_parse_time_equals_datetime(condition):
    query = parse(condition.format("time"), SCHEMA)
    assert query.to_json() == parse(condition.format("datetime"), SCHEMA).to_json()
    assert '"datetime"' in query.to_json()


def test_parse_empty_point_raises_with_position():
    error = refused("raining AND S_INTERSECTS(geometry, POINT EMPTY)", QuerySyntaxError)
    assert error.details == {"position": 35}
    assert error.message.startswith("expected a geometry with coordinates at line 1, column 36 ")


def test_parse_error_in_long_line_shows_part_with_caret():
    text = f"temperature IN ({', '.join(['1'] * 500)}) AND >"
    _, line, caret = refused(text, QuerySyntaxError).message.split("\n")
    assert len(line) < 130
    assert line.startswith("  …")
    assert line[caret.index("^")] == ">"


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ('{"op":"="', 9, "expected CQL2 JSON; Expecting ',' delimiter at line 1, column 10"),
        ('{"op":"=","args":[{"property":"count"},NaN]}', 39, "expected a finite number, got NaN"),
    ],
)
def test_parse_invalid_json_raises_with_position(text, position, message):
    error = refused(text, QuerySyntaxError)
    assert error.details == {"position": position}
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ({"op": "=", "args": [1]}, "$", "expected 2 arguments of '=', got 1 at $ of the query"),
        (
            {"op": "and", "args": [True, {"op": "not", "args": 5}]},
            "$.args[1]",
            "expected a list of arguments in 'args', got 5 at $.args[1] of the query",
        ),
        ({"a": 1}, "$", 'expected a condition, got {"a": 1} at $ of the query'),
        ({"op": "not", "args": [None]}, "$.args[0]", "expected a condition, got null at $.args[0]"),
        (5, "$", "expected CQL2 as text or as a JSON object, got int"),
    ],
)
def test_parse_json_of_other_shape_raises_with_path(source, path, message):
    error = refused(source, QuerySyntaxError)
    assert error.details == {"path": path}
    assert error.message.startswith(message)


def test_parse_unknown_property_in_json_has_no_caret():
    error = refused('{"op": ">", "args": [{"property": "temprature"}, 2]}', UnknownProperty)
    assert error.message.endswith("station, raining")


@pytest.mark.parametrize("text", ["BBOX(geometry, 1, 2, 3, 4)", "count = 1 AND 5"])
def test_parse_error_in_text_names_no_json_path(text):
    error = refused(text, QuerySyntaxError)
    assert "$" not in error.message
    assert error.details["path"].startswith("$")


def test_parse_literal_raises_query_syntax():
    assert "expected a condition, got 5.0" in refused("5", QuerySyntaxError).message


def test_parse_unknown_property_raises_with_nearest_and_position():
    error = refused("station = 'temprature' AND temprature > 2", UnknownProperty)
    assert error.details["nearest"] == "temperature"
    assert error.details["property"] == "temprature"
    assert error.details["position"] == 27
    assert error.details["properties"][:4] == ["geometry", "datetime", "geohash", "temperature"]
    assert error.message.startswith(
        "dataset 'nam' has no property 'temprature' (did you mean 'temperature'?); its properties "
        "are geometry, datetime, geohash, temperature, humidity, count, station, raining\n"
    )


@pytest.mark.parametrize("text", ["latitude > 40", "LON < 3", "BBOX(geometry, 1, 2, 3, 4)"])
def test_parse_latitude_or_bbox_raises_with_geometry_hint(text):
    error = refused(text, UnknownProperty if "BBOX" not in text else QuerySyntaxError)
    assert "for places write S_INTERSECTS(geometry, BBOX(west, south, east" in error.message


def test_parse_unlike_property_raises_without_nearest():
    error = refused({"op": "isNull", "args": [{"property": "zzz"}]}, UnknownProperty)
    assert error.details["nearest"] is None
    assert "position" not in error.details
    assert error.message.startswith("dataset 'nam' has no property 'zzz'; its properties are ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pressure > 2", "feature 'pressure' of dataset 'nam' is stored but not indexed"),
        ("station > 5", "expected a text in single quotes to compare the text feature 'station'"),
        ("temperature = 'x'", "expected a number such as 290.5 to compare the float feature"),
        ("count = 'x'", "to compare the int feature 'count' with, got \"x\""),
        ("count = 1e400", "expected a finite number to compare"),
        ("temperature = NULL", "got null; write temperature IS NULL to find missing values"),
        ("temperature > station", "two features that can be compared with each other"),
        ("temperature > datetime", "two features that can be compared with each other"),
        ("raining > raining", "bool feature 'raining' supports = and <>, got '>'"),
        ("raining = temperature", "two features that can be compared with each other"),
        ("CASEI(station) = station", "two features that can be compared with each other"),
        ("station + 1 > 2", "expected numbers in arithmetic, got the property 'station'"),
        ("datetime + 1 > 2", "expected numbers in arithmetic, got the property 'datetime'"),
        ("temperature + 'x' > 2", "expected a number such as 290.5 to compare"),
        ("temperature > 1 / 0", "expected arithmetic with a result"),
        ("temperature + 1 > 'x'", "expected a number such as 290.5 to compare"),
        ("temperature + 1 LIKE 'x'", "expected a value, got arithmetic ('+')"),
        ("datetime > now()", "only a query that is asked once has a time of its own"),
        ("datetime > TIMESTAMP('2012-03-01T06:00:00Z') - 5", "of a time and a duration"),
        ("datetime > TIMESTAMP('2012-03-01T06:00:00Z') - 'x'", "expected a duration such as '1d'"),
        ("datetime > 2012-03-01", r"a date stands in quotes: DATE('2012-03-01'), TIMESTAMP("),
        ("f(temperature) = 1", "'f' is not supported; supported are comparisons"),
        ("temperature", "only a bool feature can stand by itself"),
        ("raining = 1", "expected true or false to compare the bool feature 'raining' with"),
        ("raining > true", "bool feature 'raining' supports = and <>, got '>'"),
        ("temperature = true", "expected a number such as 290.5"),
        ("1 = 1", "expected a property on one side of a condition, got 1.0"),
        ("geometry = 1", "'geometry' cannot be compared; use S_INTERSECTS"),
        ("geometry IN (1)", "expected a region in S_INTERSECTS"),
        ("CASEI(temperature) = 'x'", "expected a text feature in CASEI, got 'temperature'"),
        ("CASEI(datetime) = 'x'", "expected a text feature in CASEI, got 'datetime'"),
        ("temperature LIKE 'x%'", "LIKE needs geohash or a text feature, got 'temperature'"),
        ("datetime LIKE '2012%'", "LIKE needs geohash or a text feature, got 'datetime'"),
        ("station LIKE 5", "expected a text in single quotes"),
        ("station LIKE 'x\\'", "ends in the middle of an escape"),
        (f"station LIKE '{'x' * 1001}'", "a LIKE pattern of at most 1,000 characters, got 1,001"),
        ("geohash = '9x'", "at least 5 characters, as the cells of dataset 'nam' have, got '9x'"),
        ("geohash > '9xjqb'", "geohash supports =, <>, IN and LIKE '9x%', got '>'"),
        ("geohash LIKE '9%x%'", "% can stand at its end only"),
        ("geohash LIKE '9x\\_%'", "such as '9x%' or '9x_b%' in geohash LIKE"),
        ("geohash LIKE '9x_b'", "at least 5 characters, as the cells of dataset 'nam' have, got '"),
        ("S_TOUCHES(geometry, POINT(1 2))", "'s_touches' is not supported"),
        ("S_INTERSECTS(temperature, POINT(1 2))", "S_INTERSECTS expects the property geometry"),
        ("S_INTERSECTS(geometry, 5)", "expected a geometry such as POLYGON((...)) or BBOX"),
        ("S_INTERSECTS(geometry, POINT(-1 -count))", "numbers as the coordinates of POINT"),
        ("S_WITHIN(POINT(1 2), geometry)", "expected a property on one side of a condition"),
        ("DWITHIN(geometry, BBOX(1,2,3,4), 5)", "the distance from a POINT is supported, got a BB"),
        ("DWITHIN(geometry, POLYGON((0 0,1 0,1 1,0 0)), 5)", "got a Polygon; write DWITHIN("),
        ("DWITHIN(geometry, POINT(1 2), -5)", "a number of metres, at least 0, got -5.0"),
        ("DWITHIN(geometry, POINT(1 2), 'far')", 'a number of metres, at least 0, got "far"'),
        ("DWITHIN(geometry, POINT(1 2), true)", "a number of metres, at least 0, got true"),
        ("DWITHIN(geometry, POINT(1 2), 2 * 3)", "a number of metres, at least 0, got {"),
        ("DWITHIN(geometry, POINT(1 2), 5, 'km')", "in metres and without a unit, got 4"),
        ("DWITHIN(geometry, POINT(1 2))", "expected 3 arguments of DWITHIN"),
        ("S_DWITHIN(count, POINT(1 2), 5)", "S_DWITHIN expects the property geometry"),
        ("DWITHIN(geometry, 5, 5)", "expected a geometry such as POLYGON((...)) or BBOX"),
        ("DWITHIN(geometry, POINT(-1 -count), 5)", "numbers as the coordinates of POINT"),
        ("datetime > 5", "expected TIMESTAMP('2012-03-01T06:00:00Z') or DATE('2012-03-01')"),
        ("datetime > TIMESTAMP('now')", "expected TIMESTAMP('2012-03-01T06:00:00Z')"),
        ("datetime > TIMESTAMP('2012-13-01T00:00:00Z')", "expected TIMESTAMP("),
        ("datetime > DATE('2012-03-01T00:00:00Z')", "or DATE('2012-03-01') to compare"),
        ("T_DURING(datetime, DATE('2012-01-01'))", "expected INTERVAL('2012-03-01', '2012-03-07')"),
        ("T_DURING(datetime, INTERVAL('2012-02-01','2012-01-01'))", "its start before its end"),
        ("T_AFTER(count, DATE('2012-01-01'))", "T_AFTER expects the property datetime"),
        ("T_MEETS(datetime, INTERVAL('2012-01-01','..'))", "'t_meets' is not supported"),
    ],
)
def test_parse_unsupported_query_raises(text, message):
    assert message in refused(text, UnsupportedQuery).message


def test_parse_interval_of_one_time_raises():
    source = {"op": "t_during", "args": [{"property": "datetime"}, {"interval": ["2012-01-01"]}]}
    assert "expected INTERVAL of two times" in refused(source, UnsupportedQuery).message


@pytest.mark.parametrize("distance", [float("nan"), float("inf"), None])
def test_parse_invalid_distance_raises(distance):
    point = {"type": "Point", "coordinates": [1, 2]}
    source = {"op": "dwithin", "args": [{"property": "geometry"}, point, distance]}
    assert "a number of metres" in refused(source, UnsupportedQuery).message


def test_parse_surrogate_text_raises():
    source = '{"op":"=","args":[{"property":"station"},"\\ud800"]}'
    assert "expected a text" in refused(source, UnsupportedQuery).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("geohash = '9xjqA'", "without the letters a, i, l and o"),
        ("geohash LIKE '9a_x%'", "and _, got '9a_x'; use lower case, without the letters a, i"),
        ("geohash LIKE '9x__________x%'", "at most 12 characters before % in geohash LIKE, got 13"),
        ("S_INTERSECTS(geometry, POLYGON((0 0,1 1,0 1,1 0,0 0)))", "Self-intersection[0.5 0.5]"),
        ("S_INTERSECTS(geometry, POLYGON EMPTY)", "got an empty one"),
        ("S_INTERSECTS(geometry, POINT(500 2))", "longitudes from -360 to 360"),
        ("S_INTERSECTS(geometry, GEOMETRYCOLLECTION(POINT(1 2)))", "geometry of type Point"),
        ("DWITHIN(geometry, POINT(1 95), 5)", "latitudes from -90 to 90"),
        ("S_INTERSECTS(geometry, BBOX(1,2,3))", "west, south, east, north"),
    ],
)
def test_parse_invalid_geometry_raises(text, message):
    assert message in refused(text, InputError).message


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "raining" + ")" * 100_000,
        "NOT " * 100_000 + "raining",
        "count = " + "-" * 100_000 + "1",
        "^".join(["count"] * 100_000),
        "'((' " + "(" * 65 + "raining",
        "raining" + " AND raining" * (cql_syntax.OPERATORS_MAX + 1),
        "1or" * 100_000 + "1",
        "raining AND (" * 65 + "raining",
    ],
)
def test_parse_deep_text_raises_query_syntax(text):
    message = refused(text, QuerySyntaxError).message
    assert message.startswith("expected at most 64 levels of nesting and 2,000 ANDs and ORs")


@pytest.mark.parametrize("depth", [65, 200, 100_000])
def test_parse_deep_json_raises_query_syntax(depth):
    text = '{"op":"not","args":[' * depth + "true" + "]}" * depth
    message = refused(text[: cql_syntax.TEXT_MAX], QuerySyntaxError).message
    assert message.startswith("expected at most 64 levels of nesting")


def test_parse_nesting_at_limit_is_accepted():
    depth = cql_syntax.NESTING_MAX - 2
    assert parse("NOT " * depth + "raining", SCHEMA) == parse("raining", SCHEMA)
    assert parse("(" * 14 + "raining" + ")" * 14, SCHEMA) == parse("raining", SCHEMA)
    chain = " AND ".join(["count > 1"] * cql_syntax.OPERATORS_MAX)
    assert parse(chain, SCHEMA) == parse("count > 1", SCHEMA)


SQUARE = ", ".join(f"{x} {y}" for x, y in [(1, 1), (2, 1), (2, 2), (1, 2), (1, 1)])


@pytest.mark.parametrize(
    "text",
    [
        "(" * 33 + "<0",
        "x" + "(" * 40,
        "(" * 30 + "raining" + ")" * 30,
        "(raining AND " * 25 + "(" + ")" * 25,
        "NOT(" * 30 + "count <" + ")" * 30,
        "(" * 18 + f"S_INTERSECTS(geometry, POLYGON(({SQUARE}))) AND" + ")" * 18,
        '"(" = 1 AND ' + "(" * 30 + "count <",
        "POLYGON" + "(" * 30 + "1 2",
        "DWITHIN(geometry, POINT(105 40)," + "(" * 30 + " 50000) AND geohash LIKE '9x\"'",
        "POLYGON((1 1), " + "(" * 30 + "1 1" + ")" * 31,
    ],
)
def test_parse_nested_parentheses_raises_query_syntax(text):
    message = refused(text, QuerySyntaxError).message
    assert message.startswith("expected fewer parentheses within each other")
    assert "or send CQL2 JSON" in message


@pytest.mark.timeout(300)
def test_parse_invalid_text_in_most_parentheses_terminates():
    refused("(" * 15 + "count <" + ")" * 15, QuerySyntaxError)


def test_read_large_geometry_in_parentheses_is_accepted():
    corners = [(-x / 100, x / 100) for x in range(1, 5_000)]
    ring = ", ".join(f"{x} {y}" for x, y in [(10, 10), *corners, (10, 10)])
    text = f"((raining OR S_INTERSECTS(geometry, POLYGON(({ring})))) AND count > 1)"
    cql_syntax.read(text)


def test_parse_deep_value_raises_query_syntax():
    value = {"op": "casei", "args": ["x"]}
    for _ in range(5000):
        value = {"op": "casei", "args": [value]}
    source = {"op": "=", "args": [{"property": "station"}, value]}
    assert "at most 64 levels" in refused(source, QuerySyntaxError).message


def test_parse_long_text_raises_query_syntax():
    error = refused("x" * (cql_syntax.TEXT_MAX + 1), QuerySyntaxError)
    assert error.message.startswith("expected a query of at most 1,000,000 characters")


def test_parse_empty_or_long_list_raises():
    count = {"property": "count"}
    fits = {"op": "in", "args": [count, list(range(binding.LIST_MAX))]}
    assert parse(fits, SCHEMA).features == ("count",)
    for values in (list(range(binding.LIST_MAX + 1)), []):
        error = refused({"op": "in", "args": [count, values]}, UnsupportedQuery)
        assert "a list of 1 to 10,000 values in IN" in error.message


def test_parse_parentheses_in_text_literals_are_ignored():
    text = f"station = '{'(' * 1000}' OR station = 'it''s ((('"
    assert parse(text, SCHEMA).features == ("station",)
