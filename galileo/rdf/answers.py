"""What a SPARQL query found, as Python values, Arrow, pandas, or a W3C result format.

Solutions arrive as SPARQL 1.1 TSV, in which every term is spelt as in Turtle. They are taken
apart column by column with Arrow's string kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyoxigraph as ox
from rdflib import Graph, URIRef

from galileo.errors import InputError
from galileo.model.times import TIME_TYPE
from galileo.rdf import terms
from galileo.rdf.engine import Answer
from galileo.rdf.terms import XSD

SOLUTION_FORMATS = {
    "json": ox.QueryResultsFormat.JSON,
    "csv": ox.QueryResultsFormat.CSV,
    "tsv": ox.QueryResultsFormat.TSV,
    "xml": ox.QueryResultsFormat.XML,
}

_INTEGERS = ["integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger"]
_INTEGERS += ["unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"]
_INTEGERS += ["negativeInteger", "nonPositiveInteger"]
_ARROW_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "dateTime": TIME_TYPE,
    **dict.fromkeys(["double", "float", "decimal"], pa.float64()),
    **dict.fromkeys(_INTEGERS, pa.int64()),
}
_LITERAL = r'(?s)^"(?P<text>.*)"(?P<tag>(?:\^\^<[^>]*>|@[A-Za-z0-9-]+)?)$'

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Column:
    """One variable: what to show of each term, and the Arrow type that fits each kind.

    Attributes:
        texts: IRIs without brackets, literals unescaped and without datatype; null if unbound.
        kinds: rows of each XML Schema datatype that Python has a type for.
    """

    texts: pa.Array
    kinds: dict[str, Mask] = field(default_factory=dict)

    def to_arrow(self) -> pa.Array:
        """Typed where all terms agree (integers join decimals), otherwise texts."""
        wanted = {_ARROW_TYPES[kind] for kind in self.kinds}
        covered = sum(int(mask.sum()) for mask in self.kinds.values())
        if not wanted or covered < len(self.texts) - self.texts.null_count:
            return self.texts
        if wanted == {pa.int64(), pa.float64()}:
            wanted = {pa.float64()}
        return _cast(self.texts, wanted.pop()) if len(wanted) == 1 else self.texts

    def to_python(self) -> list[Any]:
        """Every term by its own datatype."""
        values = np.array(self.texts.to_pylist(), dtype=object)
        for kind, mask in self.kinds.items():
            typed = _cast(self.texts.filter(pa.array(mask)), _ARROW_TYPES[kind])
            values[mask] = np.array(typed.to_pylist(), dtype=object)
        found: list[Any] = values.tolist()
        return found


class SparqlResult:
    """The answer to one query.

    A SELECT has `variables` and rows; an ASK is true or false; a CONSTRUCT or DESCRIBE has
    `triples` (N-Triples) and `to_graph`. Integers are int, decimals and doubles float,
    xsd:dateTime datetime, IRIs and all other literals str; an unbound variable is None.

    Attributes:
        kind: "solutions", "boolean" or "triples".
        variables: names without "?", in the order of the query.
    """

    __slots__ = ("_answer", "_cells", "_size", "kind", "variables")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.kind = answer.kind
        self.variables: tuple[str, ...] = ()
        self._cells: list[pa.Array] = []
        self._size = answer.data.count(b"\n")
        if self.kind == "solutions":
            self._size -= 1
            self.variables, self._cells = _split(answer.data)

    def __len__(self) -> int:
        """Solutions or triples; of an ASK 1 or 0."""
        return int(self._answer.value) if self.kind == "boolean" else self._size

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        if self.kind == "boolean":
            return f"<SparqlResult: {bool(self)}>"
        what = "rows of " + ", ".join(self.variables) if self.kind == "solutions" else "triples"
        return f"<SparqlResult: {len(self):,} {what}>"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per solution; computed at each call."""
        self._want("solutions")
        if not self.variables:
            return [{} for _ in range(len(self))]
        columns = [_column(cells).to_python() for cells in self._cells]
        return [
            dict(zip(self.variables, values, strict=True)) for values in zip(*columns, strict=True)
        ]

    @property
    def triples(self) -> str:
        """What a CONSTRUCT or DESCRIBE made, as N-Triples."""
        self._want("triples")
        return self._answer.data.decode()

    def to_arrow(self) -> pa.Table:
        """One column per variable; a variable whose terms have several types is text."""
        self._want("solutions")
        columns = [_column(cells).to_arrow() for cells in self._cells]
        return pa.table(dict(zip(self.variables, columns, strict=True)))

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_graph(self) -> Graph:
        """What a CONSTRUCT or DESCRIBE made, as a graph of rdflib."""
        graph = Graph(bind_namespaces="none")
        for prefix, namespace in terms.PREFIXES.items():
            graph.bind(prefix, URIRef(namespace))
        return graph.parse(data=self.triples, format="nt")

    def serialise(self, format: str = "json") -> bytes:
        """Solutions in a W3C format: "json", "csv", "tsv" or "xml"."""
        self._want("solutions")
        if format not in SOLUTION_FORMATS:
            raise InputError(f"expected a format of {sorted(SOLUTION_FORMATS)}, got {format!r}")
        found = ox.parse_query_results(self._answer.data, ox.QueryResultsFormat.TSV)
        assert isinstance(found, ox.QuerySolutions), "TSV holds solutions only"
        data = found.serialize(format=SOLUTION_FORMATS[format])
        assert data is not None, "serialize returns the bytes where no output is named"
        return data

    def _want(self, kind: str) -> None:
        if self.kind != kind:
            raise InputError(
                f"expected an answer with {kind}, this one has {self.kind}; SELECT gives "
                "solutions, CONSTRUCT and DESCRIBE triples, ASK a boolean (use bool)"
            )


def _split(data: bytes) -> tuple[tuple[str, ...], list[pa.Array]]:
    """Variables, and the cells of each as TSV spells them."""
    head, _, body = data.partition(b"\n")
    names = tuple(name.removeprefix("?") for name in head.decode().split("\t") if name)
    if not names or not body:
        return names, [pa.array([], pa.large_string()) for _ in names]
    text = pa.array([body[:-1].decode()], pa.large_string())
    lines = pc.list_flatten(pc.split_pattern(text, "\n"))
    cells = pc.list_flatten(pc.split_pattern(lines, "\t"))
    size, width = len(lines), len(names)
    return names, [cells.take(pa.array(np.arange(size) * width + i)) for i in range(width)]


def _column(cells: pa.Array) -> _Column:
    """Tells IRIs, quoted literals and bare numbers apart."""
    literal = pc.extract_regex(cells, _LITERAL)
    tags = pc.coalesce(literal.field(1), pa.scalar(""))
    iri = pc.and_(pc.starts_with(cells, "<"), pc.invert(pc.starts_with(cells, "<<")))
    texts = pc.if_else(iri, pc.utf8_slice_codeunits(cells, 1, -1), cells)
    texts = pc.if_else(literal.is_valid(), _unescaped(literal.field(0)), texts)
    texts = pc.if_else(pc.equal(cells, ""), pa.scalar(None, texts.type), texts)
    return _Column(texts.cast(pa.string()), _kinds(cells, tags))


def _kinds(cells: pa.Array, tags: pa.Array) -> dict[str, Mask]:
    """Rows of each datatype: named by a tag, or bare as integers, decimals and booleans are."""
    masks = {
        "integer": pc.match_substring_regex(cells, r"^[+-]?[0-9]+$"),
        "decimal": pc.match_substring_regex(cells, r"^[+-]?[0-9]*\.[0-9]+$"),
        "double": pc.match_substring_regex(cells, r"^[+-]?[0-9.]+[eE][+-]?[0-9]+$"),
        "boolean": pc.match_substring_regex(cells, "^(true|false)$"),
    }
    for tag in pc.unique(tags).to_pylist():
        kind = tag.removeprefix(f"^^<{XSD}").removesuffix(">")
        if tag.startswith("^^") and kind in _ARROW_TYPES:
            tagged = pc.equal(tags, tag)
            masks[kind] = pc.or_(masks[kind], tagged) if kind in masks else tagged
    flags = {kind: np.asarray(mask.to_numpy(zero_copy_only=False)) for kind, mask in masks.items()}
    return {kind: mask for kind, mask in flags.items() if mask.any()}


def _unescaped(texts: pa.Array) -> pa.Array:
    r"""Undoes `\t`, `\n`, `\r`, `\"` and `\\`.

    Cutting at double backslashes first leaves only backslashes that start another escape.
    """
    if not pc.any(pc.match_substring(texts, "\\")).as_py():
        return texts
    pieces = pc.split_pattern(texts, "\\\\")
    flat = pc.list_flatten(pieces)
    for escaped, plain in (("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r"), ('\\"', '"')):
        flat = pc.replace_substring(flat, escaped, plain)
    sizes = pc.fill_null(pc.list_value_length(pieces), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    whole = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
    plain_texts = pc.binary_join(whole, pa.scalar("\\", flat.type))
    return pc.if_else(texts.is_valid(), plain_texts, pa.scalar(None, flat.type))


def _cast(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Texts by their datatype; left as texts where the type cannot hold one of them."""
    if pa.types.is_floating(wanted):
        texts = pc.replace_substring(texts, "INF", "inf")
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        return texts
