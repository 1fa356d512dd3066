"""IRIs, prefixes and literals of the RDF view.

The IRI of a vertex contains its path from the dataset, one percent-encoded segment for each level,
so that equal values of different levels or branches have different IRIs:

    urn:galileo:vertex:nam/9xjqb/2012-03-01T06:00:00Z/290.5/45/p3.17.0

A missing value is the segment `~`. Texts keep only letters, digits, `-` and `_`; every other
byte of their UTF-8 form becomes `%XX`, dots included, since `..` is a relative step in an IRI.
The names are URNs, since nothing can be fetched from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BASE = "urn:galileo:"
NS = f"{BASE}ns:"
FEATURE = f"{BASE}feature:"
VERTEX = f"{BASE}vertex:"
BLOCK = f"{BASE}block:"

GEO = "http://www.opengis.net/ont/geosparql#"
GEOF = "http://www.opengis.net/def/function/geosparql/"
QUDT = "http://qudt.org/schema/qudt/"
QUDT_UNIT = "http://qudt.org/vocab/unit/"
STANDARD_NAME = "http://vocab.nerc.ac.uk/standard_name/"
"""Standard names of the CF conventions, as terms of the NERC Vocabulary Server."""
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
XSD = "http://www.w3.org/2001/XMLSchema#"

PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "g": NS,
        "f": FEATURE,
        "geo": GEO,
        "geof": GEOF,
        "qudt": QUDT,
        "unit": QUDT_UNIT,
        "rdf": RDF,
        "rdfs": RDFS,
        "xsd": XSD,
    }
)
"""Declared in every query without a PREFIX line."""

DATATYPES = {
    "float": "double",
    "float32": "float",
    "int": "integer",
    "text": "string",
    "bool": "boolean",
}
"""Feature type to XML Schema datatype."""

QUDT_UNITS = {
    "K": "K",
    "kelvin": "K",
    "celsius": "DEG_C",
    "degree_C": "DEG_C",
    "degrees_C": "DEG_C",
    "percent": "PERCENT",
    "1": "UNITLESS",
    "decibar": "DeciBAR",
    "dbar": "DeciBAR",
    "degrees_true": "DEG",
    "S m-1": "S-PER-M",
    "S/m": "S-PER-M",
    "mm/h": "MilliM-PER-HR",
    "m2 s-2": "M2-PER-SEC2",
    "m**2 s**-2": "M2-PER-SEC2",
    "m3 s-1": "M3-PER-SEC",
    "m3/s": "M3-PER-SEC",
    "kg m-3": "KiloGM-PER-M3",
    "kg m**-3": "KiloGM-PER-M3",
    "J m-2": "J-PER-M2",
    "J m**-2": "J-PER-M2",
    "degC": "DEG_C",
    "°C": "DEG_C",
    "%": "PERCENT",
    "m": "M",
    "km": "KiloM",
    "mm": "MilliM",
    "m/s": "M-PER-SEC",
    "s": "SEC",
    "Pa": "PA",
    "hPa": "HectoPA",
    "mbar": "MilliBAR",
    "degF": "DEG_F",
    "cm": "CentiM",
    "km/h": "KiloM-PER-HR",
    "m s-1": "M-PER-SEC",
    "m s**-1": "M-PER-SEC",
    "kn": "KN",
    "min": "MIN",
    "h": "HR",
    "d": "DAY",
    "s-1": "PER-SEC",
    "s**-1": "PER-SEC",
    "Pa/s": "PA-PER-SEC",
    "Pa s-1": "PA-PER-SEC",
    "Pa s**-1": "PA-PER-SEC",
    "kg/m2": "KiloGM-PER-M2",
    "kg m-2": "KiloGM-PER-M2",
    "kg m**-2": "KiloGM-PER-M2",
    "kg m-2 s-1": "KiloGM-PER-M2-SEC",
    "kg m**-2 s**-1": "KiloGM-PER-M2-SEC",
    "kg/kg": "KiloGM-PER-KiloGM",
    "kg kg-1": "KiloGM-PER-KiloGM",
    "kg kg**-1": "KiloGM-PER-KiloGM",
    "g/kg": "GM-PER-KiloGM",
    "W/m2": "W-PER-M2",
    "W m-2": "W-PER-M2",
    "W m**-2": "W-PER-M2",
    "J/kg": "J-PER-KiloGM",
    "J kg-1": "J-PER-KiloGM",
    "J kg**-1": "J-PER-KiloGM",
    "ug/m3": "MicroGM-PER-M3",
    "µg/m3": "MicroGM-PER-M3",
    "mg/m3": "MilliGM-PER-M3",
    "deg": "DEG",
    "degree": "DEG",
    "degrees": "DEG",
    "ppm": "PPM",
    "ppb": "PPB",
}
"""Common spellings of units to local names in `QUDT_UNIT`; only unambiguous ones."""

GEOMETRY_FUNCTIONS = (
    *("distance", "metricDistance", "area", "metricArea", "length", "metricLength"),
    *("perimeter", "metricPerimeter", "buffer", "metricBuffer", "intersection", "union"),
    *("difference", "symDifference", "boundary", "relate", "geometryN", "numGeometries"),
    *("minX", "minY", "maxX", "maxY"),
)
"""Local names in `GEOF` of the functions in `galileo.rdf.geometry`."""

MISSING = "~"

Bytes = npt.NDArray[np.uint8]

_PLAIN = np.zeros(256, dtype=np.bool_)
_PLAIN[np.frombuffer(b"-_0123456789", dtype=np.uint8)] = True
_PLAIN[ord("A") : ord("Z") + 1] = True
_PLAIN[ord("a") : ord("z") + 1] = True
_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"))


def ontology() -> str:
    """The ontology of `NS` as Turtle: its classes and properties."""
    return files("galileo.rdf").joinpath("ontology.ttl").read_text(encoding="utf-8")


def percent_encoded(texts: pa.Array) -> pa.LargeStringArray:
    """Texts without nulls as path segments of an IRI; injective."""
    offsets, data = buffers(texts.cast(pa.large_string()))
    plain = _PLAIN[data]
    ends = np.zeros(len(data) + 1, dtype=np.int64)
    np.cumsum(np.where(plain, 1, 3), out=ends[1:])
    encoded = np.empty(int(ends[-1]), dtype=np.uint8)
    encoded[ends[:-1][plain]] = data[plain]
    at, escaped = ends[:-1][~plain], data[~plain]
    encoded[at] = ord("%")
    encoded[at + 1], encoded[at + 2] = _HEX[escaped >> 4], _HEX[escaped & 15]
    return pa.LargeStringArray.from_buffers(
        len(texts), pa.py_buffer(ends[offsets]), pa.py_buffer(encoded)
    )


def buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Offsets from 0 and the data buffer, not copied."""
    _, starts, data = texts.buffers()
    offsets = np.frombuffer(starts, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data is None or len(texts) == 0:
        return np.zeros(len(texts) + 1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    raw = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], raw


def value_texts(column: pa.Array) -> pa.Array:
    """Values in the lexical form of their XML Schema datatype; nulls stay null."""
    texts = column.cast(pa.large_string())
    if pa.types.is_floating(column.type):
        return pc.replace_substring(pc.replace_substring(texts, "inf", "INF"), "nan", "NaN")
    return texts


def value_segments(column: pa.Array) -> pa.Array:
    """Values as path segments; a null is `~`."""
    texts = value_texts(column)
    if pa.types.is_string(column.type):
        encoded = percent_encoded(texts.fill_null(""))
        return pc.if_else(column.is_null(), pa.scalar(MISSING, pa.large_string()), encoded)
    return texts.fill_null(MISSING)


def literals(texts: pa.Array, datatype: str) -> pa.Array:
    """N-Triples literals of texts that need no escaping, such as numbers and times."""
    return joined('"', texts, f'"^^<{datatype}>')


def text_literals(texts: pa.Array) -> pa.Array:
    """N-Triples literals (xsd:string) of any texts."""
    for plain, escaped in _ESCAPES:
        texts = pc.replace_substring(texts, plain, escaped)
    return joined('"', texts, '"')


def iris(prefix: str, paths: pa.Array) -> pa.Array:
    """N-Triples IRIs of a namespace and encoded paths."""
    return joined(f"<{prefix}", paths, ">")


def joined(*parts: Any) -> pa.Array:
    """Concatenates arrays and texts row by row; null where any part is null."""
    wide = pa.large_string()
    sides = [pa.scalar(p, wide) if isinstance(p, str) else p.cast(wide) for p in parts]
    return pc.binary_join_element_wise(*sides, pa.scalar("", wide))
