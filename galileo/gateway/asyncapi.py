"""The AsyncAPI 3.0 document of a gateway: events of continuous queries and channels.

Those of continuous queries are as OGC API EDR, Part 2, wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from galileo.gateway import parameters, problems
from galileo.gateway.documents import EVENT_STREAM, GEOJSON
from galileo.gateway.openapi import PROBLEM
from galileo.version import VERSION

_HTTP = "0.3.0"
"""Version of the bindings of HTTP."""
_TOKEN = {"type": "string", "description": "of the query: which labels a reader has"}
_CCQ = {"type": "string", "description": "the query that the event belongs to"}
_WINDOW = {
    "type": "object",
    "required": ["start", "end", "labels", "withdrawn", "state"],
    "properties": {
        "start": {"type": "string", "format": "date-time"},
        "end": {"type": "string", "format": "date-time"},
        "labels": {"type": "integer", "minimum": 0},
        "withdrawn": {"type": "integer", "minimum": 0},
        "state": {"type": "string"},
    },
}
_LINK = {
    "type": "object",
    "required": ["rel", "href", "type"],
    "properties": {name: {"type": "string"} for name in ("rel", "href", "type")},
}
_LABELS = {
    "type": "array",
    "items": {"type": "object", "required": ["type", "geometry", "properties"]},
}
_UPDATE = {
    "type": "object",
    "required": ["after", "token", "more", "frontier", "missing", "gone", "windows"],
    "properties": {
        "type": {"const": "FeatureCollection"},
        "features": {**_LABELS, "description": "the new labels: rectangles of cells"},
        "reset": {
            "type": "boolean",
            "description": "whether readers first forget all labels; each event of a keyed dataset "
            "says it, and of others those where it is true",
        },
        "withdrawn": {
            **_LABELS,
            "description": "labels that match or count no more, if there are some",
        },
        "numberReturned": {"type": "integer", "minimum": 0},
        "numberMatched": {
            "type": "integer",
            "description": "number of the new labels, in place of features",
        },
        "links": {"type": "array", "description": "where these labels are", "items": _LINK},
        "after": {**_TOKEN, "description": "the token before the event"},
        "token": {**_TOKEN, "description": "the token after the event"},
        "more": {"type": "boolean"},
        "frontier": {
            "type": "object",
            "description": "the last commit of each partition that was looked at",
            "additionalProperties": {"type": "integer"},
        },
        "missing": {"type": "array", "items": {"type": "integer"}},
        "gone": {"type": "array", "items": {"type": "object"}},
        "windows": {"type": "array", "items": _WINDOW},
        "clock": {"type": ["string", "null"], "format": "date-time"},
        "age": {"type": "number", "description": "seconds since the frontier was reached"},
        "interval": {"type": "number", "description": "seconds between evaluations"},
    },
    "oneOf": [{"required": ["features"]}, {"required": ["numberMatched", "links"]}],
}
_BEHIND = {
    "type": "object",
    "required": ["after", "numberMatched", "links"],
    "properties": {
        "after": {**_TOKEN, "description": "the token of the reader"},
        "numberMatched": {"type": "integer", "description": "number of the labels"},
        "links": {"type": "array", "description": "where these labels are", "items": _LINK},
    },
}
_MATCH = {
    "type": "object",
    "description": "each of the rows with each of the subscriptions",
    "required": ["rows", "subscriptions"],
    "properties": {
        "rows": {
            "type": "array",
            "description": "numbers of features, from 0",
            "items": {"type": "integer", "minimum": 0},
        },
        "subscriptions": {"type": "array", "items": {"type": "string"}},
        "left": {"type": "boolean", "description": "they match no longer"},
    },
}
_NOTIFICATIONS = {
    "type": "object",
    "required": ["type", "features", "matches", "partition", "execution", "after", "token", "gone"],
    "properties": {
        "type": {"const": "FeatureCollection"},
        "features": {
            "type": "array",
            "description": "the observations: points, or without a geometry",
            "items": {"type": "object", "required": ["type", "geometry", "properties"]},
        },
        "matches": {"type": "array", "items": _MATCH},
        "numberReturned": {"type": "integer", "minimum": 0},
        "notifications": {
            "type": "integer",
            "description": "pairs of an observation and a subscription",
            "minimum": 0,
        },
        "partition": {"type": "integer", "minimum": 0},
        "execution": {"type": "integer", "minimum": 0},
        "gone": {"type": "array", "items": {"type": "object"}},
        "after": {"type": "string", "description": "the token before the event"},
        "token": {"type": "string", "description": "the token after the event"},
    },
}
_OF_QUERY = {name: name for name in ("update", "behind", "end")}
_OF_SEVERAL = {name: f"{name}OfSeveral" for name in _OF_QUERY}
_OF_BROKER = {"notifications": "notifications", "end": "end"}


def asyncapi(url: str) -> dict[str, Any]:
    """The document of the gateway at a URL."""
    where = urlsplit(url)
    server = {"host": where.netloc, "pathname": where.path or "/", "protocol": where.scheme}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Galileo: events of continuous queries and channels",
            "version": VERSION,
            "description": "Server-sent events: the lines 'event' name the message, the lines "
            "'data' have its payload.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "gateway": {**server, "security": _refs("securitySchemes", "token", "password")}
        },
        "channels": {
            "query": _channel(
                "/ccqs/{ccqId}/events", "Events of a continuous query", _OF_QUERY, "ccqId"
            ),
            "queries": _channel("/events", "Events of several continuous queries", _OF_SEVERAL),
            "broker": _channel(
                "/channels/{channelId}/brokers/{brokerId}/events",
                "Notifications of a broker of a channel",
                _OF_BROKER,
                *("channelId", "brokerId"),
            ),
        },
        "operations": {
            "sendEvents": _operation("query", "GET", _OF_QUERY),
            "sendEventsOfSeveral": _operation("queries", "POST", _OF_SEVERAL),
            "sendNotifications": _operation("broker", "GET", _OF_BROKER),
        },
        "components": {
            "messages": _messages(),
            "schemas": {
                "update": _UPDATE,
                "updateOfSeveral": _of_several("update"),
                "behind": _BEHIND,
                "behindOfSeveral": _of_several("behind"),
                "notifications": _NOTIFICATIONS,
                "problem": PROBLEM,
                "problemOfSeveral": _of_several("problem"),
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _channel(
    address: str, summary: str, messages: Mapping[str, str], *names: str
) -> dict[str, Any]:
    """A channel.

    Args:
        address: its path.
        summary: what it has.
        messages: their names in the document, by their names in the channel.
        *names: of the parameters of the path.
    """
    return {
        "address": address,
        "summary": summary,
        "servers": [{"$ref": "#/servers/gateway"}],
        "parameters": {
            name: {"description": parameters.TABLE[name]["description"]} for name in names
        },
        "messages": {
            name: {"$ref": f"#/components/messages/{message}"} for name, message in messages.items()
        },
    }


def _operation(channel: str, method: str, messages: Iterable[str]) -> dict[str, Any]:
    """The gateway sends; `method` is that of the request for the stream."""
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": f"A stream of type {EVENT_STREAM}",
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        "bindings": {"http": {"method": method, "bindingVersion": _HTTP}},
    }


def _messages() -> dict[str, Any]:
    payload = {"$ref": "#/components/schemas/notifications"}
    summary = "Observations that match, and for which subscriptions"
    made = {"notifications": _message("notifications", summary, payload)}
    for suffix in ("", "OfSeveral"):
        payload = {"$ref": f"#/components/schemas/update{suffix}"}
        made[f"update{suffix}"] = _message("update", "New labels, or how far it is", payload)
        payload = {"$ref": f"#/components/schemas/behind{suffix}"}
        made[f"behind{suffix}"] = _message(
            "behind",
            "Of a keyed dataset: too much is new for an event; read it by the link",
            payload,
        )
        payload = {"$ref": f"#/components/schemas/problem{suffix}"}
        made[f"end{suffix}"] = _message(
            "end", "The last event: the problem that ends the stream", payload
        )
    return made


def _message(name: str, summary: str, payload: dict[str, Any]) -> dict[str, Any]:
    media_type = problems.MEDIA_TYPE if name == "end" else GEOJSON
    return {"name": name, "summary": summary, "contentType": media_type, "payload": payload}


def _of_several(name: str) -> dict[str, Any]:
    """The payload of a stream of several queries, which names its query."""
    ccq = {"type": "object", "required": ["ccq"], "properties": {"ccq": _CCQ}}
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}, ccq]}


def _refs(kind: str, *names: str) -> list[dict[str, str]]:
    return [{"$ref": f"#/components/{kind}/{name}"} for name in names]
