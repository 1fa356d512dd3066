"""SPARQL queries reach no other server, however they are written."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from galileo import rdf
from galileo.errors import InputError


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


def test_sparql_queries_call_no_other_server(canary, weather):
    there, heard = canary
    with urllib.request.urlopen(f"{there}/sings") as reply:
        assert reply.status == 200
    assert heard == ["/sings"]
    with rdf.open_labels(weather) as graph:
        for text in escapes(there):
            with pytest.raises(InputError):
                graph.sparql(text)
        assert heard == ["/sings"]
        assert graph.sparql("SELECT (COUNT(?p) AS ?n) { ?p a g:Path }").rows == [
            {"n": len(weather)}
        ]
