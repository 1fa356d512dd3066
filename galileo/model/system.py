"""The tables of the system partition: what the whole cluster shares.

Nodes make them when they start; no call creates or drops one. All rows of a system table are in one
partition, which is replicated whatever the number of copies of the data.
"""

from __future__ import annotations

from galileo.model.broker import BROKERS
from galileo.model.reader import POSITIONS
from galileo.model.schema import INTERNAL_PREFIX
from galileo.model.table import Table, in_system

DATASETS = in_system(
    Table(f"{INTERNAL_PREFIX}datasets", {"name": "text", "definition": "text"}, key="name")
)
"""The definitions of datasets; `definition`: as of `galileo.node.definitions.encode`."""
SAMPLERS = in_system(
    Table(
        f"{INTERNAL_PREFIX}samplers",
        {"digest": "text", "facts": "text", "archive": "text"},
        key="digest",
    )
)
"""Uploaded samplers; `facts`: as of `galileo.node.sampler_rows.encode`; `archive`: base64, none of
a revoked one."""
CCQS = in_system(Table(f"{INTERNAL_PREFIX}ccqs", {"id": "text", "record": "text"}, key="id"))
"""Continuous queries; `record`: as of `galileo.ccq.records.encode`."""
HIDDEN_TABLES = {table.key: table for table in (DATASETS, SAMPLERS, CCQS)}
"""System tables that clients do not find, by key."""
SYSTEM_TABLES = HIDDEN_TABLES | {table.key: table for table in (BROKERS, POSITIONS)}
"""All system tables by key."""
