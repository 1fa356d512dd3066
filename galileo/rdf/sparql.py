"""SPARQL queries on label sets and graphs in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.rdf import lazy_imports
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S, LabelGraph, OpenGraph
from galileo.rdf.sparql_result import SparqlResult

if TYPE_CHECKING:
    from rdflib import Graph


def open_labels(labels: LabelSet) -> LabelGraph:
    """Opens the RDF view of a label set, which is loaded once for several queries."""
    return LabelGraph(labels)


def sparql(
    source: LabelSet | OpenGraph | Graph,
    text: str,
    *,
    timeout_s: float = TIMEOUT_S,
    rows_max: int = ROWS_MAX,
    cancel: Cancellation | None = None,
) -> SparqlResult:
    """Answers a SPARQL 1.1 query in a process of its own.

    The prefixes of `galileo.rdf.PREFIXES` need no declaration.

    Args:
        source: a label set or a graph of rdflib, loaded for this query; or an open graph, which
            answers in a few milliseconds once it is loaded.
        text: SELECT, ASK, CONSTRUCT or DESCRIBE.
        timeout_s: for the query, without loading.
        rows_max: solutions or triples of the answer.
        cancel: cancels the query from another thread.

    Raises:
        QuerySyntaxError: it is not SPARQL.
        UnsupportedQuery: it uses SERVICE or FROM, is an update, or calls an unknown function.
        InputError: the answer or its memory exceeds a limit.
        DeadlineExceeded: it took longer than `timeout_s`.
        Cancelled: by `cancel`.
    """
    if isinstance(source, OpenGraph):
        return source.sparql(text, timeout_s=timeout_s, rows_max=rows_max, cancel=cancel)
    with _open(source) as graph:
        return graph.sparql(text, timeout_s=timeout_s, rows_max=rows_max, cancel=cancel)


def _open(source: LabelSet | Graph) -> OpenGraph:
    if isinstance(source, LabelSet):
        return LabelGraph(source)
    if isinstance(source, lazy_imports.module(lazy_imports.GRAPHS).Graph):
        return OpenGraph(lambda: _triples(source))
    raise InputError(
        f"expected a label set or a graph, got {type(source).__name__}", expected="labels_or_graph"
    )


def _triples(graph: Graph) -> Iterable[bytes]:
    return [graph.serialize(format="nt", encoding="utf-8")]
