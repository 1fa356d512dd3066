"""What `galileo sparql` can be asked of: a dataset, a continuous query, or a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from galileo.cli.session import Session
from galileo.client import Spool
from galileo.client.completeness import incomplete
from galileo.errors import InputError
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
    require_complete: bool = False,
) -> Iterator[OpenGraph]:
    """The graph of a source; that of a continuous query grows until it is closed.

    Args:
        session: where the cluster is; a file needs none.
        source: a dataset's name, a continuous query's id, or the path of an RDF file or spool.
        query: CQL2 for a dataset.
        require_complete: whether it is an error that nodes are away.

    Missing partitions and dropped commits are reported on standard error.

    Raises:
        MissingExtra: the extra `rdf` is not installed; the cluster was not asked for anything.
        InputError: an option does not go with the source.
    """
    require("rdf", purpose="galileo sparql")
    if query and (is_file(source) or is_ccq(source)):
        raise InputError(f"--query needs a dataset as SOURCE, got {source!r}")
    with contextlib.ExitStack() as stack:
        if is_ccq(source):
            client = stack.enter_context(session.client())
            view = stack.enter_context(client.sparql_view(source))
            if require_complete and view.missing:
                raise incomplete(view.missing)
            session.output.warn_partial(view.missing)
            if view.gone:
                session.output.note(f"retention dropped {len(view.gone)} ranges of commits")
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
