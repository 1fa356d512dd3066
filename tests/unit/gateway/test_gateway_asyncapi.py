"""The AsyncAPI document: what refers to each other agrees, and events are as it says."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from fake_ccq import CCQ, labels_of

import galileo
from galileo.client.results import Notifications, Update
from galileo.cursor import CommitRange, Cursor
from galileo.errors import CcqExpired
from galileo.gateway import updates
from galileo.gateway.asyncapi import asyncapi
from galileo.gateway.notifications import item_document
from galileo.gateway.problems import problem_document
from galileo.gateway.routes import ROUTES
from galileo.gateway.updates import end_frame, event_of, frame_of, merged_frame
from galileo.model.channel import MATCHES_SCHEMA
from galileo.wire import token as tokens

SCHEMA = galileo.Schema("rain", [galileo.Feature("amount")])
DOCUMENT = asyncapi("https://gateway.example:7790/store")
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def at(reference: str) -> Any:
    place: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        place = place[part]
    return place


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if "$ref" in value else []
    return own + [found for item in value.values() for found in references(item)]


def faults(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """What of a value does not fit a schema, of the keywords that the document has."""
    known = {"type", "required", "properties", "items", "oneOf", "allOf", "$ref", "const"}
    known |= {"additionalProperties", "description", "format", "minimum"}
    assert schema.keys() <= known, schema
    found = []
    if "$ref" in schema:
        found += faults(value, at(schema["$ref"]), where)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[kind]) for kind in kinds):
        return [f"{where} is no {kinds}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{where} is not {schema['const']}")
    if isinstance(value, dict):
        found += [
            f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value
        ]
        own = schema.get("properties", {})
        rest = schema.get("additionalProperties", {})
        for name, member in value.items():
            found += faults(member, own.get(name, rest), f"{where}.{name}")
    for item in value if isinstance(value, list) else ():
        found += faults(item, schema.get("items", {}), f"{where}[]")
    for each in schema.get("allOf", ()):
        found += faults(value, each, where)
    options = schema.get("oneOf")
    if options and sum(not faults(value, each, where) for each in options) != 1:
        found.append(f"{where} fits not exactly one of {options}")
    return found


def test_references_exist_and_operations_use_messages_of_their_channels() -> None:
    for reference in references(DOCUMENT):
        at(reference)
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] == "send"
        channel = operation["channel"]["$ref"]
        for message in operation["messages"]:
            assert message["$ref"].startswith(f"{channel}/messages/")


def test_channels_are_routes_with_their_parameters() -> None:
    methods = {route.path: route.methods for route in ROUTES}
    for name, channel in DOCUMENT["channels"].items():
        assert set(re.findall(r"{(\w+)}", channel["address"])) == set(channel["parameters"])
        [operation] = [
            one
            for one in DOCUMENT["operations"].values()
            if one["channel"]["$ref"] == f"#/channels/{name}"
        ]
        assert operation["bindings"]["http"]["method"] in methods[channel["address"]]
    server = DOCUMENT["servers"]["gateway"]
    assert (server["host"], server["pathname"]) == ("gateway.example:7790", "/store")
    assert server["protocol"] == "https"


def sent(frame: bytes) -> tuple[str, Any]:
    """Name and data of an event."""
    lines = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
    return lines["event"], json.loads(lines["data"])


@pytest.mark.parametrize("is_link", [False, True])
def test_events_are_as_the_document_says(monkeypatch: pytest.MonkeyPatch, is_link: bool) -> None:
    monkeypatch.setattr(updates, "EVENT_LABELS_MAX", 0 if is_link else 10)
    token = tokens.encode(CCQ, Cursor({0: 2}))
    event = event_of("", Update(labels_of([(0, 1), (0, 2)]), token), ccq_id=CCQ)
    assert event.is_link == is_link
    expired = problem_document(CcqExpired("it has expired", ccq_id=CCQ))
    frames = {
        "query": [event.frame, end_frame(expired)],
        "queries": [merged_frame(CCQ, event), end_frame({"ccq": CCQ, **expired})],
    }
    with_left = {"rows": [[0]], "subscriptions": [["a"]], "left": [True]}
    batch = Notifications(
        partition=0,
        execution=1,
        observations=SCHEMA.observation_schema.empty_table(),
        matches=pa.table(with_left, schema=MATCHES_SCHEMA),
        token=token,
        gone=(CommitRange(0, 1, 2),),
    )
    data = item_document(batch, after="")
    frames["broker"] = [frame_of("notifications", data, token=token), end_frame(expired)]
    for name, of_channel in frames.items():
        messages = DOCUMENT["channels"][name]["messages"]
        for frame in of_channel:
            kind, data = sent(frame)
            message = at(messages[kind]["$ref"])
            assert message["name"] == kind
            assert faults(data, message["payload"]) == []
    wrong = {"token": 1, "more": False}
    assert faults(wrong, at("#/components/schemas/updateOfSeveral")), "it can find something"
