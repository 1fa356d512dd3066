import csv
import datetime as dt
import io
import json
import math

import pyarrow as pa
import pyoxigraph as ox
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.rdf.sparql_process.engine import WorkerAnswer
from galileo.rdf.sparql_result import SparqlResult

XSD = "http://www.w3.org/2001/XMLSchema#"


def solutions(*columns, names=None):
    """What the worker answers for these columns of oxigraph terms; None is unbound."""
    names = names or [f"v{i}" for i in range(len(columns))]
    store = ox.Store()
    rows = " ".join(
        "(" + " ".join("UNDEF" if term is None else str(term) for term in row) + ")"
        for row in zip(*columns, strict=True)
    )
    variables = " ".join(f"?{name}" for name in names)
    query = f"SELECT {variables} {{ VALUES ({variables}) {{ {rows} }} }}"
    data = store.query(query).serialize(format=ox.QueryResultsFormat.TSV)
    return SparqlResult(WorkerAnswer("solutions", data))


def literal(text, kind):
    return ox.Literal(text, datatype=ox.NamedNode(XSD + kind))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
terms = st.one_of(
    st.none(),
    texts.map(ox.Literal),
    st.integers(-(2**63), 2**63 - 1).map(ox.Literal),
    st.integers().map(lambda number: literal(str(number), "integer")),
    st.integers(-(10**80), 10**80).map(lambda number: literal(str(number), "integer")),
    st.floats(allow_nan=False).map(ox.Literal),
    st.booleans().map(ox.Literal),
    texts.map(lambda text: ox.Literal(text, language="en")),
    texts.map(lambda text: ox.Literal(text, datatype=ox.NamedNode("urn:other"))),
    st.sampled_from([ox.NamedNode("urn:a:b"), ox.NamedNode("urn:galileo:vertex:nam/~/%22")]),
)


def python_value(term):
    """The value of a term, one term at a time."""
    if term is None or isinstance(term, ox.NamedNode):
        return None if term is None else term.value
    readers = {"integer": int, "double": float, "boolean": lambda text: text == "true"}
    read = readers.get(term.datatype.value.removeprefix(XSD), str)
    return read(term.value)


@given(st.lists(st.tuples(terms, terms), max_size=8))
def test_result_rows_random_terms_equal_single_reads(rows):
    columns = list(zip(*rows, strict=True)) or [(), ()]
    result = solutions(*columns)
    expected = [{"v0": python_value(a), "v1": python_value(b)} for a, b in rows]
    assert result.rows == expected
    assert len(result) == len(rows)
    for row, wanted in zip(result.rows, expected, strict=True):
        assert {name: type(v) for name, v in row.items()} == {n: type(v) for n, v in wanted.items()}


@given(st.lists(st.tuples(terms, terms), max_size=8))
def test_result_rows_few_cells_equal_columns(rows):
    columns = list(zip(*rows, strict=True)) or [(), ()]
    result = solutions(*columns)
    assert repr(result.rows) == repr(result._rows(-1))


@given(st.lists(texts, max_size=6))
def test_result_to_arrow_random_texts_are_kept(values):
    result = solutions([ox.Literal(value) for value in values])
    assert result.to_arrow().column("v0").to_pylist() == values


@given(st.lists(terms, max_size=8))
def test_result_to_arrow_has_row_per_solution(column):
    table = solutions(column).to_arrow()
    assert table.num_rows == len(column)
    assert table.column("v0").null_count == column.count(None)


def test_result_column_of_one_kind_is_typed():
    result = solutions(
        [literal("1", "integer"), None],
        [literal("2.5", "double"), literal("INF", "double")],
        [literal("true", "boolean"), literal("false", "boolean")],
        [literal("2012-03-01T06:00:00.25Z", "dateTime"), None],
        [ox.NamedNode("urn:a"), ox.NamedNode("urn:b")],
        [literal("3.5", "decimal"), literal("4", "integer")],
        names=["i", "d", "b", "t", "n", "m"],
    )
    table = result.to_arrow()
    wanted = [pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us", tz="UTC")]
    assert table.schema.types == [*wanted, pa.string(), pa.float64()]
    assert table.column("m").to_pylist() == [3.5, 4.0]
    moment = dt.datetime(2012, 3, 1, 6, 0, 0, 250_000, tzinfo=dt.UTC)
    assert result.rows[0]["t"] == moment
    assert result.rows[0]["i"] == 1
    assert math.isinf(result.rows[1]["d"])


def test_result_column_of_several_kinds_is_text_in_arrow():
    result = solutions([literal("1", "integer"), ox.Literal("one"), literal("true", "boolean")])
    assert result.to_arrow().column("v0").to_pylist() == ["1", "one", "true"]
    assert [row["v0"] for row in result.rows] == [1, "one", True]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("1e3", "integer"), ("9" * 5_000, "integer"), ("oops", "double"), ("noon", "dateTime")],
)
@pytest.mark.parametrize("few", [-1, 10_000])
def test_result_invalid_literal_stays_text(text, kind, few):
    result = solutions([literal(text, kind)])
    assert result._rows(few) == [{"v0": text}]
    assert result.to_arrow().column("v0").to_pylist() == [text]


@pytest.mark.parametrize(
    ("large", "wanted"),
    [
        (2**63 - 1, pa.int64()),
        (-(2**63), pa.int64()),
        (2**63, pa.decimal128(38)),
        (-(10**38) + 1, pa.decimal128(38)),
        (10**38, pa.decimal256(76)),
        (10**39 - 1, pa.decimal256(76)),
        (10**76 - 1, pa.decimal256(76)),
        (10**76, pa.string()),
    ],
)
@pytest.mark.parametrize("few", [-1, 10_000])
def test_result_large_integer_keeps_numbers(large, wanted, few):
    numbers = [1, large, None, -7]
    result = solutions([n if n is None else literal(str(n), "integer") for n in numbers])
    assert [row["v0"] for row in result._rows(few)] == numbers
    column = result.to_arrow().column("v0")
    assert column.type == wanted
    if wanted != pa.string():
        assert column.to_pylist() == numbers
    if pa.types.is_decimal(wanted):
        assert result.to_pandas()["v0"].dropna().tolist() == [1, large, -7]


@pytest.mark.parametrize("few", [-1, 10_000])
def test_result_large_integer_with_decimals_is_float(few):
    result = solutions([literal("0.5", "decimal"), literal(str(2**64), "integer")])
    assert [row["v0"] for row in result._rows(few)] == [0.5, 2**64]
    assert result.to_arrow().column("v0").to_pylist() == [0.5, 2.0**64]


@pytest.mark.parametrize("few", [-1, 10_000])
def test_result_invalid_integer_keeps_others(few):
    result = solutions([literal("oops", "integer"), literal("5", "integer")])
    assert [row["v0"] for row in result._rows(few)] == ["oops", 5]


def test_result_solution_without_bindings_is_empty_row():
    result = SparqlResult(WorkerAnswer("solutions", b"\n\n"))
    assert (len(result), result.variables, result.rows) == (1, (), [{}])


def test_result_to_pandas_has_same_columns():
    frame = solutions([literal("1", "integer"), literal("2", "integer")], names=["n"]).to_pandas()
    assert frame["n"].tolist() == [1, 2]


def test_result_serialise_formats_have_same_values():
    result = solutions([ox.Literal('a,"b\n'), ox.Literal("c")], names=["x"])
    bindings = json.loads(result.serialise("json"))["results"]["bindings"]
    assert [binding["x"]["value"] for binding in bindings] == ['a,"b\n', "c"]
    rows = list(csv.reader(io.StringIO(result.serialise("csv").decode(), newline="")))
    assert rows == [["x"], ['a,"b\n'], ["c"]]
    with raises(InputError, expected="format", format="yaml"):
        result.serialise("yaml")


def test_result_triples_round_trip_as_graph():
    line = '<urn:a> <urn:galileo:ns:value> "2"^^<http://www.w3.org/2001/XMLSchema#integer> .\n'
    result = SparqlResult(WorkerAnswer("triples", line.encode()))
    assert (len(result), result.triples) == (1, line)
    ((_, _, value),) = result.to_graph()
    assert value.toPython() == 2


@pytest.mark.parametrize("value", [True, False])
def test_result_ask_has_truth_and_no_rows(value):
    result = SparqlResult(WorkerAnswer("boolean", value=value))
    assert bool(result) is value
    with raises(InputError, expected="solutions"):
        _ = result.rows
    with raises(InputError, expected="triples"):
        _ = result.triples
