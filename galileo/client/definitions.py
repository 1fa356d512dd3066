"""What a client knows of datasets, tables and channels."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from galileo.client.arguments import dataset_name
from galileo.errors import GalileoError, UnknownDataset
from galileo.model.channel import SUBSCRIPTIONS, Channel
from galileo.model.schema import (
    SCHEMA_STEPS,
    Schema,
    StoredSchema,
    has_columns,
    other_kind,
    unknown_channel,
    unknown_dataset,
    unknown_name,
    unknown_table,
)
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.system import SYSTEM_TABLES
from galileo.model.table import Table
from galileo.offload import offload
from galileo.wire.caller import Caller
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2

SCHEMA_AGE_MAX_S = 5.0
"""A cached schema that is older is read again, since another client may have added features."""
WIDER_KEPT_S = 60.0
"""For so long a schema with more features than a node answers is kept: the node learns late."""


@dataclass(frozen=True, slots=True)
class CachedSchema:
    """A schema, and when a node answered with it; on the monotonic clock, in seconds."""

    schema: Schema
    read_at: float


class Definitions:
    """Reads and makes definitions; caches them, schemas for a short time."""

    _caller: Caller
    _schemas: dict[str, CachedSchema]
    _tables: dict[str, Table]
    _channels: dict[str, Channel]

    async def _create(self, schema: StoredSchema) -> str:
        """Creates a dataset, table or channel; as JSON what was created."""
        request = cluster_pb2.CreateDatasetRequest(schema_json=schema.to_json())
        reply = await self._caller.unary(CLUSTER, "CreateDataset", request)
        created: str = reply.schema_json
        return created

    async def _list(self, name: str = "") -> cluster_pb2.ListDatasetsReply:
        """All datasets, tables and channels, or the one of a name."""
        request = cluster_pb2.ListDatasetsRequest(name=name)
        reply: cluster_pb2.ListDatasetsReply = await self._caller.unary(
            CLUSTER, "ListDatasets", request
        )
        return reply

    async def _read_schemas(self) -> list[Schema]:
        """The schemas of all datasets."""
        reply = await self._list()
        steps = SCHEMA_STEPS * len(reply.schemas_json)
        schemas = await offload(steps, lambda: [*map(Schema.from_json, reply.schemas_json)])
        for name in self._schemas.keys() - {schema.name for schema in schemas}:
            del self._schemas[name]
        return [self._cache_schema(schema) for schema in schemas]

    async def _schema(self, dataset: str) -> Schema:
        """The schema of a dataset, from the cache if it is not older than `SCHEMA_AGE_MAX_S`."""
        cached = self._schemas.get(dataset_name(dataset))
        if cached is None or time.monotonic() - cached.read_at > SCHEMA_AGE_MAX_S:
            return await self._read_schema(dataset)
        return cached.schema

    async def _schema_with(self, dataset: str, names: Iterable[str]) -> Schema:
        """The schema of a dataset; read again if it lacks a feature of these names."""
        schema = await self._schema(dataset)
        return schema if has_columns(schema, names) else await self._read_schema(dataset)

    async def _read_schema(self, dataset: str) -> Schema:
        """Reads the schema of a dataset from a node."""
        return await self._listed_schema(dataset, await self._list(dataset_name(dataset)))

    async def _read_kept(self, name: str) -> Schema | Table:
        """Reads the definition of a dataset or table from a node."""
        reply = await self._list(dataset_name(name))
        for text in reply.tables_json:
            return Table.from_json(text)
        return await self._listed_schema(name, reply)

    async def _kept(self, name: str) -> Schema | Table:
        """The definition of a dataset or table, from the cache if there is one."""
        known = SYSTEM_TABLES.get(dataset_name(name)) or self._tables.get(name)
        if known is None and name in self._schemas:
            return await self._schema(name)
        try:
            return known or await self._read_kept(name)
        except UnknownDataset as error:
            tables = [table.name for table in await self._read_tables()]
            raise unknown_name(name, sorted([*self._schemas, *tables])) from error

    async def _listed_schema(self, dataset: str, reply: cluster_pb2.ListDatasetsReply) -> Schema:
        schemas = {schema.name: schema for schema in map(Schema.from_json, reply.schemas_json)}
        for text in (*reply.tables_json, *reply.channels_json):
            raise other_kind(stored_schema_from_json(text), "dataset")
        if dataset not in schemas:
            names = [schema.name for schema in await self._read_schemas()]
            raise unknown_dataset(dataset, sorted(names))
        return self._cache_schema(schemas[dataset])

    def _cache_schema(self, schema: Schema) -> Schema:
        """Caches a schema, unless a node has answered already that it has more features."""
        cached, now = self._schemas.get(schema.name), time.monotonic()
        if cached is not None and now - cached.read_at < WIDER_KEPT_S:
            known = cached.schema
            if known != schema and known.extends(schema):
                return known
        self._schemas[schema.name] = CachedSchema(schema, now)
        return schema

    async def _read_tables(self) -> list[Table]:
        """All tables."""
        reply = await self._list()
        found = [Table.from_json(text) for text in reply.tables_json]
        self._tables = {table.name: table for table in found}
        return found

    async def _table(self, name: str) -> Table:
        known = SYSTEM_TABLES.get(dataset_name(name)) or self._tables.get(name)
        if known is not None:
            return known
        found = {table.name: table for table in await self._read_tables()}
        if name not in found:
            raise unknown_table(name, sorted(found))
        return found[name]

    async def _read_channels(self) -> list[Channel]:
        """All channels."""
        reply = await self._list()
        found = [Channel.from_json(text) for text in reply.channels_json]
        self._channels = {channel.name: channel for channel in found}
        return found

    async def _channel(self, name: str) -> Channel:
        known = self._channels.get(dataset_name(name))
        if known is not None:
            return known
        found = {channel.name: channel for channel in await self._read_channels()}
        if name not in found:
            raise unknown_channel(name, sorted(found))
        return found[name]

    def _forget_dropped_schema(self, error: GalileoError) -> None:
        """Removes a dataset or table from the cache when a node answers that it is dropped."""
        if isinstance(error, UnknownDataset):
            self._forget(str(error.details.get("dropped")))

    def _forget(self, name: str) -> None:
        """Removes what has this name from the cache; a channel together with its tables."""
        channel = name.removesuffix(SUBSCRIPTIONS)
        self._schemas.pop(name, None)
        self._channels.pop(channel, None)
        for table in (name, channel + SUBSCRIPTIONS):
            self._tables.pop(table, None)
