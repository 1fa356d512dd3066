"""Files of the rows of tables: Parquet, Arrow IPC, CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.json as pjson
import pyarrow.parquet as pq

from galileo.errors import InputError
from galileo.formats.arrow_files import PIECE_ROWS

Opener = Callable[[Path, pa.Schema], Iterator[pa.Table]]


def open_rows(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, a piece at a time, by the end of its name.

    Args:
        path: of the file; .parquet, .arrow, .feather, .csv, .tsv, .ndjson or .jsonl.
        columns: the types that columns of these names have in texts.

    Raises:
        InputError: the file is of no such format, cannot be read, or is damaged.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        raise InputError(
            f"expected a file ending in {', '.join(OPENERS)}, got {path.name!r}", parameter="file"
        )
    try:
        yield from opener(path, columns)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", parameter="file") from error


def _parquet(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PIECE_ROWS):
            yield pa.Table.from_batches([batch])


def _arrow(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _delimited(delimiter: str) -> Opener:
    def read(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
        convert = pcsv.ConvertOptions(column_types=_in_texts(columns), strings_can_be_null=True)
        parse = pcsv.ParseOptions(delimiter=delimiter)
        with pcsv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    return read


def _json_lines(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    options = pjson.ParseOptions(explicit_schema=_in_texts(columns))
    yield pjson.read_json(path, parse_options=options)


def _in_texts(columns: pa.Schema) -> pa.Schema:
    """The types as texts have them: times are parsed later, since they may have no zone."""
    return pa.schema(
        pa.field(one.name, pa.string() if pa.types.is_timestamp(one.type) else one.type)
        for one in columns
    )


OPENERS: dict[str, Opener] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".ndjson": _json_lines,
    ".jsonl": _json_lines,
}
