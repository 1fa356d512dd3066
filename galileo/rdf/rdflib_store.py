"""The rdflib store: oxigraph answers its queries, without calls to other servers."""

from __future__ import annotations

from typing import Any

from oxrdflib import OxigraphStore
from rdflib.graph import DATASET_DEFAULT_GRAPH_ID as DATASET_DEFAULT_GRAPH_ID

from galileo.rdf import query_validation


class GuardedStore(OxigraphStore):  # type: ignore[misc]  # oxrdflib ships no usable types
    """An oxigraph store that refuses `SERVICE`, `LOAD` and `FROM`.

    Queries run in the caller's process without a time limit; `galileo.rdf.sparql` has one.
    """

    def query(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(query, str):
            query_validation.check_query_here(query)
        else:
            query_validation.check_algebra(query.algebra)
        return super().query(query, *args, **kwargs)

    def update(self, update: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(update, str):
            query_validation.check_update(update)
        else:
            query_validation.check_algebra(update.algebra)
        super().update(update, *args, **kwargs)
