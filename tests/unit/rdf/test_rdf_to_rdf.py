from urllib.parse import quote

import pyoxigraph as ox
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st
from rdflib import RDF, Graph, Literal, Namespace, URIRef
from rdflib.namespace import GEO, RDFS, XSD
from shapely import wkt

from galileo import rdf
from galileo.errors import InputError, UnsupportedQuery
from galileo.geo import geohash
from galileo.labels import LabelSet, parse_label
from galileo.model.times import iso

G = Namespace(rdf.NS)
F = Namespace(rdf.FEATURE)
QUDT = Namespace("http://qudt.org/schema/qudt/")
UNIT = Namespace("http://qudt.org/vocab/unit/")
DATATYPES = {"float": XSD.double, "int": XSD.integer, "text": XSD.string, "bool": XSD.boolean}


def comparable(term):
    """Terms by meaning: doubles by value, whatever their spelling."""
    if isinstance(term, Literal) and term.datatype == XSD.double:
        return ("double", float(str(term)))
    if isinstance(term, Literal):
        return (str(term), str(term.datatype or XSD.string))
    return str(term)


def triples_of(graph):
    return {tuple(map(comparable, triple)) for triple in graph}


def read(labels):
    data = b"".join(rdf.ntriples(labels))
    return Graph(bind_namespaces="none").parse(data=data.decode(), format="nt")


def segment(text, feature):
    if text == "~" or feature.type != "text":
        return text.replace("inf", "INF")
    plain = text.replace("%7E", "~").replace("%2F", "/").replace("%25", "%")
    return quote(plain, safe="").replace(".", "%2E").replace("~", "%7E")


def lexical(value, feature):
    if feature.type == "bool":
        return str(value).lower()
    return str(value).replace("inf", "INF") if feature.type == "float" else str(value)


def naive_dataset(graph, schema):
    root = URIRef(f"{rdf.VERTEX}{schema.name}")
    graph.add((root, RDF.type, G.Dataset))
    graph.add((root, G.name, Literal(schema.name)))
    graph.add((root, G.geohashPrecision, Literal(schema.geohash_precision)))
    graph.add((root, G.bucketSeconds, Literal(schema.time_bucket_us / 1e6)))
    for number, feature in enumerate(schema.indexed):
        iri = URIRef(f"{root}#{feature.name}")
        graph.add((root, G.hasFeature, iri))
        graph.add((iri, RDF.type, G.Feature))
        graph.add((iri, G.name, Literal(feature.name)))
        graph.add((iri, G.level, Literal(number + 3)))
        graph.add((iri, G.property, F[feature.name]))
        if feature.unit:
            graph.add((iri, G.unit, Literal(feature.unit)))
            graph.add((iri, QUDT.hasUnit, {"K": UNIT.K, "m": UNIT.M}[feature.unit]))
        if feature.standard_name:
            name = URIRef(f"http://vocab.nerc.ac.uk/standard_name/{feature.standard_name}")
            graph.add((iri, G.standardName, name))
        if feature.description:
            graph.add((iri, RDFS.comment, Literal(feature.description)))
        for value, meaning in feature.flags.items():
            flag = URIRef(f"{iri}/{value}")
            graph.add((iri, G.flag, flag))
            graph.add((flag, RDF.value, Literal(value)))
            graph.add((flag, RDFS.label, Literal(meaning)))
    return root


def naive_path(graph, labels, row):
    """The statements about one label and its vertices, one by one."""
    schema, text = labels.schema, labels.texts()[row].as_py()
    parts, cells = parse_label(schema, text), text.split("/")
    time = Literal(iso(parts["time"]), datatype=XSD.dateTime)
    block = f"{schema.name}/{parts['geohash']}/{iso(parts['time'])}"

    def vertex(depth):
        middle = [segment(t, f) for t, f in zip(cells[3:-1], schema.indexed, strict=True)]
        return URIRef(rdf.VERTEX + "/".join([*cells[:3], *middle, cells[-1]][: depth + 1]))

    cell, bucket = vertex(1), vertex(2)
    shape, west_south = URIRef(f"{cell}#geometry"), parts["geohash"]
    w, s, e, n = (side.tolist() for side in geohash.bounds(geohash.cell_from_text(west_south), 3))
    corners = ", ".join(f"{x:.15g} {y:.15g}" for x, y in ((w, s), (e, s), (e, n), (w, n), (w, s)))
    graph.add((vertex(0), G.parentOf, cell))
    graph.add((cell, RDF.type, G.Cell))
    graph.add((cell, RDF.type, GEO.Feature))
    graph.add((cell, G.value, Literal(parts["geohash"])))
    graph.add((cell, GEO.hasGeometry, shape))
    graph.add((shape, RDF.type, GEO.Geometry))
    graph.add((shape, GEO.asWKT, Literal(f"POLYGON (({corners}))", datatype=GEO.wktLiteral)))
    graph.add((cell, G.parentOf, bucket))
    graph.add((bucket, RDF.type, G.TimeBucket))
    graph.add((bucket, G.value, time))
    iri = URIRef(f"urn:galileo:block:{block}")
    graph.add((iri, RDF.type, G.Block))
    graph.add((iri, G.id, Literal(block)))
    graph.add((iri, G.bucket, bucket))
    leaf = vertex(3 + len(schema.indexed))
    for depth, feature in enumerate(schema.indexed, start=3):
        at, value = vertex(depth), parts[feature.name]
        graph.add((vertex(depth - 1), G.parentOf, at))
        graph.add((at, RDF.type, G.FeatureValue))
        graph.add((at, G.feature, URIRef(f"{rdf.VERTEX}{schema.name}#{feature.name}")))
        if value is not None:
            typed = Literal(lexical(value, feature), datatype=DATATYPES[feature.type])
            graph.add((at, G.value, typed))
            graph.add((leaf, F[feature.name], typed))
    graph.add((vertex(2 + len(schema.indexed)), G.parentOf, leaf))
    graph.add((leaf, RDF.type, G.Path))
    graph.add((leaf, G.label, Literal(text)))
    graph.add((leaf, G.block, Literal(block)))
    graph.add((leaf, G.partOf, iri))
    graph.add((leaf, G.geohash, Literal(parts["geohash"])))
    graph.add((leaf, G.time, time))
    graph.add((leaf, G["partition"], Literal(parts["partition"])))
    graph.add((leaf, G.sequence, Literal(parts["sequence"])))
    graph.add((leaf, G.observations, Literal(labels.table["rows"][row].as_py())))


def naive(labels):
    graph = Graph(bind_namespaces="none")
    naive_dataset(graph, labels.schema)
    for row in range(len(labels)):
        naive_path(graph, labels, row)
    return graph


@given(st.data())
def test_ntriples_random_labels_equal_loop_over_labels(label_sets, data):
    labels = data.draw(label_sets)
    assert triples_of(read(labels)) == triples_of(naive(labels))


@given(st.data())
def test_ntriples_random_labels_are_distinct_and_valid(label_sets, data):
    labels = data.draw(label_sets)
    lines = b"".join(rdf.ntriples(labels))
    quads = list(ox.parse(lines, format=ox.RdfFormat.N_TRIPLES))
    assert len(quads) == len(set(quads)) == lines.count(b"\n")


@given(st.data())
def test_to_graph_random_labels_has_every_triple(label_sets, data):
    labels = data.draw(label_sets)
    graph = rdf.to_graph(labels)
    assert len(graph) == b"".join(rdf.ntriples(labels)).count(b"\n")
    assert triples_of(graph) == triples_of(naive(labels))


def test_ntriples_concatenated_labels_equal_whole(weather):
    parts = [weather.slice(0, 70), weather.slice(70, 71), weather.slice(71, 200)]
    whole = LabelSet.concat(weather.schema, parts)
    assert triples_of(read(whole)) == triples_of(read(weather))


def test_to_graph_no_labels_describes_dataset(weather):
    graph = rdf.to_graph(LabelSet.empty(weather.schema))
    dataset = URIRef(f"{rdf.VERTEX}nam")
    assert (dataset, RDF.type, G.Dataset) in graph
    assert {str(name) for name in graph.objects(dataset, G.hasFeature / G.name)} == {
        "temperature",
        "level",
        "station",
        "raining",
    }
    assert not list(graph.triples((None, G.parentOf, None)))


def test_to_graph_equal_values_of_levels_are_distinct_vertices(mixed):
    """Value 2 of one feature is not value 2 of the next, nor the 2 of another branch."""
    rows = [{"temperature": 2.0, "level": 2, "station": "2"}, {"temperature": 3.0, "level": 2}]
    graph = rdf.to_graph(mixed(rows))
    values = list(graph.subjects(RDF.type, G.FeatureValue))
    assert len(values) == 2 * 4
    parents = [len(list(graph.subjects(G.parentOf, value))) for value in values]
    assert parents == [1] * len(values)


def test_to_graph_missing_value_has_vertex_without_value(mixed):
    graph = rdf.to_graph(mixed([{"temperature": None, "station": "x"}]))
    (path,) = graph.subjects(RDF.type, G.Path)
    assert list(graph.objects(path, F.temperature)) == []
    assert [str(value) for value in graph.objects(path, F.station)] == ["x"]
    assert len(list(graph.objects(URIRef(f"{rdf.VERTEX}nam"), G.parentOf * "+"))) == 2 + 4 + 1


def test_to_graph_polygons_equal_cells(weather):
    graph = rdf.to_graph(weather)
    for cell, shape in graph.subject_objects(GEO.hasGeometry):
        text = str(next(graph.objects(cell, G.value)))
        polygon = wkt.loads(str(next(graph.objects(shape, GEO.asWKT))))
        west, south, east, north = geohash.bounds(geohash.cell_from_text(text), len(text))
        assert polygon.bounds == (west, south, east, north)
        assert polygon.exterior.is_ccw


@pytest.mark.parametrize("format", sorted(rdf.FORMATS))
def test_serialise_any_format_round_trips(weather, format):
    plain = weather.where((weather.rows % 10) == 0)
    data = rdf.serialise(plain, format=format)
    if format == "json-ld":  # rdflib's parser of it warns
        parsed = ox.parse(data, format=ox.RdfFormat.JSON_LD)
        triples = [quad.triple for quad in parsed]
        data, format = ox.serialize(triples, format=ox.RdfFormat.N_TRIPLES), "nt"
    again = Graph(bind_namespaces="none").parse(data=data, format=format)
    assert triples_of(again) == triples_of(read(plain))


def test_serialise_unknown_format_raises(weather):
    with raises(InputError, expected="format", format="csv"):
        rdf.serialise(weather, format="csv")


def test_to_graph_query_is_answered(weather):
    graph = rdf.to_graph(weather)
    query = "SELECT (COUNT(?p) AS ?n) WHERE { ?p a g:Path ; f:level 2 }"
    ((count,),) = graph.query(query)
    assert count.toPython() == sum(v == 2 for v in weather.table["level"].to_pylist())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * { SERVICE <http://127.0.0.1:1/> { ?s ?p ?o } }",
        "SELECT * FROM <urn:x> { ?s ?p ?o }",
    ],
)
def test_to_graph_remote_query_raises(weather, text):
    graph = rdf.to_graph(weather)
    with pytest.raises(UnsupportedQuery):
        graph.query(text)
    with pytest.raises(UnsupportedQuery):
        graph.update("LOAD <http://127.0.0.1:1/x.nt>")


def test_to_graph_copy_can_be_updated(weather):
    graph = rdf.to_graph(weather)
    before = len(graph)
    graph.update("INSERT DATA { <urn:a> g:remark 'LOAD FROM here' }")
    assert len(graph) == before + 1
