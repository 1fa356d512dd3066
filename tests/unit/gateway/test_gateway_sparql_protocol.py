from http import HTTPStatus
from urllib.parse import urlencode

import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.gateway import sparql_protocol
from galileo.gateway.problems import RequestRefused
from galileo.gateway.sparql_protocol import Request, query_text

TEXT = "SELECT * { ?s ?p 'é & = + %' }"
FORM = {"content-type": "application/x-www-form-urlencoded"}
QUERY = {"content-type": "application/sparql-query; charset=UTF-8"}


def status(request):
    with pytest.raises(RequestRefused) as caught:
        query_text(request)
    return caught.value.status


def test_query_text_of_any_method_is_its_query():
    encoded = urlencode({"query": TEXT})
    assert query_text(Request("GET", encoded)) == TEXT
    assert query_text(Request("POST", "", FORM, encoded.encode())) == TEXT
    assert query_text(Request("POST", "", QUERY, TEXT.encode())) == TEXT


@given(st.text())
def test_query_text_random_text_is_kept(text):
    encoded = urlencode({"query": text}, errors="surrogatepass")
    for request in (
        Request("GET", encoded),
        Request("POST", "", FORM, encoded.encode()),
        Request("POST", "", QUERY, text.encode()),
    ):
        assert query_text(request) == text


def test_query_text_without_parameters_is_refused():
    with raises(InputError, parameter="query"):
        query_text(Request("GET"))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request("GET", "query=a&query=b"), 400),
        (Request("GET", "default-graph-uri=http://127.0.0.1/&query=ASK{}"), 400),
        (Request("GET", "named-graph-uri=http://127.0.0.1/&query=ASK{}"), 400),
        (Request("POST", "default-graph-uri=urn:x", QUERY, b"ASK {}"), 400),
        (Request("GET", "update=CLEAR%20ALL"), 400),
        (Request("POST", "", FORM, b"update=CLEAR+ALL"), 400),
        (Request("POST", "", {"content-type": "application/sparql-update"}, b"CLEAR ALL"), 400),
        (Request("GET", "format=json"), 400),
        (Request("POST", "", FORM, b""), 400),
        (Request("GET", "query=%FF"), 400),
        (Request("POST", "", QUERY, b"\xff"), 400),
        (Request("GET", "a=b&" * 17), 400),
        (Request("POST", "", {}, b"ASK {}"), 415),
        (Request("POST", "", {"content-type": "text/plain"}, b"ASK {}"), 415),
        (Request("POST", "", {**QUERY, "content-encoding": "gzip"}, b"ASK {}"), 415),
        (Request("POST", "", {"content-type": "application/sparql-query; charset=latin-1"}), 415),
    ],
)
def test_query_text_of_an_invalid_request_is_refused(request_, expected):
    assert status(request_) == expected


@pytest.mark.parametrize(
    ("accept", "kind", "expected"),
    [
        ("", "solutions", "application/sparql-results+json"),
        ("*/*", "boolean", "application/sparql-results+json"),
        ("*/*", "triples", "text/turtle"),
        ("text/csv", "solutions", "text/csv"),
        ("TEXT/CSV", "solutions", "text/csv"),
        ("text/*", "solutions", "text/csv"),
        ("text/csv;q=0.5, text/tab-separated-values", "solutions", "text/tab-separated-values"),
        ("text/html, application/sparql-results+xml;q=0.1", "solutions", "application/sparql-"),
        ("text/turtle, application/sparql-results+xml;q=0.3", "boolean", "application/sparql-"),
        ("application/sparql-results+json;q=0, */*", "solutions", "application/sparql-results+xml"),
        ("application/rdf+xml, text/turtle;q=0.9", "triples", "application/rdf+xml"),
        ("application/json", "triples", "application/json"),
        ("text/csv; header=present ; q=1", "solutions", "text/csv"),
    ],
)
def test_negotiate_accept_header_chooses_best_format(accept, kind, expected):
    name, form = sparql_protocol.negotiate(accept, kind)
    assert name.startswith(expected)
    assert form == sparql_protocol.TYPES[kind][name]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html", "solutions"),
        ("text/csv", "boolean"),
        ("text/csv", "triples"),
        ("*/*;q=0", "solutions"),
        ("text/csv;q=nonsense", "solutions"),
    ],
)
def test_negotiate_no_acceptable_format_is_refused(accept, kind):
    with pytest.raises(RequestRefused) as caught:
        sparql_protocol.negotiate(accept, kind)
    assert caught.value.status == HTTPStatus.NOT_ACCEPTABLE


@given(st.text(max_size=30))
def test_negotiate_random_accept_header_finds_named_format(accept):
    """Whatever a client writes, what it also accepts by name is found."""
    name, _ = sparql_protocol.negotiate(f"{accept.replace(';', '')}, text/csv", "solutions")
    assert name in sparql_protocol.SOLUTION_TYPES
