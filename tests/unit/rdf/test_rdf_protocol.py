from http import HTTPStatus
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import Cancelled, DeadlineExceeded, InputError, QuerySyntaxError
from galileo.rdf import protocol
from galileo.rdf.protocol import DescriptionRequest, QueryRequest, Refused, Request

TEXT = "SELECT * { ?s ?p 'é & = + %' }"
FORM = {"content-type": "application/x-www-form-urlencoded"}
QUERY = {"content-type": "application/sparql-query; charset=UTF-8"}


def status(request):
    with pytest.raises(Refused) as caught:
        protocol.parse_request(request)
    return caught.value.status


def test_parse_request_any_method_gives_query():
    encoded = urlencode({"query": TEXT})
    assert protocol.parse_request(Request("GET", f"/sparql?{encoded}")) == QueryRequest(TEXT)
    assert protocol.parse_request(Request("POST", "/", FORM, encoded.encode())) == QueryRequest(
        TEXT
    )
    assert protocol.parse_request(Request("POST", "/sparql", QUERY, TEXT.encode())) == QueryRequest(
        TEXT
    )


@given(st.text())
def test_parse_request_random_text_is_kept(text):
    encoded = urlencode({"query": text}, errors="surrogatepass")
    for request in (
        Request("GET", f"/sparql?{encoded}"),
        Request("POST", "/sparql", FORM, encoded.encode()),
        Request("POST", "/sparql", QUERY, text.encode()),
    ):
        assert protocol.parse_request(request) == QueryRequest(text)


def test_parse_request_no_query_asks_for_description():
    assert protocol.parse_request(Request("GET", "/sparql")) == DescriptionRequest("service")
    assert protocol.parse_request(Request("HEAD", "/")) == DescriptionRequest("service")
    assert protocol.parse_request(Request("GET", "/ontology")) == DescriptionRequest("ontology")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request("GET", "/sparql?query=a&query=b"), 400),
        (Request("GET", "/sparql?default-graph-uri=http://127.0.0.1/&query=ASK{}"), 400),
        (Request("GET", "/sparql?named-graph-uri=http://127.0.0.1/&query=ASK{}"), 400),
        (Request("POST", "/sparql?default-graph-uri=urn:x", QUERY, b"ASK {}"), 400),
        (Request("GET", "/sparql?update=CLEAR%20ALL"), 400),
        (Request("POST", "/sparql", FORM, b"update=CLEAR+ALL"), 400),
        (Request("POST", "/", {"content-type": "application/sparql-update"}, b"CLEAR ALL"), 400),
        (Request("GET", "/sparql?format=json"), 400),
        (Request("POST", "/sparql", FORM, b""), 400),
        (Request("GET", "/sparql?query=%FF"), 400),
        (Request("GET", "//[/sparql?query=ASK{}"), 400),
        (Request("POST", "/sparql", QUERY, b"\xff"), 400),
        (Request("GET", "/sparql?" + "a=b&" * 17), 400),
        (Request("GET", "http://[/sparql?query=ASK{}"), 400),
        (Request("GET", "/elsewhere?query=ASK{}"), 404),
        (Request("PUT", "/sparql", QUERY, b"ASK {}"), 405),
        (Request("DELETE", "/ontology"), 405),
        (Request("POST", "/sparql", {}, b"ASK {}"), 415),
        (Request("POST", "/sparql", {"content-type": "text/plain"}, b"ASK {}"), 415),
        (Request("POST", "/sparql", {**QUERY, "content-encoding": "gzip"}, b"ASK {}"), 415),
        (Request("POST", "/", {"content-type": "application/sparql-query; charset=latin-1"}), 415),
    ],
)
def test_parse_request_invalid_request_is_refused(request_, expected):
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
    name, form = protocol.negotiate(accept, kind)
    assert name.startswith(expected)
    assert form == protocol.TYPES[kind][name]


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
    with pytest.raises(Refused) as caught:
        protocol.negotiate(accept, kind)
    assert caught.value.status == HTTPStatus.NOT_ACCEPTABLE


@given(st.text(max_size=30))
def test_negotiate_random_accept_header_finds_named_format(accept):
    """Whatever a client writes, what it also accepts by name is found."""
    name, _ = protocol.negotiate(f"{accept.replace(';', '')}, text/csv", "solutions")
    assert name in protocol.SOLUTION_TYPES


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (QuerySyntaxError("no"), 400),
        (InputError("no"), 400),
        (DeadlineExceeded("late"), 504),
        (Cancelled("gone"), 503),
    ],
)
def test_refusal_any_error_has_status(error, expected):
    refused = protocol.refusal(error)
    assert refused.status == expected
    assert refused.text == f"{error.message} [{error.kind}]"
