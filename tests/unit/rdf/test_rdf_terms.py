from urllib.parse import unquote

import pyarrow as pa
import pyoxigraph as ox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.rdf import terms

texts = st.lists(st.text(max_size=8), max_size=6)


@given(texts)
def test_percent_encoded_random_texts_round_trip(values):
    encoded = terms.percent_encoded(pa.array(values, pa.string())).to_pylist()
    assert [unquote(value) for value in encoded] == values
    assert all(value.isascii() and not set(value) & set('/~.<> #?"{}|\\^`') for value in encoded)


@given(texts, st.integers(0, 3), st.integers(0, 3))
def test_percent_encoded_slice_equals_slice_of_encoded(values, start, length):
    column = pa.array(values, pa.string())
    part = terms.percent_encoded(column.slice(start, length))
    assert part.to_pylist() == terms.percent_encoded(column).slice(start, length).to_pylist()


@given(texts)
def test_text_literals_random_texts_round_trip(values):
    literals = terms.text_literals(pa.array(values, pa.large_string())).to_pylist()
    for value, literal in zip(values, literals, strict=True):
        line = f"<urn:a> <urn:b> {literal} .\n".encode()
        (quad,) = ox.parse(line, format=ox.RdfFormat.N_TRIPLES)
        assert quad.object == ox.Literal(value)


def test_value_texts_infinities_are_xml_schema():
    column = pa.array([float("inf"), float("-inf"), float("nan"), 1e300, None])
    assert terms.value_texts(column).to_pylist() == ["INF", "-INF", "NaN", "1e+300", None]


def test_value_segments_null_empty_and_tilde_differ():
    segments = terms.value_segments(pa.array([None, "", "~"])).to_pylist()
    assert segments == ["~", "", "%7E"]


@pytest.mark.parametrize("text", [".", ".."])
def test_percent_encoded_dots_stay_in_iri(text):
    (segment,) = terms.percent_encoded(pa.array([text])).to_pylist()
    store = ox.Store()
    iri = ox.NamedNode(f"{terms.VERTEX}nam/9xj/{segment}/p0.1.0")
    store.add(ox.Quad(iri, ox.NamedNode("urn:b"), ox.Literal("c")))
    assert bool(store.query(f"ASK {{ <{iri.value}> ?p ?o }}", base_iri="urn:galileo:vertex:x/"))


def test_qudt_units_are_valid_names():
    assert terms.QUDT_UNITS["m/s"] == "M-PER-SEC"
    assert all(ox.NamedNode(terms.QUDT_UNIT + name) for name in terms.QUDT_UNITS.values())
