"""Every method of the descriptors, who may call it, and what becomes of a call."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from galileo.rpc import policy
from galileo.rpc.access import Role
from galileo.wire.internal.v1 import evaluator_pb2
from galileo.wire.status import SENDING_FAILED

FILES = (*policy.FILES, evaluator_pb2, health_pb2, reflection_pb2)
SERVICES = [one for file in FILES for one in file.DESCRIPTOR.services_by_name.values()]
METHODS = {f"/{s.full_name}/{m.name}": m for s in SERVICES for m in s.methods}

# Written out once more, for a rule that is changed by mistake shall not change what is expected.
# r: reader, w: writer, s: author of samplers, a: admin, n: node, -: without any proof.
EXPECTED = """
Storage/Ingest                    w a
PeerStorage/Commit                n
Storage/Read                      r w s a n
Storage/Select                    r w s a
Storage/Scan                      r w s a n
PeerStorage/RegisterQueries       n
PeerStorage/Match                 n
Query/Run                         r w s a
Analytics/Explain                 r w s a n
Analytics/Summarise               r w s a n
Analytics/Estimate                r w s a
Analytics/Children                r w s a n
Analytics/Nearest                 r w s a n
Analytics/Describe                r w s a n
Continuous/Submit                 r w s a
Continuous/SubmitMany             r w s a
Continuous/Fetch                  r w s a n
Continuous/FetchMany              r w s a
Continuous/Watch                  r w s a
PeerContinuous/ReadHandedOffCache n
Continuous/List                   r w s a
Continuous/Cancel                 r w s a
Cluster/CreateDataset             w a n
Cluster/DropDataset               w a n
Cluster/ListDatasets              r w s a n
Cluster/Status                    r w s a n
Cluster/Topology                  r w s a n
Cluster/Drain                     a n
Cluster/SetRetention              a n
Cluster/GetRetention              r w s a
Cluster/ApplyRetention            a n
PeerCluster/Gossip                n
Partitions/Move                   a n
Migration/ListPartition           n
Migration/ReadFile                n
Migration/Checksum                n
Migration/Fence                   n
Migration/Release                 n
Migration/HandOver                n
Samplers/Upload                   s a n
Samplers/List                     r w s a
Samplers/Revoke                   a n
PeerSamplers/Get                  n
Evaluator/Evaluate
Evaluator/Ping
Health/Check                      - r w s a n
Health/Watch                      - r w s a n
ServerReflection/ServerReflectionInfo  r w s a
"""
LETTERS = {
    Role.READER: "r",
    Role.WRITER: "w",
    Role.SAMPLER_AUTHOR: "s",
    Role.ADMIN: "a",
    Role.NODE: "n",
}
TABLE = {words[0]: set(words[1:]) for words in map(str.split, EXPECTED.strip().splitlines())}


def short(method: str) -> str:
    return method.rpartition(".")[2]


def expected(method: str, letter: str) -> bool:
    # What a method of grpc's own has not in the table is denied.
    return letter in TABLE.get(short(method), set())


async def outcome(channel: grpc.aio.Channel, path: str, request: Any = None) -> grpc.StatusCode:
    """What becomes of one call."""
    method = METHODS[path]
    sent = request or message_factory.GetMessageClass(method.input_type)()
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
