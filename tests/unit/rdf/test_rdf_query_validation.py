import pytest
from expected_errors import raises
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
def test_check_query_service_from_or_update_raises(text):
    is_update = text.startswith("INSERT")
    with raises(UnsupportedQuery, expected="query" if is_update else "query_of_result"):
        query_validation.check_query(text)


@pytest.mark.parametrize("text", ACCEPTED)
def test_check_query_keywords_in_literals_are_accepted(text):
    query_validation.check_query(text)


def test_check_query_invalid_text_raises_with_position():
    with raises(QuerySyntaxError, position=len("SELECT *\n{ ")):
        query_validation.check_query("SELECT *\n{ SERVICE oops }")


def test_check_query_deep_nesting_raises():
    depth = 20_000
    with pytest.raises(InputError):
        query_validation.check_query("SELECT * " + "{" * depth + " ?from ?b ?c " + "}" * depth)


@pytest.mark.parametrize(("text", "expected"), [(b"ASK {}", "text"), ("#" * 100_001, "characters")])
def test_check_query_other_type_or_long_text_raises(text, expected):
    with raises(InputError, expected=expected):
        query_validation.check_query(text)


def test_check_update_load_raises():
    query_validation.check_update("INSERT DATA { <urn:a> <urn:b> 'LOAD' }")
    with raises(UnsupportedQuery, expected="query_of_result", name="Load"):
        query_validation.check_update(
            "INSERT DATA { <urn:a> <urn:b> 1 } ; LOAD <http://127.0.0.1:1/>"
        )
    with pytest.raises(QuerySyntaxError):
        query_validation.check_update("LOAD what")


def test_check_algebra_service_from_or_load_raises():
    query_validation.check_algebra(prepareQuery("SELECT * { ?s ?p 'SERVICE' }").algebra)
    with raises(UnsupportedQuery, expected="query_of_result", name="ServiceGraphPattern"):
        query_validation.check_algebra(
            prepareQuery(f"SELECT * {{ SERVICE {REMOTE} {{ }} }}").algebra
        )
    with raises(UnsupportedQuery, expected="query_of_result", name="DatasetClause"):
        query_validation.check_algebra(
            prepareQuery(f"SELECT * FROM {REMOTE} {{ ?s ?p ?o }}").algebra
        )
    with raises(UnsupportedQuery, expected="query_of_result", name="Load"):
        query_validation.check_algebra(prepareUpdate(f"LOAD {REMOTE}").algebra)


def test_syntax_error_position_counts_characters():
    error = query_validation.syntax_error("ASK {\n é oops }", "error at 2:4: expected ?")
    assert isinstance(error, QuerySyntaxError)
    assert error.details["position"] == 9
