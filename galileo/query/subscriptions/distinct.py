"""Distinct rows of the columns of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_CODES_MAX = 1 << 62


def distinct_rows(
    columns: Sequence[pa.Array],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first of all equal rows, in their order, and for each row which of these it equals.

    Args:
        columns: of one length, without nulls.
    """
    codes, count = _codes(columns[0])
    for column in columns[1:]:
        more, others = _codes(column)
        if count * others > _CODES_MAX:
            codes, count = _codes(pa.array(codes))
        codes, count = codes * others + more, count * others
    if len(columns) > 1:
        codes, count = _codes(pa.array(codes))
    rows = np.empty(count, dtype=np.intp)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows, codes


def _codes(column: pa.Array) -> tuple[npt.NDArray[np.intp], int]:
    """The number of each row's value, in the order of their first rows, and of how many."""
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.intp)
    return codes, len(encoded.dictionary)
