"""Subscriptions of channels over HTTP: some in a body, and single ones.

A body is read as a whole before anything of it is stored, so that a mistake in it stores nothing.
Repeating a request does no harm, since a subscription replaces the one with its id.
"""

from __future__ import annotations

import json
from http import HTTPStatus

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.json_lines import json_lines
from galileo.client.results import Receipt
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import InputError
from galileo.formats.json_scan import VALUE_BYTES
from galileo.formats.memory_file import BODY_UNPACKED_BYTES_MAX, MemoryFile
from galileo.gateway import documents, parameters
from galileo.gateway.channel_documents import channel_named
from galileo.gateway.ingestion import BatchKey, batch_key
from galileo.gateway.json_answers import check_json
from galileo.gateway.problems import problem
from galileo.gateway.request_bodies import decoding, format_of, received
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.subscription_bodies import FORMATS, tables_of
from galileo.model.channel import Channel
from galileo.model.table import versions_of
from galileo.query.subscriptions import ParameterQuery

SUBSCRIPTIONS_MAX = 4_000_000
"""Subscriptions of a request."""
NOTHING_STORED = Receipt(0, 0, 0, 0, EMPTY_CURSOR, "")


class SubscriptionRoutes(RouteGroup):
    """Answers requests about subscriptions."""

    async def subscriptions(self, request: Request) -> Response:
        """Stores the subscriptions of a request, all of them or, for a mistake, none.

        Raises:
            GalileoError: the request is wrong, or nodes cannot store all of it.
            Refused: the body is too large or has another type.
        """
        parameters.single_values(request.query_params, ())
        key = batch_key(request.headers.get("idempotency-key", ""))
        format, channel = format_of(request, FORMATS), request.path_params["channelId"]
        async with self._callers.client(request) as client:
            known = await channel_named(client, channel)
            async with received(request) as (body, _):
                rows = await self._rows(known, body, format=format)
                if not rows.num_rows:
                    return _stored(NOTHING_STORED, key)
                await self._encoders.run(lambda: _check(known, rows))
                receipt = await client.subscribe(
                    channel,
                    rows,
                    producer=key and key.producer,
                    first_batch=key.first_batch if key else 0,
                )
        return _stored(receipt, key)

    async def subscription(self, request: Request) -> Response:
        """A subscription, or its removal."""
        check_json(request)
        channel, name = request.path_params["channelId"], request.path_params["subscriptionId"]
        async with self._callers.client(request) as client:
            if request.method == "DELETE":
                await client.unsubscribe(channel, [name])
                return Response(status_code=HTTPStatus.NO_CONTENT)
            known = await channel_named(client, channel)
            stored = await client.table(known.subscription_table, keys=[name])
        if not len(stored):
            text = f"channel {channel!r} has no subscription {name!r:.100}"
            return problem(HTTPStatus.NOT_FOUND, text)
        return Response(json_lines(stored.rows)[0].as_py(), media_type=documents.JSON)

    async def _rows(self, channel: Channel, body: MemoryFile, *, format: str) -> pa.Table:
        """The subscriptions of a body. Raises InputError if it is malformed, or has too many."""
        # The values of CSV are texts, whose types the parameters say.
        columns = channel.subscriptions.arrow_schema if format == "csv" else pa.schema([])
        tables, names, rows, size = [], set[str](), 0, 0
        pieces = tables_of(body.path, format, channel.subscriptions)
        with decoding(body, format):
            while (table := await self._encoders.run(lambda: next(pieces, None))) is not None:
                tables.append(table)
                rows, size = rows + table.num_rows, size + table.nbytes
                names.update(table.column_names)
                # A column that a piece lacks has values in the table of all pieces.
                _check_size(rows, max(size, rows * len(names) * VALUE_BYTES))
            return pa.concat_tables([columns.empty_table(), *tables], promote_options="permissive")


def _check(channel: Channel, rows: pa.Table) -> None:
    """Checks all subscriptions of a request before the first one is stored."""
    assert channel.schema is not None, "a channel of a cluster has a dataset"
    ParameterQuery.of(channel).check(versions_of(channel.subscriptions, rows))


def _check_size(rows: int, size: int) -> None:
    if rows > SUBSCRIPTIONS_MAX or size > BODY_UNPACKED_BYTES_MAX:
        raise InputError(
            f"expected at most {SUBSCRIPTIONS_MAX:,} subscriptions of {BODY_UNPACKED_BYTES_MAX:,} "
            "bytes in a request, got more; send several requests",
            bound=SUBSCRIPTIONS_MAX,
        )


def _stored(receipt: Receipt, key: BatchKey | None) -> Response:
    document = {
        "subscriptions": receipt.rows,
        "duplicates": receipt.duplicate_rows,
        **({"batch": f"{key.producer}:{key.number}"} if key else {}),
        "commits": {str(partition): sequence for partition, sequence in receipt.reached.items()},
    }
    return Response(json.dumps(document), HTTPStatus.CREATED, media_type=documents.JSON)
