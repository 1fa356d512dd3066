"""CSV and similar files: texts with a header line and a separator, plain or gzip.

Arrow parses the rows. What it does not do is done to the bytes before: other encodings, white space
as a separator, and pieces that end where a row ends. Arrow's own pieces may end within a quoted
text, where it loses a line feed (apache/arrow 51368). What a word means depends on what is wanted
there, so columns are texts here; `type_conversion.plain_texts` has the words for missing numbers.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from galileo.errors import InputError, InvalidObservations
from galileo.formats.bad_rows import BadRows, CsvRecord
from galileo.formats.columns import check_width, coordinates_of, is_identifier
from galileo.formats.csv_conventions import are_units, missing_of, split_units, time_of, with_zones
from galileo.formats.csv_options import CsvOptions
from galileo.formats.mapping import Mapping
from galileo.formats.memory_file import is_memory_file
from galileo.formats.reader import Reader
from galileo.formats.text_mistakes import ROW_CHARACTERS_MAX
from galileo.formats.type_conversion import TypeGuess, null_sentinels, plain_texts
from galileo.formats.variables import VariableInfo
from galileo.model.feature_metadata import FeatureMetadata

SEPARATORS = ",;\t|"
WHITE_SPACE = " "
COMMENT = "#"
BLOCK_BYTES = 4 << 20
ROW_BYTES_MAX = 16 << 20
"""Bytes of a row; a geometry can take some of them."""
HEADER_LINES_MAX = 1000
WORDS_MIN = 3
"""Words of a line that white space may separate where no other separator is there."""
csv.field_size_limit(ROW_BYTES_MAX)  # Of the whole process; Python's own is less than a geometry.
_NUMBER = re.compile(r"\s*[-+]?[0-9.]+\s*")
_USGS_TYPE = re.compile(r"[0-9]+[sdn]")


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose header was read.

    Attributes:
        names: of the columns.
        units: of the columns, by name; none if the file has no line of units.
        separator: between two fields; `WHITE_SPACE` for any number of blanks and tabs.
        first_line: number of the line, from 1, in which the rows begin.
        start: bytes of UTF-8 before the rows, in the first block.
    """

    path: Path
    options: CsvOptions
    names: tuple[str, ...]
    units: AbstractMapping[str, str]
    separator: str
    first_line: int
    start: int

    def scan(self, wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Tables of texts; an empty field is null, and one of `""` is an empty text.

        Raises:
            InputError: a row has too few or too many fields, or other bytes than text.
        """
        names = dict.fromkeys(wanted)
        for piece in self._pieces():
            try:
                yield pa.table(_trimmed(piece, self, list(names))).select(list(wanted))
            except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
                raise self._mistake(error) from error

    def records(self, *, characters_max: int | None = None) -> Iterator[CsvRecord]:
        """The rows one by one, for messages: slow. Of a row that is no text, what is text.

        Ends before the first row that has more characters than `characters_max`.
        """
        taken: list[str] = []
        characters = 0

        def lines() -> Iterator[str]:
            nonlocal characters
            for piece in self._pieces(is_plain=True):
                for line in io.StringIO(piece.decode(errors="replace"), newline=""):
                    characters += len(line)
                    if characters_max is not None and characters > characters_max:
                        return
                    taken.append(line)
                    yield _blank_separated(self.separator, line)

        reader = csv.reader(lines(), delimiter=self.separator, quotechar=self.options.quote)
        line = self.first_line
        try:
            for fields in reader:
                if characters_max is not None and characters > characters_max:
                    return  # The row is cut off.
                if fields:
                    yield CsvRecord(line, tuple(fields), "".join(taken), len(self.names))
                line, characters = self.first_line + reader.line_num, 0
                taken.clear()
        except csv.Error as error:
            words = f"{self.path} cannot be read from line {line} on: {error}"
            raise InputError(words, expected="csv", line=line) from error

    def line_of(self, row: int) -> int:
        """The number of the line in which a row begins; 0 if it is not known."""
        lines = (record.line for record in self.records() if not record.mistake)
        return next(itertools.islice(lines, row, None), 0)

    def _mistake(self, error: Exception) -> InputError:
        """The first row that does not fit the header, after Arrow refused some rows."""
        characters_max = ROW_CHARACTERS_MAX if is_memory_file(self.path) else None
        for row, record in enumerate(self.records(characters_max=characters_max)):
            if record.mistake:
                is_damaged = record.column >= 0
                return InvalidObservations(
                    f"{record.mistake} in line {record.line} of {self.path}",
                    remedy="csv_encoding" if is_damaged else "csv_bad_rows",
                    expected="csv",
                    row=row,
                    line=record.line,
                    **({"column": self.names[record.column]} if is_damaged else {}),
                )
        return InputError(f"{self.path} cannot be read: {error}", expected="csv")

    def _pieces(self, *, is_plain: bool = False) -> Iterator[bytes]:
        """The bytes of whole rows, as Arrow reads them; `is_plain`: with white space as it is."""
        with _readable(self.path):
            blocks = _blocks(self.path, self.options.encoding)
            kept = next(blocks, b"")[self.start :]
            newline = b"\n" if b"\n" in kept or b"\r" not in kept else b"\r"
            quote, separator = self.options.quote, self.separator
            for block in itertools.chain(blocks, [b""]):
                end = end_of_rows(kept, separator, quote, newline) if block else len(kept)
                if end:
                    yield kept[:end] if is_plain else _blank_separated_bytes(kept[:end], self)
                kept = kept[end:] + block
                if len(kept) > ROW_BYTES_MAX + BLOCK_BYTES:
                    raise InputError(
                        f"expected rows of at most {ROW_BYTES_MAX >> 20} MiB in {self.path}, got a "
                        f"longer one; if {self.options.quote} is no quotation mark, name another",
                        expected="csv",
                        bound=ROW_BYTES_MAX,
                    )


def open_delimited(path: Path, mapping: Mapping) -> Reader:
    """A reader of a CSV file. Types are guessed from all rows, once they are asked for.

    Raises:
        InputError: it is not a text, or its header has a name twice or no name.
    """
    file = open_csv(path, mapping.csv)
    missing = missing_of(file.names)
    guesses = _Guesses(file, replace(mapping, missing=mapping.missing + missing))
    if mapping.time is None and mapping.constant_time is None:
        mapping = replace(mapping, time=time_of(file.names))
    return Reader(
        coordinates_of(mapping, file.names),
        guesses,
        _estimate_rows(file),
        with_zones(file.names, file.scan),
        csv=mapping.csv,
        names=file.names,
        units=file.units,
        missing=missing,
        line_of=file.line_of,
        bad_rows=BadRows.of(mapping.csv, path, file.records),
    )


# --- the header ------------------------------------------------------------------------------


def open_csv(path: Path, options: CsvOptions) -> CsvFile:
    """A file whose header is read.

    Lines before the header that start with `#` are skipped; one is the header if the first line
    without `#` has numbers, and as many fields.

    Raises:
        InputError: there is no header, or it has a name twice.
    """
    with _readable(path):
        block = next(_blocks(path, options.encoding), b"")
    # Other bytes are kept, so that the place of the rows in the block is right.
    text = io.StringIO(block.decode(errors="surrogateescape"), newline="")
    lines = list(itertools.islice(text, options.skip + HEADER_LINES_MAX))
    comments: list[int] = []
    first = options.skip
    while first < len(lines) and (not lines[first].strip() or lines[first].startswith(COMMENT)):
        comments += [first] * lines[first].startswith(COMMENT)
        first += 1
    if first >= len(lines):
        raise InputError(
            f"expected a header line with column names in {path}, got none", expected="header"
        )
    following = next((line for line in lines[first + 1 :] if line.strip()), "")
    separator = options.separator or _separator(
        lines[first][:ROW_CHARACTERS_MAX], following[:ROW_CHARACTERS_MAX], options.quote
    )

    def fields(number: int) -> tuple[list[str], int]:
        """The fields of the record that begins in a line, and the line after it."""
        texts = (_blank_separated(separator, line[:ROW_CHARACTERS_MAX]) for line in lines[number:])
        reader = csv.reader(texts, delimiter=separator, quotechar=options.quote)
        return [field.strip() for field in next(reader, [])], number + reader.line_num

    check_width(path, lines[first].count(separator) + 1 if separator != WHITE_SPACE else 1)
    if len(lines[first]) > ROW_CHARACTERS_MAX:
        raise InputError(
            f"expected a header of at most {ROW_CHARACTERS_MAX:,} characters in {path}, got more",
            expected="header",
            bound=ROW_CHARACTERS_MAX,
        )
    with _readable(path):
        names, begin = fields(first)
        units: list[str] = []
        if options.names:
            names, begin = list(options.names), first
        elif any(map(_NUMBER.fullmatch, names)):
            stripped = [_blank_separated(separator, lines[c].lstrip(COMMENT)) for c in comments]
            rows = csv.reader(stripped, delimiter=separator, quotechar=options.quote)
            headers = [[field.strip() for field in row] for row in rows if len(row) == len(names)]
            if headers:
                names, units, begin = headers[0], [*headers[1:2], []][0], first
            elif all(map(_NUMBER.fullmatch, names)):
                raise InputError(
                    f"expected the names of the columns in line {first + 1} of {path}, got numbers",
                    remedy="csv_names",
                    expected="header",
                )
        second, after = fields(begin)
        has_units = options.units or are_units(names, second)
        if has_units or (second and all(map(_USGS_TYPE.fullmatch, second))):
            units, begin = (second if has_units else []), after
        elif not units and not options.names:
            names, units = split_units(names)
    names = [name or f"column_{number}" for number, name in enumerate(names, start=1)]
    _check_names(path, names)
    start = len("".join(lines[:begin]).encode(errors="surrogateescape"))
    return CsvFile(
        path,
        options,
        tuple(names),
        dict(zip(names, units, strict=False)),
        separator,
        begin + 1,
        start,
    )


def _separator(header: str, row: str, quote: str) -> str:
    """The separator that splits two lines into the same number of fields, as many as possible."""
    counts = {}
    for separator in SEPARATORS:
        widths = [
            len(next(csv.reader([line], delimiter=separator, quotechar=quote), []))
            for line in (header, row)
        ]
        counts[separator] = widths[0] if widths[0] == widths[1] or not row else 0
    best = max(SEPARATORS, key=lambda separator: counts[separator])
    if counts[best] > 1:
        return best
    words = len(header.split())
    if (
        words >= WORDS_MIN
        and words == len((row or header).split())
        and not any(map(header.count, SEPARATORS))
    ):
        return WHITE_SPACE
    return max(SEPARATORS, key=header.count)


def _check_names(path: Path, names: Sequence[str]) -> None:
    check_width(path, len(names))
    for name in names:
        shown = name.encode(errors="surrogateescape").decode(errors="replace")
        if shown != name:
            raise _not_text(path, f"in the column name {shown!r}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(
            f"expected each column of {path} once, got {', '.join(twice)} again",
            remedy="csv_header",
            expected="unique",
            column=twice[0],
        )


# --- bytes and pieces ------------------------------------------------------------------------


def _blocks(path: Path, encoding: str) -> Iterator[bytes]:
    """The text of a file in UTF-8, in blocks, without a byte order mark."""
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as file:
        block = file.read(BLOCK_BYTES)
        if not encoding and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            encoding = "utf-16"
        elif not encoding or codecs.lookup(encoding).name == "utf-8":
            yield block.removeprefix(codecs.BOM_UTF8)
            while block := file.read(BLOCK_BYTES):
                yield block
            return
        decoder = codecs.getincrementaldecoder(encoding)()
        while block:
            yield decoder.decode(block).encode()
            block = file.read(BLOCK_BYTES)
        yield decoder.decode(b"", final=True).encode()


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def end_of_rows(data: bytes, separator: str, quote: str, newline: bytes) -> int:
    """The number of bytes up to the end of the last row."""
    if quote.encode() not in data:
        return data.rfind(newline) + 1
    characters = np.frombuffer(data, np.uint8)
    marks = _quotation_marks(characters, separator, quote)
    ends = np.flatnonzero(characters == ord(newline))
    ends = ends[np.searchsorted(marks, ends) % 2 == 0]
    return int(ends[-1]) + 1 if len(ends) else 0


def _quotation_marks(
    characters: npt.NDArray[np.uint8], separator: str, quote: str
) -> npt.NDArray[np.int64]:
    """The places of the marks that begin or end quotations; two in a quotation end and begin it.

    As in Arrow, a quotation begins where a field begins, and other marks are text.
    """
    marks = np.flatnonzero(characters == ord(quote))
    before = characters[marks - 1]
    begins = np.isin(before, list(f"{separator}\t\n\r".encode())) | (marks == 0)
    if (begins | (before == ord(quote)))[::2].all():
        return marks
    places = [-1]
    for mark, is_begin in zip(marks.tolist(), begins.tolist(), strict=True):
        if is_begin or len(places) % 2 == 0 or places[-1] == mark - 1 >= 0:
            places.append(mark)
    return np.array(places[1:])


def _blank_separated(separator: str, line: str) -> str:
    """A line in which one blank stands for white space, if that separates fields."""
    if separator != WHITE_SPACE:
        return line
    return re.sub(r"[ \t]+", " ", line.strip()) + "\n"


def _blank_separated_bytes(piece: bytes, file: CsvFile) -> bytes:
    """As `_blank_separated`, outside of quotations."""
    if file.separator != WHITE_SPACE:
        return piece
    quote = re.escape(file.options.quote.encode())
    piece = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", piece)
    return re.sub(rb"(%b[^%b]*%b)|[ \t]+" % (quote, quote, quote), lambda m: m[1] or b" ", piece)


def _trimmed(piece: bytes, file: CsvFile, names: list[str]) -> dict[str, pa.ChunkedArray]:
    """The columns of a piece; blanks at the ends of texts are dropped unless they are quoted."""
    table = _parsed(piece, file, names, null_words=[""])
    columns = {}
    for name in names:
        column = table.column(name)
        trimmed = pc.utf8_trim_whitespace(column)
        if not pc.all(pc.equal(trimmed, column)).as_py() and len(column):
            differs = pc.fill_null(pc.not_equal(trimmed, column), False)
            is_quoted = pa.scalar(False)
            if file.options.quote.encode() in piece:
                # Arrow takes a word for null only if it is not quoted.
                words = pc.unique(column.filter(differs)).to_pylist()
                nulls = _parsed(piece, file, [name], null_words=["", *words]).column(name)
                is_quoted = pc.and_(differs, nulls.is_valid())
            is_blank = pc.and_not(pc.and_(differs, pc.equal(trimmed, "")), is_quoted)
            trimmed = pc.if_else(is_blank, pa.scalar(None, pa.string()), trimmed)
            column = pc.if_else(is_quoted, column, trimmed)
        columns[name] = column
    return columns


def _parsed(
    piece: bytes, file: CsvFile, names: list[str], *, null_words: Sequence[str]
) -> pa.Table:
    if not piece.strip(b"\r\n"):
        return pa.table({name: pa.array([], pa.string()) for name in names})
    return pv.read_csv(
        pa.BufferReader(piece),
        pv.ReadOptions(column_names=list(file.names), block_size=len(piece) + 1),
        pv.ParseOptions(
            delimiter=file.separator,
            quote_char=file.options.quote,
            newlines_in_values=True,
            invalid_row_handler=None if file.options.bad_rows is None else lambda row: "skip",
        ),
        pv.ConvertOptions(
            column_types=dict.fromkeys(file.names, pa.string()),
            include_columns=names,
            null_values=list(null_words),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translates errors of libraries into errors with the path."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except UnicodeError as error:
        raise _not_text(path, f"({error})") from error
    except csv.Error as error:
        raise InputError(f"{path} has a header that cannot be read: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read to its end: {error}") from error


def _not_text(path: Path, place: str) -> InputError:
    return InputError(
        f"expected text in UTF-8 in {path}, got other bytes {place}",
        remedy="csv_encoding",
        expected="csv",
    )


# --- types -----------------------------------------------------------------------------------


class _Guesses(Collection[VariableInfo]):
    """The variables of a file, whose types are guessed when they are first asked for."""

    def __init__(self, file: CsvFile, mapping: Mapping) -> None:
        self._file = file
        self._mapping = mapping

    def __iter__(self) -> Iterator[VariableInfo]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._file.names)

    def __contains__(self, info: object) -> bool:
        return info in self._infos

    @cached_property
    def _infos(self) -> tuple[VariableInfo, ...]:
        names, csv_options = self._file.names, self._file.options
        guesses = {name: TypeGuess() for name in names}
        identifiers: set[str] = set()
        for number, table in enumerate(self._file.scan(names)):
            for name, guess in guesses.items():
                column = null_sentinels(table.column(name), self._mapping.sentinels(name))
                guess.add(plain_texts(column, csv_options))
                if number == 0 and is_identifier(column):
                    identifiers.add(name)
        return tuple(
            VariableInfo(
                name,
                FeatureMetadata(unit=self._file.units.get(name, "")),
                type=guess.type,
                default=guess.type is not None,
                identifier=guess.type == "text" and name in identifiers,
                reason="no value" if guess.type is None else guess.reason,
                words=guess.words,
            )
            for name, guess in guesses.items()
        )


def _estimate_rows(file: CsvFile) -> int | None:
    """The number of rows from the size and the first lines; None if compressed."""
    if _is_gzip(file.path):
        return None
    with file.path.open("rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        start = opened.read(1 << 20)
    lines = start.count(b"\n") + (not start.endswith(b"\n"))
    return max(round(size * lines / max(len(start), 1)) - file.first_line + 1, 0)
