"""Validation of commits: one batch of the dataset's schema, bounded in size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from galileo.errors import InvalidObservations, MessageTooLarge

COMMIT_BYTES_MAX = 1 << 30
"""Arrow bytes of the observations of one commit."""


def one_batch(data: Any, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """One record batch of the dataset's schema, with at least one row."""
    if not data.schema.equals(schema):
        raise InvalidObservations(
            f"expected {what} with the columns {', '.join(map(str, schema))}; "
            f"got {', '.join(map(str, data.schema))}"
        )
    if data.num_rows == 0:
        raise InvalidObservations(f"expected {what} of at least one row, got none")
    if data.nbytes > COMMIT_BYTES_MAX:
        raise MessageTooLarge(
            f"expected {what} of at most {COMMIT_BYTES_MAX} bytes, got {data.nbytes}; "
            "send smaller batches"
        )
    return data.combine_chunks().to_batches()[0] if isinstance(data, pa.Table) else data
