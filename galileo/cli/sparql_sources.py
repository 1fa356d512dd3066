"""What `galileo sparql` can be asked of: a dataset, a continuous query, or a file."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from galileo.cli.session import Session
from galileo.client import SparqlView, Spool
from galileo.client.completeness import incomplete
from galileo.errors import Cancelled, GalileoError, InputError
from galileo.labels import LabelSet
from galileo.optional_imports import require
from galileo.rdf import FileGraph, LabelGraph, OpenGraph
from galileo.rdf.graphs import SUFFIXES

CCQ_PREFIX = "ccq-"
SPOOL_SUFFIX = ".spool"
STDIN = "-"


def is_file(source: str) -> bool:
    return Path(source).suffix.lower() in (*SUFFIXES, SPOOL_SUFFIX)


def is_ccq(source: str) -> bool:
    return source.startswith(CCQ_PREFIX) and not is_file(source)


@contextlib.contextmanager
def opened(
    session: Session,
    source: str,
    *,
    query: str = "",
    spool: Path | None = None,
    require_complete: bool = False,
    on_end: Callable[[GalileoError], None] | None = None,
) -> Iterator[OpenGraph]:
    """The graph of a source; that of a continuous query grows until it is closed.

    Args:
        session: where the cluster is; a file needs none.
        source: a dataset's name, a continuous query's id, or the path of an RDF file or spool.
        query: CQL2 for a dataset.
        spool: of a continuous query, to begin with and to store in.
        require_complete: whether it is an error that nodes are away.
        on_end: called, by a thread of its own, where the graph of a continuous query grows no more
            before it is closed.

    Missing partitions and dropped commits are reported on standard error.

    Raises:
        MissingExtra: the extra `rdf` is not installed; the cluster was not asked for anything.
        InputError: an option does not go with the source.
    """
    require("rdf", purpose="galileo sparql")
    if query and (is_file(source) or is_ccq(source)):
        raise InputError(f"--query needs a dataset as SOURCE, got {source!r}")
    if spool is not None and not is_ccq(source):
        raise InputError(f"--spool needs a continuous query as SOURCE, got {source!r}")
    with contextlib.ExitStack() as stack:
        if is_ccq(source):
            client = stack.enter_context(session.client())
            held = stack.enter_context(Spool(spool)) if spool else None
            view = stack.enter_context(client.sparql_view(source, spool=held))
            if require_complete and view.missing:
                raise incomplete(view.missing)
            session.output.warn_partial(view.missing)
            if view.gone:
                session.output.note(f"retention dropped {len(view.gone)} ranges of commits")
            if on_end is not None:
                threading.Thread(target=_await_end, args=(view, on_end), daemon=True).start()
            yield view.graph
        elif Path(source).suffix.lower() in SUFFIXES:
            yield stack.enter_context(FileGraph(source))
        else:
            labels = _labels(session, source, query, require_complete=require_complete)
            yield stack.enter_context(LabelGraph(labels))


def _labels(session: Session, source: str, query: str, *, require_complete: bool) -> LabelSet:
    if not is_file(source):
        with session.client() as client:
            labels = client.query(source, query, require_complete=require_complete)
        session.output.warn_partial(labels.missing)
        return labels
    if not Path(source).is_file():
        raise InputError(f"expected a spool, there is no file at {source}")
    with Spool(source) as held:
        return held.labels()


def _await_end(view: SparqlView, on_end: Callable[[GalileoError], None]) -> None:
    view.wait(labels=view.graph.labels_max + 1, timeout_s=threading.TIMEOUT_MAX)
    if view.ended is not None and not isinstance(view.ended, Cancelled):
        on_end(view.ended)
