"""The ontology says what the RDF view says, neither less nor more."""

from rdflib import OWL, RDF, RDFS, Graph, URIRef

from galileo import rdf

DECLARING = {OWL.Class, OWL.ObjectProperty, OWL.DatatypeProperty}
ABSTRACT = {"Vertex"}
"""Said of nothing directly, but of what its subclasses are said of."""


def declared():
    return Graph(bind_namespaces="none").parse(data=rdf.ontology(), format="turtle")


def own(terms):
    return {str(term).removeprefix(rdf.NS) for term in terms if str(term).startswith(rdf.NS)} - {""}


def test_ontology_terms_equal_terms_of_graph(weather):
    graph, ontology = rdf.to_graph(weather), declared()
    classes = own(graph.objects(None, RDF.type))
    properties = own(graph.predicates())
    assert own(ontology.subjects(RDF.type, OWL.Class)) == classes | ABSTRACT
    assert own(ontology.subjects()) == classes | properties | ABSTRACT
    assert len(classes) == 7
    assert len(properties) > 15


def test_ontology_kinds_of_properties_hold_in_graph(weather):
    """IRIs behind object properties, literals behind the others."""
    graph, ontology = rdf.to_graph(weather), declared()
    for subject in own(graph.predicates()):
        iri = URIRef(rdf.NS + subject)
        (kind,) = set(ontology.objects(iri, RDF.type)) & DECLARING
        are_iris = {isinstance(value, URIRef) for value in graph.objects(None, iri)}
        assert are_iris == {kind == OWL.ObjectProperty}, subject


def test_ontology_domains_and_ranges_hold_in_graph(weather):
    graph, ontology = rdf.to_graph(weather), declared()

    def is_a(vertex, cls):
        return any(
            cls in ontology.transitive_objects(kind, RDFS.subClassOf)
            for kind in graph.objects(vertex, RDF.type)
        )

    for iri in set(graph.predicates()):
        for cls in ontology.objects(iri, RDFS.domain):
            assert all(is_a(subject, cls) for subject in set(graph.subjects(iri))), iri
        for cls in ontology.objects(iri, RDFS.range):
            values = set(graph.objects(None, iri))
            if str(cls).startswith(rdf.NS):
                assert all(is_a(value, cls) for value in values), iri
            elif "XMLSchema" in str(cls):
                kinds = {value.datatype or URIRef(f"{cls}") for value in values}
                assert kinds == {cls}, iri


def test_ontology_every_term_has_label_and_comment():
    ontology = declared()
    for subject in own(ontology.subjects()):
        iri = URIRef(rdf.NS + subject)
        assert len(list(ontology.objects(iri, RDFS.label))) == 1
        assert len(list(ontology.objects(iri, RDFS.comment))) == 1
