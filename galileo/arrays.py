"""What many modules do with arrays: columns in one piece, and the numbers of repeated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; it copies nothing where there is one chunk."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def within(counts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """The concatenation of `arange(count)`."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: npt.NDArray[np.int64] = np.arange(total) - np.repeat(ends - counts, counts)
    return numbers
