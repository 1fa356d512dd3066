"""Exploring results: label sets as RDF, and SPARQL over them."""

from galileo.rdf.answers import SparqlResult
from galileo.rdf.cancelling import Cancellation
from galileo.rdf.convert import FORMATS, ntriples, serialise, to_graph
from galileo.rdf.endpoint import Endpoint
from galileo.rdf.graphs import FileGraph, LabelGraph, OpenGraph
from galileo.rdf.growing import GrowingGraph
from galileo.rdf.ontology import ontology
from galileo.rdf.service import EndpointOptions
from galileo.rdf.sparql import open_labels, sparql
from galileo.rdf.terms import FEATURE, NS, PREFIXES, VERTEX

__all__ = [
    "FEATURE",
    "FORMATS",
    "NS",
    "PREFIXES",
    "VERTEX",
    "Cancellation",
    "Endpoint",
    "EndpointOptions",
    "FileGraph",
    "GrowingGraph",
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
