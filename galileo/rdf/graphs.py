"""Graphs that answer SPARQL queries: of labels, of files, of any triples."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from galileo.errors import GalileoWarning, InputError
from galileo.labels import LabelSet
from galileo.model.schema import Schema, nearest_name
from galileo.rdf import lazy_imports, sparql_lexer, to_rdf
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.sparql_process.engine import MEMORY_BYTES_MAX, Engine
from galileo.rdf.sparql_result import SparqlResult

if TYPE_CHECKING:
    import pyoxigraph as ox
    from rdflib import Graph
else:
    ox = lazy_imports.OXIGRAPH

TIMEOUT_S = 30.0
ROWS_MAX = 1_000_000
PIECE_TRIPLES = 100_000

SUFFIXES = {".nt": "nt", ".ttl": "turtle", ".rdf": "xml", ".jsonld": "json-ld"}
"""File suffixes, with their formats of `to_rdf.FORMATS`."""

Self = TypeVar("Self", bound="OpenGraph")


class OpenGraph:
    """A graph that answers queries in a process of its own; thread-safe.

    The process starts at the first query. It ends with `close`, with the `with` block, or when the
    graph is garbage-collected.
    """

    def __init__(
        self, triples: Callable[[], Iterable[bytes]], *, memory_bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        self._triples = triples
        self._engine = Engine(triples, memory_bytes_max=memory_bytes_max)
        self._cancellation = Cancellation()
        self._lock = threading.Lock()

    def sparql(
        self,
        text: str,
        *,
        timeout_s: float = TIMEOUT_S,
        rows_max: int = ROWS_MAX,
        cancel: Cancellation | None = None,
    ) -> SparqlResult:
        """Answers a query; see `galileo.rdf.sparql` for limits and errors.

        Args:
            text: SELECT, ASK, CONSTRUCT or DESCRIBE.
            timeout_s: for the query; loading is not counted.
            rows_max: solutions or triples of the answer.
            cancel: stops this query from another thread.
        """
        cancels = [self._cancellation, *([cancel] if cancel else [])]
        answer = self._engine.query(text, timeout_s=timeout_s, rows_max=rows_max, cancels=cancels)
        if (schema := self._schema()) is not None:
            _warn_of_features(text, schema)
        return SparqlResult(answer, self.source_labels())

    def serialise(self, *, format: str = "turtle") -> bytes:
        """All triples in a syntax of `galileo.rdf.FORMATS`."""
        return to_rdf.convert(b"".join(self._triples()), format=format)

    def load(self) -> None:
        """Starts the process and loads the graph now, rather than at the first query."""
        self._engine.load()

    def cancel(self) -> None:
        """Cancels all queries that run or wait; they raise `Cancelled`. The graph stays open."""
        with self._lock:
            previous, self._cancellation = self._cancellation, Cancellation()
        previous.cancel()

    def close(self) -> None:
        self._engine.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def source_labels(self) -> LabelSet | None:
        """The labels of the graph; None if it is not made of labels."""
        return None

    def _schema(self) -> Schema | None:
        """The schema of the labels; None if it is not made of labels."""
        return None


class LabelGraph(OpenGraph):
    """The RDF view of one label set: `sparql` with limits, `rdf` as a graph of rdflib.

    Both are built at first use.

    Attributes:
        labels: of the graph.
    """

    def __init__(self, labels: LabelSet, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        super().__init__(lambda: to_rdf.ntriples(labels), memory_bytes_max=memory_bytes_max)
        self.labels = labels
        self._graph: Graph | None = None

    def rdf(self) -> Graph:
        """The same graph at each call; changes to it do not affect `sparql`."""
        if self._graph is None:
            self._graph = to_rdf.to_graph(self.labels)
        return self._graph

    def source_labels(self) -> LabelSet | None:
        return self.labels

    def _schema(self) -> Schema | None:
        return self.labels.schema


class FileGraph(OpenGraph):
    """The triples of an RDF file, such as `galileo.rdf.serialise` or `galileo sparql export` write.

    Args:
        path: of N-Triples (.nt), Turtle (.ttl), RDF/XML (.rdf) or JSON-LD (.jsonld).

    Raises:
        InputError: there is no such file, or it has another suffix.
    """

    def __init__(self, path: str | Path) -> None:
        path = self.path = Path(path)
        if self.path.suffix.lower() not in SUFFIXES:
            raise InputError(
                f"expected an RDF file ending in {', '.join(SUFFIXES)}, got {self.path.name!r}"
            )
        if not self.path.is_file():
            raise InputError(f"expected a file, there is none at {self.path}")
        super().__init__(lambda: _pieces(path))


def _warn_of_features(text: str, schema: Schema) -> None:
    """Warns of names with the prefix `f:` that are no indexed feature of the dataset."""
    names = [feature.name for feature in schema.indexed]
    with suppress(sparql_lexer.Unlexable):
        for name in sparql_lexer.names_of(text, prefix="f"):
            if name not in names:
                close = nearest_name(name, names)
                hint = f"did you mean f:{close}?" if close else f"there are {', '.join(names)}"
                warnings.warn(
                    f"f:{name} matches nothing: {schema.name!r} has no indexed feature "
                    f"{name!r}; {hint}",
                    GalileoWarning,
                    stacklevel=4,
                )


def _pieces(path: Path) -> Iterator[bytes]:
    """The triples of a file as N-Triples, checked by a strict parser."""
    triples: list[ox.Triple] = []
    try:
        form = to_rdf.rdf_format(SUFFIXES[path.suffix.lower()])
        for quad in ox.parse(path=str(path), format=form):
            triples.append(quad.triple)
            if len(triples) == PIECE_TRIPLES:
                yield _lines(triples)
                triples = []
    except (SyntaxError, OSError) as error:
        raise InputError(f"{path} does not parse as RDF: {error}") from error
    yield _lines(triples)


def _lines(triples: list[ox.Triple]) -> bytes:
    data = ox.serialize(triples, format=ox.RdfFormat.N_TRIPLES)
    assert data is not None, "serialize returns bytes without an output"
    return data
