import pytest
from rdflib.plugins.sparql import prepareQuery, prepareUpdate

from galileo.errors import InputError, QuerySyntaxError, UnsupportedQuery
from galileo.rdf import query_validation

REMOTE = "<http://127.0.0.1:1/sparql>"
REFUSED = [
    f"SELECT * {{ SERVICE {REMOTE} {{ ?s ?p ?o }} }}",
    f"SELECT * {{ sErViCe SILENT {REMOTE} {{ ?s ?p ?o }} }}",
    f"SELECT * {{ ?a ?b ?c OPTIONAL {{ {{ SERVICE{REMOTE}{{ ?s ?p ?o }} }} UNION {{ }} }} }}",
    f"SELECT * {{ ?a ?b ?c FILTER EXISTS {{ SERVICE {REMOTE} {{ ?a ?p ?o }} }} }}",
    "SELECT * { ?a ?b ?c MINUS { SERVICE ?c { ?a ?p ?o } } }",
    f"SELECT * {{ {{ SELECT ?s {{ SERVICE {REMOTE} {{ ?s ?p ?o }} }} }} }}",
    f"ASK {{ SERVICE # a comment\n {REMOTE} {{ ?s ?p ?o }} }}",
    f"CONSTRUCT {{ ?s ?p ?o }} WHERE {{ SERVICE {REMOTE} {{ ?s ?p ?o }} }}",
    f"SELECT * FROM {REMOTE} {{ ?s ?p ?o }}",
    f"SELECT * FROM NAMED {REMOTE} {{ GRAPH ?g {{ ?s ?p ?o }} }}",
    f"CONSTRUCT FROM {REMOTE} WHERE {{ ?s ?p ?o }}",
    f"DESCRIBE ?s FROM {REMOTE} WHERE {{ ?s ?p ?o }}",
    f"ASK FROM {REMOTE} {{ ?s ?p ?o }}",
    f"SELECT * {{ \\u0053ERVICE {REMOTE} {{ ?s ?p ?o }} }}",
    f"LOAD {REMOTE}",
    f"LOAD SILENT {REMOTE} INTO GRAPH <urn:x>",
    "INSERT DATA { <urn:a> <urn:b> 'from' }",
]
ACCEPTED = [
    "SELECT * { ?s ?p 'SERVICE <http://x/> {} FROM LOAD' }",
    'SELECT * { ?s ?p "\\"SERVICE\\" <http://x/>" }',
    "SELECT ?from ?service { ?from ?load ?service } # SERVICE <http://x/> { }",
    "PREFIX service: <urn:from:> SELECT * { ?s service:from service:load }",
    "SELECT * { <urn:from> <urn:SERVICE> '''FROM\n\"LOAD\"''' }",
    "SELECT * { ?s g:value '\\u0041' }",
]


@pytest.mark.parametrize("text", REFUSED)
def test_check_query_service_from_and_updates_are_refused(text):
    with pytest.raises(UnsupportedQuery, match="expected a query"):
        query_validation.check_query(text)


@pytest.mark.parametrize("text", ACCEPTED)
def test_the_words_alone_are_harmless(text):
    query_validation.check_query(text)


def test_a_suspicious_text_that_does_not_parse_is_refused_with_its_place():
    with pytest.raises(QuerySyntaxError, match="does not parse") as caught:
        query_validation.check_query("SELECT *\n{ SERVICE oops }")
    assert caught.value.details["position"] == len("SELECT *\n{ ")


def test_deep_nesting_is_an_error_and_no_crash():
    depth = 20_000
    with pytest.raises(InputError):
        query_validation.check_query("SELECT * " + "{" * depth + " ?from ?b ?c " + "}" * depth)


@pytest.mark.parametrize(("text", "match"), [(b"ASK {}", "bytes"), ("#" * 100_001, "100,000")])
def test_check_query_other_types_and_long_texts_are_refused(text, match):
    with pytest.raises(InputError, match=match):
        query_validation.check_query(text)


def test_updates_of_a_copy_may_not_load():
    query_validation.check_update("INSERT DATA { <urn:a> <urn:b> 'LOAD' }")
    with pytest.raises(UnsupportedQuery, match="LOAD"):
        query_validation.check_update(
            "INSERT DATA { <urn:a> <urn:b> 1 } ; LOAD <http://127.0.0.1:1/>"
        )
    with pytest.raises(QuerySyntaxError):
        query_validation.check_update("LOAD what")


def test_check_algebra_refuses_service_from_and_load():
    query_validation.check_algebra(prepareQuery("SELECT * { ?s ?p 'SERVICE' }").algebra)
    with pytest.raises(UnsupportedQuery, match="SERVICE"):
        query_validation.check_algebra(
            prepareQuery(f"SELECT * {{ SERVICE {REMOTE} {{ }} }}").algebra
        )
    with pytest.raises(UnsupportedQuery, match="FROM"):
        query_validation.check_algebra(
            prepareQuery(f"SELECT * FROM {REMOTE} {{ ?s ?p ?o }}").algebra
        )
    with pytest.raises(UnsupportedQuery, match="LOAD"):
        query_validation.check_algebra(prepareUpdate(f"LOAD {REMOTE}").algebra)


def test_the_place_of_an_error_is_counted_in_characters():
    error = query_validation.syntax_error("ASK {\n é oops }", "error at 2:4: expected ?")
    assert isinstance(error, QuerySyntaxError)
    assert error.details["position"] == 9
