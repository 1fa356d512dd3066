"""Exploring results: label sets as RDF, and SPARQL over them."""

from galileo.rdf.answers import SparqlResult
from galileo.rdf.convert import FORMATS, ntriples, serialise, to_graph
from galileo.rdf.sparql import LabelGraph, open_labels, sparql
from galileo.rdf.terms import FEATURE, NS, PREFIXES, VERTEX

__all__ = [
    "FEATURE",
    "FORMATS",
    "NS",
    "PREFIXES",
    "VERTEX",
    "LabelGraph",
    "SparqlResult",
    "ntriples",
    "open_labels",
    "serialise",
    "sparql",
    "to_graph",
]
