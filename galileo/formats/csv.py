"""CSV and similar files: texts with a header line and a delimiter, plain or gzip."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from galileo.errors import InputError
from galileo.formats.columns import ColumnReader, check_width, coordinates_of, is_identifier
from galileo.formats.mapping import Mapping
from galileo.formats.type_conversion import guess_type, null_sentinels, one_array
from galileo.formats.variables import VariableInfo

MISSING = ("", "NA", "N/A", "M", "NaN", "nan", "null")
DELIMITERS = ",;\t|"
COMMENT = "#"
BLOCK_BYTES = 4 << 20
HEADER_LINES_MAX = 1000
SAMPLE_ROWS_MAX = 200_000
SAMPLE_BYTES_MAX = 64 << 20
ROW_ESTIMATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """The header line of a CSV file.

    Attributes:
        line: its number, from 0.
        delimiter: the character between two names.
        names: of the columns.
        is_terminated: whether it ends with a newline; where it does not, no row follows.
    """

    line: int
    delimiter: str
    names: tuple[str, ...]
    is_terminated: bool


def open_delimited(path: Path, mapping: Mapping) -> ColumnReader:
    """A reader of a CSV file. Lines before the header that start with `#` are skipped.

    Types are guessed from the first `SAMPLE_ROWS_MAX` rows or `SAMPLE_BYTES_MAX` bytes.

    Raises:
        InputError: it is not a text, or its header has a name twice or no name.
    """
    header = read_header(path)
    infos, rows = _read_sample(path, header, mapping=mapping)
    return ColumnReader(
        coordinates_of(mapping, header.names),
        infos,
        _estimate_rows(path) if rows is None else rows,
        lambda wanted: _scan(path, header, wanted=wanted),
        mapping,
    )


def read_header(path: Path) -> Header:
    with _readable(path), _open_text(path) as lines:
        return find_header(path, lines)


def find_header(path: Path, lines: Iterable[str]) -> Header:
    """The header among the lines of a file, which are read up to it."""
    for number, line in enumerate(itertools.islice(lines, HEADER_LINES_MAX)):
        if line.strip() and not line.startswith(COMMENT):
            return _header(path, line, number=number)
    raise InputError(
        f"expected a header line with column names in {path}, got none", expected="header"
    )


def _header(path: Path, line: str, *, number: int) -> Header:
    delimiter = max(DELIMITERS, key=line.count)
    check_width(path, line.count(delimiter) + 1)
    names = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter)))
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(
            f"expected each column of {path} once, got {', '.join(twice)} again",
            expected="unique",
            column=twice[0],
        )
    return Header(number, delimiter, names, line.endswith("\n"))


def _open_text(path: Path) -> io.TextIOBase:
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=None)
    return path.open(encoding="utf-8-sig")


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _scan(path: Path, header: Header, *, wanted: Sequence[str]) -> Iterator[pa.Table]:
    """Tables of trimmed texts, with null for the words of `MISSING`."""
    if not header.is_terminated:  # Arrow cannot skip such a line.
        return
    names = list(header.names)
    with _readable(path):
        reader = pv.open_csv(
            pa.input_stream(str(path), compression="gzip" if _is_gzip(path) else None),
            read_options=pv.ReadOptions(
                column_names=names, skip_rows=header.line + 1, block_size=BLOCK_BYTES
            ),
            parse_options=pv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True),
            convert_options=pv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=list(wanted),
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            yield pa.table([_clean(column) for column in batch.columns], names=list(wanted))


def _clean(column: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(trimmed, value_set=pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translates errors of libraries into errors with the path."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            "expected text in UTF-8 with the same number of fields in every line of "
            f"{path}: {error}",
            expected="csv",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read to its end: {error}") from error


def _read_sample(
    path: Path, header: Header, *, mapping: Mapping
) -> tuple[tuple[VariableInfo, ...], int | None]:
    """The variables, and the number of rows if the sample is the whole file."""
    tables: list[pa.Table] = []
    rows = size = 0
    scan = _scan(path, header, wanted=header.names)
    for table in scan:
        tables.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows >= SAMPLE_ROWS_MAX or size >= SAMPLE_BYTES_MAX:
            break
    whole = next(scan, None) is None
    if not tables:
        return tuple(VariableInfo(name, type=None, default=False) for name in header.names), 0
    sample = pa.concat_tables(tables)
    infos = tuple(
        _info(
            name,
            null_sentinels(one_array(sample.column(name)), mapping.sentinels(name)),
            whole=whole,
        )
        for name in header.names
    )
    return infos, rows if whole else None


def _info(name: str, column: pa.Array, *, whole: bool) -> VariableInfo:
    """A variable; a column of integers in a partial sample is a float, since others can follow."""
    empty = column.null_count == len(column)
    if empty and whole:
        return VariableInfo(name, type=None, description="no value", default=False)
    info = VariableInfo(name, type=guess_type(column), description="no value" if empty else "")
    if info.type == "int" and not whole:
        return replace(info, type="float")
    return replace(info, identifier=info.type == "text" and is_identifier(column))


def _estimate_rows(path: Path) -> int | None:
    """The number of rows from the size and the first lines; None if compressed."""
    if _is_gzip(path):
        return None
    with path.open("rb") as file:
        start = file.read(ROW_ESTIMATE_BYTES)
    return round(path.stat().st_size * max(start.count(b"\n"), 1) / max(len(start), 1))
