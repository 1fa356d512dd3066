"""Tables that commands write to files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from galileo.errors import InputError

_WRITERS = {
    ".csv": pyarrow.csv.write_csv,
    ".parquet": pyarrow.parquet.write_table,
    ".arrow": pyarrow.feather.write_feather,
    ".feather": pyarrow.feather.write_feather,
}


def write_table(table: pa.Table, path: Path) -> None:
    """Writes a table in the format that the file's name ends in.

    Raises:
        InputError: the ending means nothing, or the file cannot be written.
    """
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(f"expected a file ending in {', '.join(_WRITERS)}, got {path.name!r}")
    try:
        writer(table, str(path))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
