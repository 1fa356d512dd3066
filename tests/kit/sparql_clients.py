"""Clients of a SPARQL endpoint: some that ask, and some that only hold a connection."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlencode, urlsplit

ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
COUNT = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
POST_HEAD = (
    b"POST /sparql HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/sparql-query\r\nContent-Length: %d\r\n\r\n"
)


class Answer:
    def __init__(self, reply):
        self.status, self.body = reply.status, reply.read()
        self.headers = {name.lower(): value for name, value in reply.getheaders()}
        self.type = self.headers.get("content-type", "").partition(";")[0]


def ask(url, method="GET", *, body=None, path=None, **headers):
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path or where.path, body, names)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def get(url, text, *, method="GET", **headers):
    path = f"{urlsplit(url).path}?{urlencode({'query': text})}"
    return ask(url, method, path=path, **headers)


def post(url, text, **headers):
    kind = {"Content_Type": "application/sparql-query"} | headers
    return ask(url, "POST", body=text.encode(), **kind)


def connect(url, *, source="", takes_bytes=0):
    """A connection from an address of this machine, whose kernel takes so much for it."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.settimeout(60)
    if takes_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes_bytes)
    if source:
        connection.bind((source, 0))
    connection.connect((where.hostname, where.port))
    return connection


def hold(url, text=ENDLESS, **how):
    """A connection on which a query runs."""
    connection = connect(url, **how)
    target = f"/sparql?{urlencode({'query': text})}"
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection
