"""What nodes store: datasets, tables and channels, from JSON."""

from __future__ import annotations

import json

from galileo.errors import InvalidSchema
from galileo.model.channel import Channel
from galileo.model.schema import Schema, StoredSchema
from galileo.model.table import Table


def stored_schema_from_json(text: str) -> StoredSchema:
    """The dataset, table or channel of a text that `StoredSchema.to_json` made.

    Raises:
        InvalidSchema: it is none of them.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"expected a schema in JSON: {error}", expected="json") from error
    if isinstance(raw, dict) and "template" in raw:
        return Channel.from_dict(raw)
    is_table = isinstance(raw, dict) and "key" in raw
    return Table.from_dict(raw) if is_table else Schema.from_dict(raw)
