"""The endpoint, asked over real sockets by clients that know nothing of it."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import socket
import subprocess
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.parse import urlencode, urlsplit

import pytest
from expected_errors import raises
from rdflib import Graph, Literal, URIRef
from rdflib.plugins.sparql.results.csvresults import CSVResultParser
from rdflib.plugins.sparql.results.jsonresults import JSONResultParser
from rdflib.plugins.sparql.results.tsvresults import TSVResultParser
from rdflib.plugins.sparql.results.xmlresults import XMLResultParser
from rdflib.plugins.stores.sparqlstore import SPARQLStore
from sparql_clients import COUNT, ask, get, post

from galileo import rdf
from galileo.errors import ConfigError, InputError
from galileo.rdf import Endpoint, EndpointOptions

READERS = {
    "application/sparql-results+json": JSONResultParser,
    "application/sparql-results+xml": XMLResultParser,
    "text/csv": CSVResultParser,
    "text/tab-separated-values": TSVResultParser,
}


class Canary(BaseHTTPRequestHandler):
    """Sings at every request."""

    heard: ClassVar[list[str]] = []

    def do_GET(self):
        self.heard.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_HEAD = do_GET

    def log_message(self, format, *args):
        """Says nothing else."""


@pytest.fixture
def canary():
    """An HTTP server that must not be asked; its address, and what it was asked for."""
    Canary.heard.clear()
    with HTTPServer(("127.0.0.1", 0), Canary) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Canary.heard
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        opened.load()
        yield opened


@pytest.fixture(scope="module")
def endpoint(graph):
    with Endpoint(graph, EndpointOptions(port=0)) as served:
        yield served


# --- foreign clients -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "POST_FORM"])
@pytest.mark.parametrize("form", ["json", "xml", "csv", "tsv"])
def test_endpoint_answers_sparql_store_of_rdflib(endpoint, weather, method, form):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of rdflib's own making
        store = SPARQLStore(endpoint.url, method=method, returnFormat=form)
        found = Graph(store).query(
            "SELECT ?h (COUNT(?p) AS ?n) { ?p g:geohash ?h } GROUP BY ?h", initNs={"g": rdf.NS}
        )
        counts = {str(h): int(n) for h, n in found}
    cells = weather.geohashes().to_pylist()
    assert counts == {cell: cells.count(cell) for cell in set(cells)}


def test_endpoint_sparql_store_of_rdflib_finds_triples(endpoint):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = Graph(SPARQLStore(endpoint.url))
        cell = URIRef(f"{rdf.VERTEX}nam/9xj")
        assert list(graph.objects(cell, URIRef(f"{rdf.NS}value"))) == [Literal("9xj")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_endpoint_answers_curl(endpoint, weather):
    command = ["curl", "-sS", endpoint.url, "--data-urlencode", f"query={COUNT}"]
    done = subprocess.run([*command, "-H", "Accept: text/csv"], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["n", str(len(weather))]
    done = subprocess.run([*command[:3], "-G", *command[3:]], capture_output=True, check=True)
    assert json.loads(done.stdout)["results"]["bindings"][0]["n"]["value"] == str(len(weather))


# --- formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", READERS)
def test_endpoint_solutions_in_any_format_equal_rdflib(endpoint, graph, media_type):
    text = "SELECT ?p ?t ?s { ?p g:sequence 2 ; g:time ?t OPTIONAL { ?p f:station ?s } }"
    reply = get(endpoint.url, text, Accept=media_type)
    assert (reply.status, reply.type) == (200, media_type)
    found = READERS[media_type]().parse(io.BytesIO(reply.body))
    plain = {"p": str, "t": lambda term: str(term)[:13], "s": str}

    def row(values):
        return tuple(
            "" if value in (None, "") else plain[name](value) for name, value in values.items()
        )

    read = [{str(name): binding.get(name) for name in found.vars} for binding in found.bindings]
    expected = [{**one, "t": one["t"].isoformat()} for one in graph.sparql(text).rows]
    if media_type == "text/csv":  # which has no way to write line ends within rdflib's reading
        assert len(read) == len(expected)
    assert sorted(map(row, read)) == sorted(map(row, expected))
    assert len(read) > 20


@pytest.mark.parametrize("media_type", ["application/sparql-results+json", "application/xml"])
@pytest.mark.parametrize(
    ("text", "truth"), [("ASK { ?p a g:Path }", True), ("ASK { ?p f:level 99 }", False)]
)
def test_endpoint_ask_gives_boolean_document(endpoint, media_type, text, truth):
    reply = get(endpoint.url, text, Accept=media_type)
    reader = JSONResultParser if reply.type.endswith("json") else XMLResultParser
    assert reader().parse(io.BytesIO(reply.body)).askAnswer is truth


@pytest.mark.parametrize(
    ("media_type", "form"),
    [
        ("text/turtle", "turtle"),
        ("application/n-triples", "nt"),
        ("application/rdf+xml", "xml"),
        ("application/ld+json", "json-ld"),
    ],
)
def test_endpoint_triples_in_any_format_are_equal(endpoint, graph, media_type, form):
    text = "CONSTRUCT { ?c g:value ?v } { ?c a g:Cell ; g:value ?v }"
    reply = get(endpoint.url, text, Accept=media_type)
    assert (reply.status, reply.type) == (200, media_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # rdflib's JSON-LD parser warns
        read = Graph(bind_namespaces="none").parse(data=reply.body, format=form)
    assert set(read) == set(graph.sparql(text).to_graph())
    assert len(read) == 3


def test_endpoint_describe_gives_turtle(endpoint):
    reply = get(endpoint.url, f"DESCRIBE <{rdf.VERTEX}nam>")
    assert reply.type == "text/turtle"
    assert len(Graph(bind_namespaces="none").parse(data=reply.body, format="turtle")) >= 8


def test_endpoint_no_query_gives_service_description(endpoint):
    reply = ask(endpoint.url)
    described = Graph(bind_namespaces="none").parse(data=reply.body, format="turtle")
    sd = "http://www.w3.org/ns/sparql-service-description#"
    assert list(described.objects(None, URIRef(f"{sd}endpoint"))) == [URIRef(endpoint.url)]
    assert (None, URIRef(f"{sd}supportedLanguage"), URIRef(f"{sd}SPARQL11Query")) in described


def test_endpoint_ontology_is_served(endpoint):
    reply = ask(endpoint.url, path="/ontology")
    assert reply.body.decode() == rdf.ontology()
    reply = ask(endpoint.url, path="/ontology", Accept="application/n-triples")
    assert len(Graph(bind_namespaces="none").parse(data=reply.body, format="nt")) > 50


# --- the protocol ----------------------------------------------------------------------------


def test_endpoint_head_has_headers_of_get_without_body(endpoint):
    full = get(endpoint.url, COUNT)
    head = get(endpoint.url, COUNT, method="HEAD")
    assert (head.status, head.body, head.type) == (200, b"", full.type)
    assert head.headers["content-length"] == str(len(full.body))


def test_endpoint_connection_is_reused(endpoint):
    where = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    statuses = []
    for path in (f"/sparql?{urlencode({'query': COUNT})}", "/nowhere", "/sparql?query=oops", "/"):
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        statuses.append(reply.status)
    connection.close()
    assert statuses == [200, 404, 400, 200]


def test_endpoint_invalid_request_gives_status_and_text(endpoint):
    reply = get(endpoint.url, "SELECT * { ?s ?p }")
    assert (reply.status, reply.type) == (400, "text/plain")
    assert b"does not parse" in reply.body
    assert get(endpoint.url, COUNT, Accept="text/html").status == 406
    assert ask(endpoint.url, "PUT", body=b"").status == 405
    assert ask(endpoint.url, "PUT", body=b"").headers["allow"] == "GET, HEAD, POST, OPTIONS"
    assert post(endpoint.url, "ASK {}", Content_Type="text/html").status == 415


def test_endpoint_long_or_chunked_body_is_refused(endpoint):
    for _ in range(5):
        assert post(endpoint.url, "#" * (8 << 20) + "\n ASK {}").status == 413
    assert post(endpoint.url, "#" * 200_000 + "\n ASK {}").status == 400
    reply = ask(
        endpoint.url,
        "POST",
        body=iter([b"ASK {}"]),
        Content_Type="application/sparql-query",
        Transfer_Encoding="chunked",
    )
    assert reply.status == 411


@pytest.mark.parametrize("length", ["-1", "\xb2", "9" * 5_000, "1_0", "+6"])
def test_endpoint_invalid_content_length_is_refused(endpoint, length):
    where = urlsplit(endpoint.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
        head = f"POST /sparql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        assert b" 413 " in connection.makefile("rb").readline()


def test_endpoint_unknown_host_is_refused(endpoint):
    assert get(endpoint.url, COUNT, Host="evil.example:80").status == 421
    assert get(endpoint.url, COUNT, Host="[").status == 421
    assert get(endpoint.url, COUNT, Host="localhost").status == 200


def test_endpoint_other_origins_need_cors(endpoint, graph):
    assert "access-control-allow-origin" not in get(endpoint.url, COUNT).headers
    with Endpoint(graph, EndpointOptions(port=0, cors="https://maps.example")) as served:
        assert (
            get(served.url, COUNT).headers["access-control-allow-origin"] == "https://maps.example"
        )
        preflight = ask(served.url, "OPTIONS")
        assert preflight.status == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]


def test_endpoint_other_than_loopback_needs_public(graph):
    with raises(ConfigError, expected="loopback"):
        EndpointOptions(host="0.0.0.0")
    with raises(ConfigError, expected="loopback"):
        EndpointOptions(host="example.org")
    EndpointOptions(host="0.0.0.0", public=True)
    with raises(InputError, expected="room"):
        EndpointOptions(queries_max=0)


def test_endpoint_port_in_use_is_refused(endpoint, graph):
    port = urlsplit(endpoint.url).port
    with raises(ConfigError, expected="free_address"):
        Endpoint(graph, EndpointOptions(port=port))


# --- refusals --------------------------------------------------------------------------------


def escapes(there):
    """Ways to ask elsewhere, with the address that would be asked."""
    spelt = there.replace("http", "\\u0068ttp")
    return [
        f"SELECT * {{ SERVICE <{there}/a> {{ ?s ?p ?o }} }}",
        f"SELECT * {{ sErViCe SILENT <{there}/b> {{ ?s ?p ?o }} }}",
        f"PREFIX x: <{there}/> SELECT * {{ SERVICE x:c {{ ?s ?p ?o }} }}",
        f"SELECT * {{ VALUES ?g {{ <{there}/d> }} SERVICE ?g {{ ?s ?p ?o }} }}",
        f"SELECT * {{ SERVICE#comment\n<{there}/e>{{ ?s ?p ?o }} }}",
        f"SELECT * {{ \\u0053ERVICE <{there}/f> {{ ?s ?p ?o }} }}",
        f"SELECT * {{ SERVICE <{spelt}/g> {{ ?s ?p ?o }} }}",
        f"ASK {{ FILTER EXISTS {{ {{ SELECT * {{ SERVICE <{there}/h> {{ ?s ?p ?o }} }} }} }} }}",
        f'SELECT * {{ \'it\' ?p "\\u0022" . SERVICE <{there}/i> {{ ?s ?p ?o }} #" }}',
        f"SELECT * FROM <{there}/j> {{ ?s ?p ?o }}",
        f"SELECT * FROM NAMED <{there}/k> {{ GRAPH ?g {{ ?s ?p ?o }} }}",
        f"BASE <{there}/> ASK FROM <l> {{ ?s ?p ?o }}",
        f"DESCRIBE <{there}/m> FROM <{there}/m>",
        f"CONSTRUCT {{ ?s ?p ?o }} \\u0046ROM <{there}/n> WHERE {{ ?s ?p ?o }}",
        f"LOAD <{there}/o>",
        f"LOAD SILENT <{there}/p> INTO GRAPH <urn:x>",
        f"INSERT {{ ?s ?p ?o }} WHERE {{ SERVICE <{there}/q> {{ ?s ?p ?o }} }}",
        f"\\u004cOAD <{there}/r>",
        "INSERT DATA { <urn:a> <urn:b> <urn:c> }",
        "DELETE WHERE { ?s ?p ?o }",
        "CLEAR ALL",
        "DROP DEFAULT",
    ]


def test_endpoint_queries_call_no_other_server(endpoint, canary, weather):
    there, heard = canary
    assert ask(f"{there}/sings").status == 200
    assert heard == ["/sings"]
    for text in escapes(there):
        for reply in (get(endpoint.url, text), post(endpoint.url, text)):
            assert reply.status == 400, text
    for name in ("default-graph-uri", "named-graph-uri"):
        path = f"/sparql?{urlencode({'query': 'ASK {}', name: there})}"
        assert ask(endpoint.url, path=path).status == 400
    update = post(endpoint.url, f"LOAD <{there}/s>", Content_Type="application/sparql-update")
    assert update.status == 400
    assert heard == ["/sings"]
    assert json.loads(get(endpoint.url, COUNT).body)["results"]["bindings"][0]["n"]["value"] == str(
        len(weather)
    )
