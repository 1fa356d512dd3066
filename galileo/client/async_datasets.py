"""The calls of `AsyncClient` about datasets: schemas, retention, quotas of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from galileo.client import cleaning, decode
from galileo.client.arguments import dataset_name
from galileo.client.calls import Calls
from galileo.client.cleaning import CleaningReport
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.ingestion import in_thread
from galileo.client.results import CallerIdentity, DroppedDataset, RetentionReport
from galileo.errors import InputError, InvalidSchema, UnknownDataset
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import (
    Feature,
    Schema,
    features_to_json,
)
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.units import check_units
from galileo.wire.caller import Connection
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2


class AsyncDatasets(Calls):
    """Datasets, their retention, and what the caller may do."""

    async def create_dataset(self, schema: Schema, *, retention: Retention | None = None) -> None:
        """Creates a dataset.

        Args:
            schema: of it.
            retention: for how long observations are kept; None: for ever. It is set by a second
                call: if that fails, the dataset exists and keeps everything until `set_retention`.

        Raises:
            UnknownUnit: UDUNITS does not know the unit of a feature. It is looked up where the
                extra `formats` is installed.
            DatasetExists: the name is taken; `details["same"]` says whether by this schema.

        Example:
            >>> schema = galileo.Schema("weather-rain", [galileo.Feature("depth", unit="mm")])
            >>> await client.create_dataset(schema, retention=galileo.Retention("30d"))
        """
        if not isinstance(schema, Schema):
            raise InputError(
                "expected a schema, such as galileo.Schema('stations', "
                f"[galileo.Feature('temperature', unit='K')]), got {schema!r}"
            )
        await in_thread(check_units, schema.features)
        self._cache_schema(Schema.from_json(await self._create(schema)))
        if retention is not None:
            await self.set_retention(schema.name, retention)

    async def add_features(self, dataset: str, features: Sequence[Feature]) -> Schema:
        """Adds features to a dataset, behind those that it has.

        What is stored has null in them, and batches without them can be stored as before. Labels,
        and continuous queries that were submitted before, go on without them. A feature cannot be
        renamed or removed, and its type stays as it is; create another dataset for that.

        Args:
            dataset: its name.
            features: to add, in this order.

        Returns:
            The schema of the dataset with the new features.

        Raises:
            InvalidSchema: there are none, the dataset has one of this name, or there are too many.
            UnknownUnit: as of `create_dataset`.
            UnknownDataset: it does not exist.
            Unavailable: no node leads the definitions, because a majority of their copies is down.
                Repeat the call.

        Example:
            >>> schema = galileo.Schema("weather-snow", [galileo.Feature("depth", unit="mm")])
            >>> await client.create_dataset(schema)
            >>> gust = galileo.Feature("gust", unit="m/s")
            >>> schema = await client.add_features("weather-snow", [gust])
            >>> [feature.name for feature in schema.features]
            ['depth', 'gust']
        """
        known = await self._read_schema(dataset)
        new = known.with_features(features).features[len(known.features) :]  # Raises as the node.
        await in_thread(check_units, new)
        request = cluster_pb2.AddFeaturesRequest(
            dataset=known.key, features_json=features_to_json(new)
        )
        attempts = 0

        async def attempt(node: Connection) -> Schema:
            nonlocal attempts
            attempts += 1
            reply = await node.unary(CLUSTER, "AddFeatures", request)
            return Schema.from_json(reply.schema_json)

        try:
            schema = await self._caller.call(attempt)
        except InvalidSchema:
            schema = await self._read_schema(dataset)
            if attempts == 1 or any(schema.feature(one.name) != one for one in new):
                raise
            # An earlier attempt added them, and its answer was lost.
        self._cache_schema(schema)
        return schema

    async def drop_dataset(self, dataset: str) -> DroppedDataset:
        """Drops a dataset or table with everything that it holds; this cannot be undone.

        Its continuous queries end: their readers get `CcqDropped`. The name can be used again at
        once, also with another schema. The new dataset is another one: labels and tokens of the
        dropped one are refused. Unreachable nodes drop the dataset when they are back.

        Args:
            dataset: its name.

        Returns:
            What was removed, and the nodes that have not dropped it yet.

        Raises:
            UnknownDataset: it does not exist.
            Unavailable: no node leads the definitions, because a majority of their copies is down.
                Repeat the call.

        Example:
            >>> schema = galileo.Schema("weather-fog", [galileo.Feature("depth", unit="m")])
            >>> await client.create_dataset(schema)
            >>> await client.drop_dataset("weather-fog")
            DroppedDataset(dataset='weather-fog', rows=0, bytes=0, ccqs=0, pending=())
        """
        listed = await self._list()
        texts = [*listed.schemas_json, *listed.tables_json, *listed.channels_json]
        schemas = {schema.name: schema for schema in map(stored_schema_from_json, texts)}
        # If it is not listed, the node answers why: the caller may have no access to it.
        known = schemas.get(dataset_name(dataset))
        request = cluster_pb2.DropDatasetRequest(dataset=known.key if known else dataset)
        attempts = 0

        async def attempt(node: Connection) -> Any:
            nonlocal attempts
            attempts += 1
            return await node.unary(CLUSTER, "DropDataset", request, timeout_s=ANSWER_S)

        try:
            reply = await self._caller.call(attempt)
        except UnknownDataset as error:
            if attempts == 1 or known is None or "dropped" not in error.details:
                error.details.pop("remedy", None)  # Its advice is to create the dataset first.
                raise
            # An earlier attempt dropped it, and its answer was lost.
            reply = cluster_pb2.DropDatasetReply()
        self._forget(dataset)
        return decode.dropped_dataset(dataset, reply)

    async def set_retention(self, dataset: str, retention: Retention | None) -> None:
        """Sets for how long a dataset's observations are kept, at all nodes.

        Args:
            dataset: its name.
            retention: None keeps everything from now on.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> await client.set_retention("weather", galileo.Retention(bytes=50 << 30))
            >>> await client.set_retention("weather", None)
        """
        if not isinstance(retention, Retention | None):
            raise InputError(f"expected galileo.Retention('30d') or None, got {retention!r}")
        request = cluster_pb2.SetRetentionRequest(
            dataset=dataset_name(dataset), retention_json=retention.to_json() if retention else ""
        )
        await self._caller.unary(CLUSTER, "SetRetention", request)

    async def retention(self, dataset: str) -> Retention | None:
        """The retention policy of a dataset; None where everything is kept.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> await client.retention("weather") is None
            True
        """
        request = cluster_pb2.GetRetentionRequest(dataset=dataset_name(dataset))
        reply = await self._caller.unary(CLUSTER, "GetRetention", request)
        return VersionedRetention.from_json(reply.numbered_json).retention

    async def apply_retention(self, dataset: str) -> tuple[RetentionReport, ...]:
        """Applies the dataset's retention at once; nodes else apply it from time to time.

        Returns:
            A report of each node, also of those that could not be reached.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> reports = await client.apply_retention("weather")
            >>> sum(report.files for report in reports)
            0
        """
        request = cluster_pb2.ApplyRetentionRequest(dataset=dataset_name(dataset))
        reply = await self._caller.unary(CLUSTER, "ApplyRetention", request, timeout_s=ANSWER_S)
        return tuple(decode.retention_report(report) for report in reply.reports)

    def clean_dataset(self, dataset: str) -> AsyncIterator[CleaningReport]:
        """Has all nodes erase the bytes of deleted and replaced observations now.

        Nodes also erase by themselves where much was deleted. This call does not wait for readers:
        older labels, cursors and pages expire, and the readers of continuous queries that are
        behind begin anew. Closing the iterator ends the work and keeps what was erased. Backups do
        not change.

        Args:
            dataset: the name of a dataset or table.

        Returns:
            The report of each node whenever it changes; at last with `is_over`, or with `failures`.
            If there are any, call again when the node is back.

        Raises:
            UnknownDataset: it does not exist.
            NotPermitted: the caller is no administrator.
            Unavailable: no node answered.

        Example:
            >>> reports = [one async for one in client.clean_dataset("weather") if one.is_over]
            >>> {report.failures for report in reports}
            {()}
        """
        return cleaning.clean(self._caller, dataset_name(dataset))

    async def datasets(self) -> list[Schema]:
        """The schemas of all datasets.

        Example:
            >>> "weather" in {schema.name for schema in await client.datasets()}
            True
        """
        return await self._read_schemas()

    async def schema(self, dataset: str) -> Schema:
        """The schema of a dataset; features that another client adds are in it 5 seconds later.

        Raises:
            UnknownDataset: it does not exist.

        Example:
            >>> schema = await client.schema("weather")
            >>> [feature.name for feature in schema.features]
            ['temperature', 'station']
        """
        return await self._schema(dataset)

    async def whoami(self) -> CallerIdentity:
        """The user name of this client, its roles and its quotas, as one node counts them.

        Example:
            >>> caller = await client.whoami()
            >>> caller.name
            ''
        """
        reply = await self._caller.unary(CLUSTER, "Status", cluster_pb2.StatusRequest(caller=True))
        return decode.caller_identity(reply.caller)
