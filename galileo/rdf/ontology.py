"""The ontology: what the classes and properties of the RDF view mean, as Turtle."""

from __future__ import annotations

from importlib.resources import files


def ontology() -> str:
    """The ontology of `galileo.rdf.NS`, as Turtle."""
    return files("galileo.rdf").joinpath("ontology.ttl").read_text(encoding="utf-8")
