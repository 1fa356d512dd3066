"""Keywords of a SPARQL text that is not parsed, as a parser and as the engine take them."""

from __future__ import annotations

import contextlib

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from pyparsing import ParseException
from rdflib.plugins.sparql.parser import parseQuery

from galileo.errors import InputError, UnsupportedQuery
from galileo.rdf import query_validation, sparql_lexer, terms

REMOTE = "<http://127.0.0.1:1/sparql>"
REFUSED = [
    # The engine needs no space between words.
    f"ASKFROM{REMOTE}{{}}",
    f"SELECT(1AS?x)FROMNAMED{REMOTE}{{}}",
    f"SELECT*{{SERVICESILENT{REMOTE}{{}}}}",
    f"SELECT * {{ ?s ?p 5.SERVICE{REMOTE}{{}} }}",
    "SELECT * { ?s ?p ?o.SERVICE?o{} }",
    "PREFIX x: <urn:x:> ASK FROMx:y {}",
    "PREFIX x: <urn:x:> SELECT * {servicex:y{}}",
    "PREFIX x: <urn:x:> SELECT * {trueserviceSilentx:y{}}",
    "PREFIX : <urn:x:> PREFIX service: <urn:y:> SELECT * {service:y # {\n {}}",
    "PREFIX : <urn:x:> ASK from:y where {}",
    "SELECT * {SERVICE g:x{}}",
    # What looks like an IRI may be less than, and more.
    "ASK { ?a ?b 1 FILTER(1<1)SERVICE?x#>\n{} }",
    f"ASK {{ FILTER('a'<'>' ) SERVICE {REMOTE} {{}} FILTER('a'='a') }}",
    f"ASK {{ FILTER(1<2#>'''\n) SERVICE {REMOTE} {{}} #'''\n}}",
    f"ASK {{ <\\u0068ttp://x/#> ?p ?o . SERVICE {REMOTE} {{}} }}",
    # What looks like the beginning of a long string may be an empty one before another.
    f"SELECT * {{ VALUES ?x {{'''a'}} SERVICE {REMOTE} {{}} }}",
    f"SELECT * {{ ?s ?p '''a\\'''' . SERVICE {REMOTE} {{}} }}",
    f"SELECT * {{ ?s ?p 'a\\\\' . SERVICE {REMOTE} {{}} # '\n }}",
]
ACCEPTED = [
    "SELECT * { ?s ?p 'x'@from-load . ?from_service ?p _:from.load . ?a ?b g:a-from\\'service }",
    "PREFIX s: <http://x/service#> SELECT * { ?s s:from '''\nLOAD <urn:a>''' # FROM <urn:x>\n}",
    "PREFIX : <urn:x:> PREFIX service: <urn:y:> SELECT * { ?s service:y :load FILTER(?s<?from) }",
    "SELECT * { ?s ?p 'it\\'s' ; ?q 'from <urn:x>' }",
]
SLOW = [
    "'\\" * 40_000 + "from",
    "'" * 99_995 + "from",
    '"""\\' * 20_000 + "from",
    "from" * 20_000,
    "from" * 20_000 + ":",
    "a.b." * 20_000 + "from",
    "from#" * 20_000,
    "<from" * 20_000,
    "<a>from#'" * 10_000,
    "PREFIX from:" * 8_000,
    "(" * 50_000 + ")" * 40_000 + "from",
    ":from\\" * 10_000,
]


@pytest.mark.parametrize("text", REFUSED)
def test_check_query_hidden_keyword_raises(text):
    with raises(UnsupportedQuery, expected="query_of_result"):
        query_validation.check_query(text)


@pytest.mark.parametrize("text", ACCEPTED)
def test_check_query_words_like_keywords_are_accepted(text):
    query_validation.check_query(text)


def test_check_query_long_text_is_not_parsed_by_rdflib(monkeypatch):
    """What takes seconds, or too deep a stack, in rdflib's parser."""
    monkeypatch.setattr(query_validation, "lazy_imports", None)
    query_validation.check_query("SELECT * { " + "{ ?a ?b 'from' } UNION " * 2_000 + "{} }")
    query_validation.check_query("SELECT * { " + "?a ?b 'service' . " * 2_000 + "}")
    query_validation.syntax_error("SELECT * { " + "{ ?a ?b ?c } UNION " * 2_000 + "oops", "no")


@pytest.mark.parametrize("text", SLOW, ids=range(len(SLOW)))
def test_check_query_adversarial_text_terminates(text):
    """It takes minutes where the text is looked through from each of its places."""
    with contextlib.suppress(InputError):
        query_validation.check_query(text)


def has_keyword(text):
    """By the tree of rdflib's parser; None where it is no query."""
    try:
        names = query_validation._names(parseQuery(text))
    except (ParseException, RecursionError, ValueError):
        return None
    return not names.isdisjoint({"ServiceGraphPattern", "DatasetClause"})


words = st.sampled_from(["from", "SERVICE", "load", "x", "#", "<urn:a>", "' '", "{", "  "])
inner = st.lists(words, max_size=4).map("".join)
objects = st.one_of(
    inner.map(lambda text: "'" + text.replace("'", "\\'") + "'"),
    inner.map(lambda text: f'"{text}"@from'),
    inner.map(lambda text: f"'''{text}\n\"{text}x'''"),
    inner.map(lambda text: f'"""{text}\n\'{text}x"""'),
    st.sampled_from(["?from", "$service", "from:load", "x:service", "_:load", "<urn:from#load>"]),
    st.sampled_from(["<http://x/service#y'z>", "1.5", "true", "-7e3", "[]"]),
)
patterns = st.recursive(
    st.one_of(
        objects.map(lambda term: f"?s ?p {term} ."),
        objects.map(lambda term: f"FILTER(?a<{term}||?b>3)"),
        inner.map(lambda text: f"#{text}\n"),
        st.just(""),
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3).map("\n".join),
        inside.map(lambda text: f"OPTIONAL {{ {text}\n }}"),
        st.tuples(inside, inside).map(lambda two: f"{{ {two[0]}\n }} UNION {{ {two[1]}\n }}"),
        inside.map(lambda text: f"SERVICE x:y {{ {text}\n }}"),
        inside.map(lambda text: f"service #{{\n<urn:a> {{ {text}\n }}"),
    ),
    max_leaves=6,
)
queries = st.tuples(st.sampled_from(["", "", "FROM <urn:x> ", "from x:y"]), patterns).map(
    lambda two: (
        f"PREFIX x: <urn:x:> PREFIX from: <urn:y:>\nSELECT * {two[0]} WHERE {{\n{two[1]}\n}}"
    )
)


@pytest.mark.slow
@examples(40)  # a parse takes some tenths of a second
@given(queries)
def test_find_keyword_random_query_equals_parser(text):
    expected = has_keyword(text)
    found = sparql_lexer.find_keyword(text)
    if expected is not None:
        assert (found is not None and found.named) == expected


NAMES = st.sampled_from(["a", "g", "xsd", "nope", "", "x.y", "_"])
OTHER = ["?c", "'d:e'", '"""f:g\n"""', "<urn:h:i>", "# j:k\n", "@en", "{", "}", ";", "12", "ASK"]
# Each piece, and the prefix that it uses or declares, where it does.
PIECES = st.one_of(
    NAMES.map(lambda name: (f"{name}:b", name, None)),
    NAMES.map(lambda name: (f"PREFIX {name}: <urn:{name}>", None, name)),
    st.sampled_from(OTHER).map(lambda text: (text, None, None)),
)


@given(st.lists(PIECES, max_size=12))
def test_first_undeclared_prefix_random_text_is_found(pieces):
    text, used, declared = "", [], {"_", *terms.PREFIXES}
    for piece, use, declaration in pieces:
        if use is not None:
            used.append(sparql_lexer.Prefix(use, len(text)))
        if declaration is not None:
            declared.add(declaration)
        text += piece + " "
    unknown = [one for one in used if one.name not in declared]
    assert sparql_lexer.first_undeclared_prefix(text) == (unknown[0] if unknown else None)
