"""RDF: label sets as graphs, and SPARQL queries on them."""

from galileo.rdf.cancellation import Cancellation
from galileo.rdf.graphs import FileGraph, LabelGraph, OpenGraph
from galileo.rdf.incremental_graph import IncrementalGraph
from galileo.rdf.sparql import open_labels, sparql
from galileo.rdf.sparql_result import SparqlResult
from galileo.rdf.terms import FEATURE, NS, PREFIXES, VERTEX, ontology
from galileo.rdf.to_rdf import FORMATS, ntriples, serialise, to_graph

__all__ = [
    "FEATURE",
    "FORMATS",
    "NS",
    "PREFIXES",
    "VERTEX",
    "Cancellation",
    "FileGraph",
    "IncrementalGraph",
    "LabelGraph",
    "OpenGraph",
    "SparqlResult",
    "ntriples",
    "ontology",
    "open_labels",
    "serialise",
    "sparql",
    "to_graph",
]
