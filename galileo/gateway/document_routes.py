"""The documents of OGC API: the landing page, descriptions of the API and of collections."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galileo.gateway import documents, edr_documents
from galileo.gateway.asyncapi import asyncapi
from galileo.gateway.ccq_collections import CCQ_ID, described
from galileo.gateway.ccqs import visible_ccqs
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.openapi import openapi
from galileo.gateway.route_group import RouteGroup
from galileo.model.schema import Schema


class DocumentRoutes(RouteGroup):
    """Answers requests for the documents of the API."""

    async def landing(self, request: Request) -> Response:
        return _json(request, documents.landing(url_of(request)))

    async def conformance(self, request: Request) -> Response:
        return _json(request, documents.conformance())

    async def api(self, request: Request) -> Response:
        return _json(request, openapi(url_of(request)), documents.OPENAPI_JSON)

    async def asyncapi(self, request: Request) -> Response:
        return _json(request, asyncapi(url_of(request)), documents.ASYNCAPI_JSON)

    async def collections(self, request: Request) -> Response:
        async with self._callers.client(request) as client:
            datasets = await edr_documents.described(client, await client.datasets())
            ccqs = await visible_ccqs(client)

        def answer() -> Response:
            document = documents.collections(url_of(request), datasets)
            document["collections"] += [
                described(url_of(request), info) for info in ccqs if CCQ_ID.fullmatch(info.id)
            ]
            return _json(request, document)

        return await self._encoders.run(answer)

    async def collection(self, request: Request) -> Response:
        async with self._callers.client(request) as client:
            dataset = await client.describe(request.path_params["collectionId"])
        return _json(request, documents.collection(url_of(request), dataset))

    async def queryables(self, request: Request) -> Response:
        schema = await self._schema_of(request)
        document = documents.queryables(url_of(request), schema)
        return _json(request, document, documents.SCHEMA_JSON)

    async def schema(self, request: Request) -> Response:
        schema = await self._schema_of(request)
        document = documents.item_schema(url_of(request), schema)
        return _json(request, document, documents.SCHEMA_JSON)

    async def _schema_of(self, request: Request) -> Schema:
        async with self._callers.client(request) as client:
            return await client.schema(request.path_params["collectionId"])


def _json(request: Request, document: Any, media_type: str = documents.JSON) -> Response:
    check_json(request, media_type)
    return json_answer(document, media_type)
