"""SPARQL over label sets: the graph of a result, built when asked for and kept while open."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from rdflib import Graph

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.rdf import convert
from galileo.rdf.answers import SparqlResult
from galileo.rdf.engine import Engine, Limits


class LabelGraph:
    """The RDF view of one label set: `sparql` under limits, `rdf` for everything else.

    Both are built at first use. Close it, or use it in a `with` block, to end the process
    that answers; an unreferenced one is closed as well.

    Attributes:
        labels: what it is a view of.
    """

    def __init__(self, labels: LabelSet) -> None:
        self.labels = labels
        self._graph: Graph | None = None
        self._engine = Engine(lambda: convert.ntriples(labels))

    def rdf(self) -> Graph:
        """The graph, the same one at every call; changes to it do not reach `sparql`."""
        if self._graph is None:
            self._graph = convert.to_graph(self.labels)
        return self._graph

    def sparql(
        self, text: str, *, timeout_s: float = 30.0, rows_max: int = 1_000_000
    ) -> SparqlResult:
        """Answers a query; see `galileo.rdf.sparql` for limits and errors."""
        limits = Limits(timeout_s=timeout_s, rows_max=rows_max)
        return SparqlResult(self._engine.query(text, limits))

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> LabelGraph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_labels(labels: LabelSet) -> LabelGraph:
    """The RDF view of a label set, for several queries: it is loaded once."""
    return LabelGraph(labels)


def sparql(
    source: LabelSet | LabelGraph | Graph,
    text: str,
    *,
    timeout_s: float = 30.0,
    rows_max: int = 1_000_000,
) -> SparqlResult:
    """Answers a SPARQL 1.1 query about a result, in a process that can be ended.

    The prefixes of `galileo.rdf.PREFIXES` need not be declared.

    Args:
        source: a label set or a graph of rdflib, loaded for this one query; or an open
            `LabelGraph`, which answers in a few milliseconds once it is loaded.
        text: SELECT, ASK, CONSTRUCT or DESCRIBE.
        timeout_s: for the query; loading is not counted.
        rows_max: solutions or triples of the answer.

    Raises:
        QuerySyntaxError: it is not SPARQL.
        UnsupportedQuery: it uses SERVICE or FROM.
        InputError: it is an update, or answer or memory pass a limit.
        DeadlineExceeded: it took longer than `timeout_s` and was stopped.
    """
    if isinstance(source, LabelGraph):
        return source.sparql(text, timeout_s=timeout_s, rows_max=rows_max)
    engine = Engine(lambda: _triples(source))
    try:
        limits = Limits(timeout_s=timeout_s, rows_max=rows_max)
        return SparqlResult(engine.query(text, limits))
    finally:
        engine.close()


def _triples(source: LabelSet | Graph) -> Iterable[bytes]:
    if isinstance(source, LabelSet):
        return convert.ntriples(source)
    if isinstance(source, Graph):
        return [source.serialize(format="nt", encoding="utf-8")]
    raise InputError(f"expected a label set or a graph, got {type(source).__name__}")
