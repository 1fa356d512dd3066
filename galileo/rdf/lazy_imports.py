"""Lazy imports of rdflib and its parser, which would double the start time of a client.

Few results are used as RDF, and SPARQL queries go to oxigraph.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from galileo.optional_imports import LateModule, library

GRAPHS = "rdflib"
RDFLIB_STORE = "galileo.rdf.rdflib_store"
PARSER = "rdflib.plugins.sparql.parser"
TREES = "rdflib.plugins.sparql.parserutils"
PARSING = "pyparsing"
PURPOSE = "RDF"

OXIGRAPH = LateModule("pyoxigraph", purpose=PURPOSE)
WORKER = LateModule("galileo.rdf.sparql_process.worker", purpose=PURPOSE)


def module(name: str) -> ModuleType:
    """A module, imported now if it was not before.

    Raises:
        MissingExtra: the extra `rdf` is not installed.
    """
    imported: ModuleType = library(name, purpose=PURPOSE)
    return imported


def graph(**how: Any) -> Any:
    """A new `rdflib.Graph`."""
    return module(GRAPHS).Graph(**how)


def name(iri: str) -> Any:
    """An `rdflib.URIRef`."""
    return module(GRAPHS).URIRef(iri)
