"""What nodes store: datasets, tables and channels, from JSON."""

from __future__ import annotations

from galileo.model.channel import Channel
from galileo.model.schema import Schema, StoredSchema, read_json
from galileo.model.table import Table


def stored_schema_from_json(text: str) -> StoredSchema:
    """The dataset, table or channel of a text that `StoredSchema.to_json` made.

    Raises:
        InvalidSchema: it is none of them.
    """
    raw = read_json(text, "schema")
    if isinstance(raw, dict) and "template" in raw:
        return Channel.from_dict(raw)
    is_table = isinstance(raw, dict) and "columns" in raw
    return Table.from_dict(raw) if is_table else Schema.from_dict(raw)
