"""Keyed datasets over HTTP: deletions and preconditions.

The token of a cursor comes with answers about observations, in the header `Galileo-Token`. A
client sends it back in `If-Match`, and what has changed since is not replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_client import AsyncClient
from galileo.cursor import Cursor
from galileo.errors import InputError, InvalidToken
from galileo.gateway import documents, parameters
from galileo.gateway.problems import RequestRefused, problem
from galileo.gateway.updates import TOKEN_HEADER
from galileo.model.schema import COORDINATES, Schema, not_keyed
from galileo.wire import token as tokens

IF_MATCH = "If-Match"


async def delete_observation(client: AsyncClient, request: Request) -> Response:
    """Deletes the observation of an id, unless it has changed since the token of `If-Match`.

    Raises:
        Conflict: it has.
        GalileoError: it cannot be deleted.
        RequestRefused: the dataset has no key.
    """
    parameters.single_values(request.query_params, ())
    schema = await _keyed(client, request)
    since = unchanged_since(request.headers, schema)
    name, key = request.path_params["featureId"], (*COORDINATES, *schema.key_features)
    try:
        row = await client.read_ids(schema.name, [name], columns=key)
    except InputError as error:
        return problem(HTTPStatus.NOT_FOUND, error.message)
    if not row.num_rows:
        return gone(schema, name)
    observation = row.remove_column(0)  # The id.
    await client.delete(schema.name, observation, unchanged_since=since)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def delete_matching(client: AsyncClient, request: Request) -> Response:
    """Deletes the observations that match a filter.

    Raises:
        GalileoError: there is no filter, or nodes cannot be reached.
    """
    given = parameters.single_values(request.query_params, parameters.DELETED_ITEMS)
    schema = await client.schema(request.path_params["collectionId"])
    if not given.get("filter", "").strip():  # A blank condition would match all observations.
        raise InputError(
            "expected the parameter filter with the condition of the observations to delete, got "
            "none; filter=true deletes all observations",
            parameter="filter",
        )
    condition = await parameters.filter_of(request.query_params)
    assert condition is not None, "a filter is given"
    receipt = await client.delete(schema.name, condition)
    assert receipt.evaluated is not None, "a condition is evaluated at a cursor"
    evaluated = tokens.encode(schema.key, receipt.evaluated)
    body = json.dumps({"deleted": receipt.rows, "evaluated": evaluated})
    return Response(body, media_type=documents.JSON)


def gone(schema: Schema, name: str) -> Response:
    """The answer about an id whose key has no observation."""
    text = f"dataset {schema.name!r} has no observation {name!r:.100}, or it was deleted"
    return problem(HTTPStatus.NOT_FOUND, text)


async def token_headers(client: AsyncClient, schema: Schema) -> Mapping[str, str]:
    """The header with the token of what a keyed dataset has now; none of other datasets.

    What is read afterwards is as of this token or later.
    """
    if not schema.is_keyed:
        return {}
    version = await client.version(schema.name)
    return token_header(schema, version.cursor)


def token_header(schema: Schema, cursor: Cursor) -> Mapping[str, str]:
    """The header with the token of a cursor of a keyed dataset; none of other datasets."""
    return {TOKEN_HEADER: tokens.encode(schema.key, cursor)} if schema.is_keyed else {}


def unchanged_since(headers: Headers, schema: Schema) -> Cursor | None:
    """The cursor of the header `If-Match`; None if there is none.

    Raises:
        InputError: it is something else, or the dataset has no key.
    """
    if IF_MATCH not in headers:
        return None
    text = ", ".join(headers.getlist(IF_MATCH)).strip()
    if not schema.is_keyed:
        error = not_keyed(schema)
        raise InputError(error.message, **{**error.details, "parameter": IF_MATCH})
    try:
        if len(text) < 2 or not text[0] == text[-1] == '"':
            raise InvalidToken("it is not in quotation marks")
        return tokens.decode(text[1:-1], ccq_id=schema.key)
    except InvalidToken as error:
        raise InputError(
            f"expected {IF_MATCH} as the {TOKEN_HEADER} of an earlier answer about dataset "
            f'{schema.name!r}, in quotation marks, such as "AWhvdEBtZQ", got '
            f"{text[: tokens.SHOWN_CHARS] or 'nothing'}",
            parameter=IF_MATCH,
        ) from error


async def _keyed(client: AsyncClient, request: Request) -> Schema:
    """The dataset of a request to delete an observation. Raises RequestRefused without a key."""
    schema = await client.schema(request.path_params["collectionId"])
    if schema.is_keyed:
        return schema
    raise RequestRefused(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"expected a keyed dataset, got {schema.name!r}, which has no key; its observations are "
        "deleted by a filter, and not one by one",
        Allow="GET, HEAD",
    )
