"""Answers that are small JSON documents."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galileo.gateway import documents, parameters
from galileo.gateway.formats import preferred


def check_json(request: Request, media_type: str = documents.JSON) -> None:
    """Makes sure that a request, which has no parameter but `f`, can have JSON.

    Raises:
        InputError: there is another parameter, or it names another format.
    """
    given = parameters.single_values(request.query_params, ("f",))
    preferred(given.get("f"), "", {"json": media_type})


def json_answer(document: Any, media_type: str = documents.JSON) -> Response:
    return Response(json.dumps(document), media_type=media_type)


def url_of(request: Request) -> str:
    """The URL of the gateway, as the client addresses it."""
    return str(request.base_url).rstrip("/")
