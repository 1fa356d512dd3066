"""Every method of the descriptors, who may call it, and what becomes of a call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from grpc_reflection.v1alpha import reflection_pb2

from galileo.rpc.access import Role
from galileo.rpc.internal import SERVICE
from galileo.wire.services import HEALTH, NODE_SERVICES
from galileo.wire.status import SENDING_FAILED
from galileo.wire.v1 import channels_pb2, cluster_pb2, storage_pb2

REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
SERVICES = (*NODE_SERVICES, HEALTH, REFLECTION)
METHODS = {f"/{s.full_name}/{m.name}": m for s in SERVICES for m in s.methods}
INTERNAL = tuple(call.path for call in SERVICE.calls.values())
"""Methods of the internal service, which has no descriptor."""
PATHS = (*METHODS, *INTERNAL)

LETTERS = {
    Role.SUBSCRIBER: "u",
    Role.READER: "r",
    Role.WRITER: "w",
    Role.SAMPLER_AUTHOR: "s",
    Role.ADMIN: "a",
    Role.NODE: "n",
}
ROW = re.compile(r"^\| `(\w+/\w+)` \|(.*)\|$", re.MULTILINE)


SUBSCRIBED = {
    "Channels/Follow": channels_pb2.FollowRequest(dataset="smog", broker="subscriber"),
    "Cluster/Status": cluster_pb2.StatusRequest(caller=True),
    "Storage/Ingest": storage_pb2.IngestRequest(dataset="smog.subscriptions"),
    "Storage/ReadTable": storage_pb2.ReadTableRequest(dataset="galileo.positions"),
}
"""What subscribers may ask by methods that they may not call for anything else: here one with the
broker "subscriber".
"""


def _table() -> dict[str, set[str]]:
    """Letters of those who may call each method; "-" is a caller without any proof.

    From docs/security.md: `scripts/generate` writes its table from the policies of the methods, so
    a policy that is changed by mistake shows as a change of that page.
    """
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    columns = ("-", *LETTERS.values())
    return {
        method: {c for c, mark in zip(columns, marks.split("|"), strict=True) if mark.strip()}
        for method, marks in ROW.findall(page)
    }


TABLE = _table()


def short(method: str) -> str:
    return method.rpartition(".")[2]


def expected(method: str, letter: str) -> bool:
    # What a method of grpc's own has not in the table is denied.
    return letter in TABLE.get(short(method), set())


async def outcome(channel: grpc.aio.Channel, path: str, request: Any = None) -> grpc.StatusCode:
    """What becomes of one call, of `SUBSCRIBED` or with an empty request."""
    if path in INTERNAL:
        try:
            await channel.unary_unary(path)(b"", timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK
    method = METHODS[path]
    empty = message_factory.GetMessageClass(method.input_type)()
    sent = request or SUBSCRIBED.get(short(path), empty)
    kinds = ("unary", "stream")
    kind = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
    call = getattr(channel, kind)(
        path,
        request_serializer=type(sent).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )(iter([sent]) if method.client_streaming else sent, timeout=20)
    try:
        if method.server_streaming:
            if await call.read() is grpc.aio.EOF:
                return await call.code()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.details() == SENDING_FAILED:
            return await outcome(channel, path, request)
        return error.code()
    return grpc.StatusCode.OK
