"""The OpenAPI 3.0 document of a gateway, from the table of routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from galileo.gateway import parameters, problems
from galileo.gateway.documents import HTML
from galileo.gateway.routes import ROUTES, RouteInfo, path_parameters
from galileo.version import VERSION

PROBLEM = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "kind": {"type": "string", "description": "the kind of the error, see docs/errors.md"},
        "details": {"type": "object"},
        "request": {"type": "string", "description": "its id in the logs"},
    },
}


def openapi(url: str) -> dict[str, Any]:
    """The document of the gateway at a URL."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "Galileo", "version": VERSION},
        "servers": [{"url": url}],
        "security": [{"token": []}, {"password": []}, {}],
        "paths": {route.path: _operations(route) for route in ROUTES},
        "components": {
            "parameters": {name: _parameter(name) for name in parameters.TABLE},
            "schemas": {"problem": PROBLEM},
            "responses": {
                "problem": {
                    "description": "The request failed.",
                    "content": {
                        problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/problem"}},
                        HTML: {},
                    },
                }
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, **parameters.TABLE[name]}


def _listed(name: str, method: str) -> dict[str, Any]:
    """A parameter of a method, as its operation lists it."""
    if method == "DELETE" and name == "filter":  # Without one, everything would be deleted.
        return {**_parameter(name), "required": True}
    return {"$ref": f"#/components/parameters/{name}"}


def _operations(route: RouteInfo) -> dict[str, Any]:
    return {method.lower(): _operation(route, method) for method in route.methods}


def _operation(route: RouteInfo, method: str) -> dict[str, Any]:
    is_get = method == "GET"
    statuses = [status for name, status in route.statuses if name == method] or [HTTPStatus.OK]
    names = (*path_parameters(route), *route.parameters_of(method))
    listed = [_listed(name, method) for name in names]
    if route.more_parameters and is_get:
        listed.append(
            {
                "name": "feature",
                "in": "query",
                "description": "Equality of an indexed feature, such as station=KDEN.",
                "schema": {"type": "object", "additionalProperties": {"type": "string"}},
                "style": "form",
                "explode": True,
            }
        )
    operation: dict[str, Any] = {
        "operationId": route.name if is_get else f"{route.name}_{method.lower()}",
        "summary": route.summary,
        "parameters": listed,
        "responses": {
            **{str(int(status)): _success(route, method, status) for status in statuses},
            "default": {"$ref": "#/components/responses/problem"},
        },
    }
    if method in ("POST", "PUT", "PATCH"):
        content: dict[str, Any] = {media_type: {} for media_type in route.request_types}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _success(route: RouteInfo, method: str, status: int) -> dict[str, Any]:
    has_body = status != HTTPStatus.NO_CONTENT
    media_types = () if method == "GET" else route.body_answers
    content: dict[str, Any] = {name: {} for name in media_types or route.media_types}
    return {"description": route.summary, **({"content": content} if has_body else {})}
