"""Channels over HTTP: create, list, drop, and follow for a broker."""

from __future__ import annotations

import contextlib
import json
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.errors import DatasetExists, InputError
from galileo.gateway import documents, parameters
from galileo.gateway.callers import Callers
from galileo.gateway.channel_documents import (
    channel_named,
    channel_url,
    definition,
    described,
    listed,
    progress,
)
from galileo.gateway.events import EventStream
from galileo.gateway.formats import Encoders
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.notifications import WAIT_S, BrokerReader, Waits
from galileo.gateway.request_bodies import json_body, start_of_json
from galileo.gateway.route_group import RouteGroup


class ChannelRoutes(RouteGroup):
    """Answers requests about channels and their brokers."""

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self.waits = Waits()

    async def channels(self, request: Request) -> Response:
        """Lists the channels that the caller may use."""
        check_json(request)
        async with self._callers.client(request) as client:
            return json_answer(listed(url_of(request), await client.channels()))

    async def channel(self, request: Request) -> Response:
        """Describes a channel, creates or drops it."""
        check_json(request)
        if request.method == "PUT":
            return await self._create(request)
        async with self._callers.client(request) as client:
            known = await channel_named(client, request.path_params["channelId"])
            if request.method == "DELETE":
                await client.drop_dataset(known.name)
                return Response(status_code=HTTPStatus.NO_CONTENT)
            partitions = await client.describe_channel(known.name)
        return json_answer({**described(url_of(request), known), **progress(known, partitions)})

    async def notifications(self, request: Request) -> Response:
        """A page of what is new for a broker after a token."""
        given = parameters.single_values(request.query_params, parameters.NOTIFICATIONS)
        limit = parameters.page_limit(given.get("limit"))
        wait_s = parameters.wait_s(given.get("wait", ""))
        async with self._callers.client(request) as client:
            reader = self._reader(request, client, given.get("token", ""))
            items, token = await reader.page(limit=limit, wait_s=wait_s)
        following = request.url.include_query_params(token=token)
        links = [documents.link("next", str(following), documents.JSON)]
        rest = json.dumps({"next": token, "links": links})[1:].encode()
        return Response(b'{"notifications":%s,%s' % (items, rest), media_type=documents.JSON)

    async def notification_events(self, request: Request) -> EventStream:
        """The same as server-sent events, until the client leaves or the channel is dropped."""
        given = parameters.single_values(request.query_params, ("token",))
        token = request.headers.get("last-event-id", given.get("token", ""))
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.reader(request))
            reader = self._reader(request, client, token)
            events = reader.events(await reader.first(), heartbeat_s=WAIT_S)
            return EventStream(events, held=stack.pop_all())

    async def broker_position(self, request: Request) -> Response:
        """The token that a broker has stored, or stores one."""
        check_json(request)
        names = request.path_params["channelId"], request.path_params["brokerId"]
        is_read = request.method != "PUT"
        given = None if is_read else await json_body(request)
        async with self._callers.client(request) as client:
            if is_read:
                return json_answer({"token": await client.position(*names)})
            await client.acknowledge(*names, _token_of(given))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _create(self, request: Request) -> Response:
        channel = definition(request.path_params["channelId"], await json_body(request))
        url, status = url_of(request), HTTPStatus.CREATED
        async with self._callers.client(request) as client:
            try:
                await client.create_channel(channel)
            except DatasetExists as error:
                if not error.details.get("same"):
                    raise
                status = HTTPStatus.OK
            document = described(url, await channel_named(client, channel.name))
        headers = {"Location": channel_url(url, channel.name)}
        return Response(json.dumps(document), status, headers=headers, media_type=documents.JSON)

    def _reader(self, request: Request, client: AsyncClient, token: str) -> BrokerReader:
        names = request.path_params
        return BrokerReader(
            client,
            names["channelId"],
            names["brokerId"],
            token=token,
            waits=self.waits,
            encoders=self._encoders,
        )


def _token_of(given: object) -> str:
    """The token of `{"token": "..."}`. Raises InputError for anything else."""
    token = given.get("token") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(token, str):
        raise InputError(
            'expected the token of notifications, such as {"token": "AWhvdEBtZQ"}, got '
            f"{start_of_json(given)}",
            parameter="token",
        )
    return token
