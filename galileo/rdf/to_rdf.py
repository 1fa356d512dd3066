"""Converts label sets to RDF: N-Triples, built column by column, and graphs loaded from them.

The tree of the metadata graph (paper, Fig. 1) is rebuilt from the labels level by level: a vertex
is a distinct prefix of a path, identified by an integer code, and each kind of statement about a
level is one Arrow string kernel over its vertices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS, iso_column
from galileo.rdf import lazy_imports, terms
from galileo.rdf.terms import GEO, NS, RDF, RDFS, VERTEX, XSD, iris, joined, literals, text_literals

if TYPE_CHECKING:
    import pyoxigraph as ox
    from rdflib import Graph
else:
    ox = lazy_imports.OXIGRAPH

FORMATS = {
    "nt": "N_TRIPLES",
    "turtle": "TURTLE",
    "xml": "RDF_XML",
    "json-ld": "JSON_LD",
}
"""Formats by name, with their names in oxigraph."""

Ints = npt.NDArray[np.int64]
Statements: TypeAlias = Iterator[tuple[pa.Array, str, "pa.Array | str"]]
"""Subjects, one predicate IRI, objects (one per subject, or the same for all)."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The vertices of one level: a label below each, its IRI and that of its parent."""

    labels: LabelSet
    vertices: pa.Array
    parents: pa.Array

    def column(self, name: str) -> pa.Array:
        return pa.concat_arrays(self.labels.table.column(name).chunks)


def ntriples(labels: LabelSet) -> Iterator[bytes]:
    """The RDF view of a label set as N-Triples, in pieces of whole lines.

    No triple occurs twice. The triples are described in `docs/rdf.md`.
    """
    yield _dataset(labels.schema)
    if len(labels):
        for subjects, predicate, objects in _statements(labels):
            yield _lines(subjects, predicate, objects)


def to_graph(labels: LabelSet) -> Graph:
    """The RDF view of a label set as an rdflib graph with an oxigraph store."""
    rdflib_store = lazy_imports.module(lazy_imports.RDFLIB_STORE)
    graph: Graph = lazy_imports.graph(
        store=rdflib_store.GuardedStore(store=load(b"".join(ntriples(labels)))),
        identifier=rdflib_store.DATASET_DEFAULT_GRAPH_ID,
        bind_namespaces="none",
    )
    for prefix, namespace in terms.PREFIXES.items():
        graph.bind(prefix, lazy_imports.name(namespace))
    return graph


def serialise(labels: LabelSet, *, format: str = "turtle") -> bytes:
    """The RDF view of a label set in a syntax of `FORMATS`."""
    return convert(b"".join(ntriples(labels)), format=format)


def convert(data: bytes, *, format: str) -> bytes:
    """Converts N-Triples to a syntax of `FORMATS`, with the prefixes of `galileo.rdf.PREFIXES`.

    Raises:
        InputError: the format is unknown; or it is RDF/XML, which cannot express a predicate that
            does not end in a name.
    """
    if format not in FORMATS:
        raise InputError(
            f"expected an RDF format of {sorted(FORMATS)}, got {format!r}",
            expected="format",
            format=format,
        )
    if format == "nt":
        return data
    try:
        text = load(data).dump(
            format=rdf_format(format), from_graph=ox.DefaultGraph(), prefixes=dict(terms.PREFIXES)
        )
    except ValueError as error:
        raise InputError(f"expected triples that {format} can hold: {error}") from error
    assert text is not None, "dump returns bytes without an output"
    return text


def rdf_format(name: str) -> ox.RdfFormat:
    """The oxigraph value of one of `FORMATS`."""
    form: ox.RdfFormat = getattr(ox.RdfFormat, FORMATS[name])
    return form


def load(data: bytes) -> ox.Store:
    """N-Triples of `ntriples` in a new in-memory store."""
    store = ox.Store()
    store.load(data, ox.RdfFormat.N_TRIPLES, lenient=True)  # in memory faster than bulk_load
    return store


def _lines(subjects: pa.Array, predicate: str, objects: pa.Array | str) -> bytes:
    """One line per subject; none where the object is null."""
    lines = joined(subjects, f" <{predicate}> ", objects, " .\n")
    _, data = terms.buffers(lines.drop_null())
    return data.tobytes()


# --- the tree --------------------------------------------------------------------------------


def vertex_paths(labels: LabelSet) -> Iterator[pa.Array]:
    """The paths of each label's vertices, as in their IRIs, from the dataset to the leaf."""
    path = _roots(labels)
    yield path
    for segments in _segments(labels):
        path = joined(path, "/", segments)
        yield path


def _roots(labels: LabelSet) -> pa.Array:
    first = pa.array(np.zeros(len(labels), dtype=np.int64))
    return pa.array([labels.schema.name], pa.large_string()).take(first)


def _levels(labels: LabelSet) -> list[_Level]:
    """Cells, time buckets, one level per indexed feature, and the leaves."""
    codes = np.zeros(len(labels), dtype=np.int64)
    path = _roots(labels)
    levels = []
    for segments in _segments(labels):
        parent, path = path, joined(path, "/", segments)
        codes, first = _deeper(codes, segments)
        rows = pa.array(first)
        at = LabelSet(labels.schema, labels.table.take(rows).combine_chunks())
        levels.append(_Level(at, iris(VERTEX, path.take(rows)), iris(VERTEX, parent.take(rows))))
    return levels


def _segments(labels: LabelSet) -> list[pa.Array]:
    values = [
        terms.value_segments(pa.concat_arrays(labels.table.column(feature.name).chunks))
        for feature in labels.schema.indexed
    ]
    numbers = [pa.array(n) for n in (labels.partitions, labels.sequences, labels.rows)]
    leaf = joined("p", numbers[0], ".", numbers[1], ".", numbers[2])
    return [labels.geohashes(), iso_column(labels.buckets), *values, leaf]


def _deeper(codes: Ints, segments: pa.Array) -> tuple[Ints, Ints]:
    """Codes of the prefixes that are one segment longer, and the first row of each."""
    encoded = segments.dictionary_encode()
    keys = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return inverse.astype(np.int64), first


# --- the statements --------------------------------------------------------------------------


def _statements(labels: LabelSet) -> Statements:
    cells, buckets, *values, leaves = _levels(labels)
    yield from _vertices(cells, "Cell")
    yield from _cells(cells)
    yield from _vertices(buckets, "TimeBucket")
    yield from _buckets(buckets)
    for feature, level in zip(labels.schema.indexed, values, strict=True):
        yield from _vertices(level, "FeatureValue")
        yield from _values(level, feature)
    yield from _vertices(leaves, "Path")
    yield from _paths(leaves)


def _vertices(level: _Level, name: str) -> Statements:
    yield level.vertices, f"{RDF}type", f"<{NS}{name}>"
    yield level.parents, f"{NS}parentOf", level.vertices


def _cells(level: _Level) -> Statements:
    shapes = joined(pc.utf8_slice_codeunits(level.vertices, 0, -1), "#geometry>")
    yield level.vertices, f"{NS}value", text_literals(level.labels.geohashes())
    yield level.vertices, f"{RDF}type", f"<{GEO}Feature>"
    yield level.vertices, f"{GEO}hasGeometry", shapes
    yield shapes, f"{RDF}type", f"<{GEO}Geometry>"
    yield shapes, f"{GEO}asWKT", literals(_polygons(level.labels), f"{GEO}wktLiteral")


def _polygons(labels: LabelSet) -> pa.Array:
    """WKT of the cells, longitude before latitude (CRS84), counter-clockwise."""
    box = geohash.bounds(labels.cells, labels.schema.geohash_precision)
    w, s, e, n = (pa.array(side).cast(pa.large_string()) for side in box)
    corners = [w, " ", s, ", ", e, " ", s, ", ", e, " ", n, ", ", w, " ", n, ", ", w, " ", s]
    return joined("POLYGON ((", *corners, "))")


def _buckets(level: _Level) -> Statements:
    """Time buckets, and the blocks, of which each bucket vertex has one."""
    blocks = _blocks(level.labels)
    yield level.vertices, f"{NS}value", _times(level.labels)
    yield blocks, f"{RDF}type", f"<{NS}Block>"
    yield blocks, f"{NS}id", text_literals(level.labels.blocks())
    yield blocks, f"{NS}bucket", level.vertices


def _values(level: _Level, feature: Feature) -> Statements:
    yield level.vertices, f"{NS}feature", _feature_iri(level.labels.schema, feature)
    yield level.vertices, f"{NS}value", _feature_literals(level, feature)


def _paths(level: _Level) -> Statements:
    labels, paths = level.labels, level.vertices
    yield paths, f"{NS}label", text_literals(labels.texts())
    yield paths, f"{NS}block", text_literals(labels.blocks())
    yield paths, f"{NS}partOf", _blocks(labels)
    yield paths, f"{NS}geohash", text_literals(labels.geohashes())
    yield paths, f"{NS}time", _times(labels)
    for name, column in (
        ("partition", "partition"),
        ("sequence", "sequence"),
        ("observations", "rows"),
    ):
        yield paths, NS + name, literals(level.column(column), f"{XSD}integer")
    for feature in labels.schema.indexed:
        yield paths, terms.FEATURE + feature.name, _feature_literals(level, feature)


def _blocks(labels: LabelSet) -> pa.Array:
    return iris(terms.BLOCK, labels.blocks())


def _times(labels: LabelSet) -> pa.Array:
    return literals(iso_column(labels.buckets), f"{XSD}dateTime")


def _feature_literals(level: _Level, feature: Feature) -> pa.Array:
    texts = terms.value_texts(level.column(feature.name))
    if feature.type == "text":
        return text_literals(texts)
    return literals(texts, XSD + terms.DATATYPES[feature.type])


# --- the dataset -----------------------------------------------------------------------------


def _feature_iri(schema: Schema, feature: Feature) -> str:
    return f"<{VERTEX}{schema.name}#{feature.name}>"


def _dataset(schema: Schema) -> bytes:
    """Name, grid and indexed features of the dataset, with what describes them and their levels."""
    root = f"<{VERTEX}{schema.name}>"
    facts = [
        (root, f"{RDF}type", f"<{NS}Dataset>"),
        (root, f"{NS}name", _text(schema.name)),
        (root, f"{NS}geohashPrecision", _typed(schema.geohash_precision, "integer")),
        (root, f"{NS}bucketSeconds", _typed(schema.time_bucket_us / MICROS, "double")),
    ]
    for number, feature in enumerate(schema.indexed, start=3):
        iri = _feature_iri(schema, feature)
        facts.append((root, f"{NS}hasFeature", iri))
        facts += [(iri, *fact) for fact in _feature_facts(feature, number)]
        for value, meaning in feature.flags.items():
            flag = f"{iri[:-1]}/{value}>"
            facts.append((iri, f"{NS}flag", flag))
            facts.append((flag, f"{RDF}value", _typed(value, "integer")))
            facts.append((flag, f"{RDFS}label", _text(meaning)))
    return "".join(f"{s} <{p}> {o} .\n" for s, p, o in facts).encode()


def _feature_facts(feature: Feature, number: int) -> list[tuple[str, str]]:
    facts = [
        (f"{RDF}type", f"<{NS}Feature>"),
        (f"{NS}name", _text(feature.name)),
        (f"{NS}level", _typed(number, "integer")),
        (f"{NS}property", f"<{terms.FEATURE}{feature.name}>"),
    ]
    if feature.unit:
        facts.append((f"{NS}unit", _text(feature.unit)))
    if feature.description:
        facts.append((f"{RDFS}comment", _text(feature.description)))
    if feature.standard_name:
        name = terms.percent_encoded(pa.array([feature.standard_name]))[0]
        facts.append((f"{NS}standardName", f"<{terms.STANDARD_NAME}{name}>"))
    if feature.unit in terms.QUDT_UNITS:
        facts.append((f"{terms.QUDT}hasUnit", f"<{terms.QUDT_UNIT}{_qudt(feature)}>"))
    return facts


def _qudt(feature: Feature) -> str:
    return terms.QUDT_UNITS[feature.unit]


def _text(value: str) -> str:
    escaped: str = text_literals(pa.array([value]))[0].as_py()
    return escaped


def _typed(value: float, datatype: str) -> str:
    return f'"{value}"^^<{XSD}{datatype}>'
