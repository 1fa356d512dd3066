"""The result of a SPARQL query, as Python values, Arrow, pandas, or a W3C result format.

Solutions arrive as SPARQL 1.1 TSV, in which terms are written as in Turtle. They are parsed column
by column with Arrow's string kernels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.times import TIME_TYPE
from galileo.optional_imports import to_pandas
from galileo.rdf import labels_from_terms, lazy_imports, terms, to_rdf
from galileo.rdf.sparql_process.engine import WorkerAnswer
from galileo.rdf.terms import XSD

if TYPE_CHECKING:
    import pandas as pd
    import pyoxigraph as ox
    from rdflib import Graph
else:
    ox = lazy_imports.OXIGRAPH

SOLUTION_FORMATS = {
    "json": "JSON",
    "csv": "CSV",
    "tsv": "TSV",
    "xml": "XML",
}
"""Formats by name, with their names in oxigraph."""
BOOLEAN_FORMATS = {name: SOLUTION_FORMATS[name] for name in ("json", "xml")}
"""CSV and TSV of the W3C have solutions only."""

CELLS_FEW = 10_000

_INTEGERS = ["integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger"]
_INTEGERS += ["unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"]
_INTEGERS += ["negativeInteger", "nonPositiveInteger"]
_ARROW_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "dateTime": TIME_TYPE,
    **dict.fromkeys(["double", "float", "decimal"], pa.float64()),
    **dict.fromkeys(_INTEGERS, pa.int64()),
}
_DECIMALS = {38: pa.decimal128(38), 76: pa.decimal256(76)}
"""Decimal types by their digits. Arrow's own check accepts some integers that do not fit."""
_LITERAL = r'(?s)^"(?P<text>.*)"(?P<tag>(?:\^\^<[^>]*>|@[A-Za-z0-9-]+)?)$'

_INTEGER = re.compile(r"[+-]?[0-9]+")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Column:
    """The terms of one variable as texts, with their datatypes.

    Attributes:
        texts: IRIs without brackets, literals unescaped and without datatype; null if unbound.
        kinds: a mask of rows for each XML Schema datatype that has an Arrow type.
    """

    texts: pa.Array
    kinds: dict[str, Mask] = field(default_factory=dict)

    def to_arrow(self) -> pa.Array:
        """An array of the common type of all terms (integers and decimals have one), else of texts.

        Integers are int64 if all fit, else the smallest decimal type that does.
        """
        types = {_ARROW_TYPES[kind] for kind in self.kinds}
        covered = sum(int(mask.sum()) for mask in self.kinds.values())
        if not types or covered < len(self.texts) - self.texts.null_count:
            return self.texts
        if types == {pa.int64(), pa.float64()}:
            types = {pa.float64()}
        return _cast(self.texts, types.pop()) if len(types) == 1 else self.texts

    def to_python(self) -> list[Any]:
        """Each term by its own datatype."""
        values = np.array(self.texts.to_pylist(), dtype=object)
        for kind, mask in self.kinds.items():
            typed = _values(self.texts.filter(pa.array(mask)), _ARROW_TYPES[kind])
            values[mask] = np.array(typed, dtype=object)
        python_values: list[Any] = values.tolist()
        return python_values


class SparqlResult:
    """The answer to one query.

    A SELECT has `variables` and rows; an ASK is true or false; a CONSTRUCT or DESCRIBE has
    `triples` (N-Triples) and `to_graph`. Integers are int, decimals and doubles float,
    xsd:dateTime datetime, IRIs and all other literals str; an unbound variable is None. `labels`,
    `blocks` and `query` return the data that the result identifies.

    Attributes:
        kind: "solutions", "boolean" or "triples".
        variables: names without "?", in the order of the query.
    """

    __slots__ = ("_answer", "_columns", "_size", "_source", "kind", "variables")

    def __init__(self, answer: WorkerAnswer, source: LabelSet | None = None) -> None:
        self._answer = answer
        self._source = source
        self._columns: list[pa.Array] | None = None
        self.kind = answer.kind
        self.variables: tuple[str, ...] = ()
        self._size = answer.data.count(b"\n")
        if self.kind == "solutions":
            self._size -= 1
            self.variables = _variables(answer.data)

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
    def missing(self) -> tuple[int, ...]:
        """Partitions that the queried labels lack; see `galileo.Labels.missing`."""
        return () if self._source is None else self._source.missing

    @property
    def complete(self) -> bool:
        """Whether the queried labels are complete."""
        return not self.missing

    @property
    def _cells(self) -> list[pa.Array]:
        if self._columns is None:
            self._columns = _split(self._answer.data, width=len(self.variables))
        return self._columns

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per solution; computed at each call."""
        return self._rows(CELLS_FEW)

    def _rows(self, cells_few: int) -> list[dict[str, Any]]:
        """`rows`; with more than `cells_few` cells they are parsed by columns."""
        self._check_kind("solutions")
        if not self.variables:
            return [{} for _ in range(len(self))]
        if len(self) * len(self.variables) <= cells_few:
            columns = _few_columns(self._answer.data, width=len(self.variables))
        else:
            columns = [_column(cells).to_python() for cells in self._cells]
        return [
            dict(zip(self.variables, values, strict=True)) for values in zip(*columns, strict=True)
        ]

    @property
    def triples(self) -> str:
        """The triples of a CONSTRUCT or DESCRIBE, as N-Triples."""
        self._check_kind("triples")
        return self._answer.data.decode()

    def to_arrow(self) -> pa.Table:
        """One column per variable; a variable whose terms have several types is text.

        Integers are int64, or decimal128(38, 0), or decimal256(76, 0): the first that holds all.
        """
        self._check_kind("solutions")
        columns = [_column(cells).to_arrow() for cells in self._cells]
        return pa.table(dict(zip(self.variables, columns, strict=True)))

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame; integers beyond int64 make a column of `decimal.Decimal`."""
        return to_pandas(self.to_arrow())

    def to_graph(self) -> Graph:
        """The triples of a CONSTRUCT or DESCRIBE, as a graph of rdflib."""
        graph: Graph = lazy_imports.graph(bind_namespaces="none")
        for prefix, namespace in terms.PREFIXES.items():
            graph.bind(prefix, lazy_imports.name(namespace))
        return graph.parse(data=self.triples, format="nt")

    def serialise(self, format: str = "") -> bytes:
        """The answer in a W3C format.

        Args:
            format: of solutions "json" (the default), "csv", "tsv" or "xml"; of a boolean
                "json" or "xml"; of triples one of `galileo.rdf.FORMATS`, "turtle" by default.
        """
        if self.kind == "triples":
            return to_rdf.convert(self._answer.data, format=format or "turtle")
        formats = SOLUTION_FORMATS if self.kind == "solutions" else BOOLEAN_FORMATS
        format = format or "json"
        if format not in formats:
            raise InputError(
                f"expected a format of {sorted(formats)} for {self.kind}, got {format!r}",
                expected="format",
                format=format,
            )
        data = self._parse().serialize(format=getattr(ox.QueryResultsFormat, formats[format]))
        assert data is not None, "serialize returns bytes without an output"
        return data

    def _parse(self) -> ox.QuerySolutions | ox.QueryBoolean:
        if self.kind == "solutions":
            return ox.parse_query_results(self._answer.data, ox.QueryResultsFormat.TSV)
        document = json.dumps({"head": {}, "boolean": self._answer.value}).encode()
        return ox.parse_query_results(document, ox.QueryResultsFormat.JSON)

    # --- back to labels ----------------------------------------------------------------------

    def labels(self, variable: str = "") -> LabelSet:
        """The labels of the graph that the terms of a column identify.

        A vertex identifies all labels below it, a leaf its own; a `g:Block` or block id those of
        the block; a path label itself. Each label occurs once, in the order of the label set.

        Args:
            variable: of the column; optional if only one identifies labels.

        Raises:
            InputError: no column does, or several do, or the graph is not made of labels.
        """
        self._check_kind("solutions")
        if self._source is None:
            raise InputError(
                "this graph was made of triples, so its terms identify no labels; query labels, "
                "or the result of a dataset",
                expected="labels",
            )
        names = [variable.removeprefix("?")] if variable else list(self.variables)
        if variable and names[0] not in self.variables:
            raise InputError(
                f"expected a variable of {list(self.variables)}, got {variable!r}",
                expected="variable",
                variable=variable,
            )
        columns = {name: _column(self._cells[self.variables.index(name)]) for name in names}
        return labels_from_terms.find_labels(
            self._source, {name: column.texts for name, column in columns.items()}
        )

    def blocks(self, variable: str = "") -> list[str]:
        """The ids of the blocks of `labels`, each once, sorted."""
        return labels_from_terms.block_ids(self.labels(variable))

    def query(self, variable: str = "") -> str:
        """CQL2 JSON that selects the blocks of `labels`, combined with the query of the labels.

        Later commits to these blocks match it, too. It can be submitted as a continuous query.

        Raises:
            InputError: as for `labels`; or there are more blocks than `BLOCKS_MAX`.
        """
        return labels_from_terms.sub_query(self.labels(variable))

    def _check_kind(self, kind: str) -> None:
        if self.kind != kind:
            raise InputError(
                f"expected an answer with {kind}, this one has {self.kind}; SELECT gives "
                "solutions, CONSTRUCT and DESCRIBE triples, ASK a boolean (use bool)",
                expected=kind,
            )


def _variables(data: bytes) -> tuple[str, ...]:
    head = data[: data.index(b"\n")].decode()
    return tuple(name.removeprefix("?") for name in head.split("\t") if name)


def _split(data: bytes, *, width: int) -> list[pa.Array]:
    """The cells of each variable, as written in TSV."""
    _, _, body = data.partition(b"\n")
    if not width or not body:
        return [pa.array([], pa.large_string()) for _ in range(width)]
    text = pa.array([body[:-1].decode()], pa.large_string())
    lines = pc.list_flatten(pc.split_pattern(text, "\n"))
    cells = pc.list_flatten(pc.split_pattern(lines, "\t"))
    size = len(lines)
    return [cells.take(pa.array(np.arange(size) * width + i)) for i in range(width)]


def _few_columns(data: bytes, *, width: int) -> list[list[Any]]:
    """`_Column.to_python` of each column, without Arrow kernels, which cost more for few cells."""
    solutions = ox.parse_query_results(data, ox.QueryResultsFormat.TSV)
    assert isinstance(solutions, ox.QuerySolutions), "TSV has solutions only"
    columns = list(zip(*(list(solution) for solution in solutions), strict=True))
    return [_few_values(column) for column in columns] or [[] for _ in range(width)]


def _few_values(column: Sequence[Any]) -> list[Any]:
    values: list[Any] = [_text(term) for term in column]
    kinds: dict[str, list[int]] = {}
    for at, term in enumerate(column):
        if isinstance(term, ox.Literal) and not term.language:
            kinds.setdefault(term.datatype.value.removeprefix(XSD), []).append(at)
    for kind in kinds.keys() & _ARROW_TYPES.keys():
        rows = kinds[kind]
        texts = pa.array([values[row] for row in rows], pa.string())
        for row, value in zip(rows, _values(texts, _ARROW_TYPES[kind]), strict=True):
            values[row] = value
    return values


def _text(term: Any) -> str | None:
    """The text of a term: the value of an IRI or literal, others as written in TSV."""
    if term is None:
        return None
    return term.value if isinstance(term, ox.NamedNode | ox.Literal) else str(term)


def _column(cells: pa.Array) -> _Column:
    """Parses cells: IRIs, quoted literals, and numbers without quotes."""
    literal = pc.extract_regex(cells, _LITERAL)
    tags = pc.coalesce(literal.field(1), pa.scalar(""))
    iri = pc.and_(pc.starts_with(cells, "<"), pc.invert(pc.starts_with(cells, "<<")))
    texts = pc.if_else(iri, pc.utf8_slice_codeunits(cells, 1, -1), cells)
    texts = pc.if_else(literal.is_valid(), _unescape(literal.field(0)), texts)
    texts = pc.if_else(pc.equal(cells, ""), pa.scalar(None, texts.type), texts)
    return _Column(texts.cast(pa.string()), _kinds(cells, tags))


def _kinds(cells: pa.Array, tags: pa.Array) -> dict[str, Mask]:
    """Masks of the rows of each datatype, from tags or from the form of unquoted literals."""
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


def _unescape(texts: pa.Array) -> pa.Array:
    r"""Unescapes `\t`, `\n`, `\r`, `\"` and `\\`.

    Splits at double backslashes first, so that other backslashes begin an escape.
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


def _cast(texts: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Casts texts to a type; leaves them as texts if one does not fit."""
    if pa.types.is_floating(arrow_type):
        texts = pc.replace_substring(texts, "INF", "inf")
    try:
        return texts.cast(arrow_type)
    except pa.ArrowInvalid:
        return _wide(texts) if pa.types.is_integer(arrow_type) else texts


def _wide(texts: pa.Array) -> pa.Array:
    """Integers beyond int64 as decimals; leaves them as texts if one does not fit."""
    for digits, arrow_type in _DECIMALS.items():
        fits = pc.match_substring_regex(texts, f"^[+-]?0*[0-9]{{1,{digits}}}$")
        if pc.all(fits).as_py():
            return texts.cast(arrow_type)
    return texts


def _values(texts: pa.Array, arrow_type: pa.DataType) -> list[Any]:
    """Python values; integers have any size, and an invalid text stays a text."""
    typed = _cast(texts, arrow_type)
    if not pa.types.is_integer(arrow_type) or pa.types.is_integer(typed.type):
        values: list[Any] = typed.to_pylist()
        return values
    return [_integer(text) for text in texts.to_pylist()]


def _integer(text: str) -> int | str:
    """An integer, or the text if it has more digits than Python reads."""
    try:
        return int(text) if _INTEGER.fullmatch(text) else text
    except ValueError:
        return text
