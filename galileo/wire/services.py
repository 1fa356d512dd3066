"""The services of the protocol: stubs for those who call them, and handlers for servers.

Both are made from the descriptors in the generated `*_pb2.py`, which know each method's name,
messages and streams. Callers and servers therefore name a service by its descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from galileo.wire.v1 import (
    analytics_pb2,
    channels_pb2,
    cluster_pb2,
    continuous_pb2,
    partitions_pb2,
    query_pb2,
    samplers_pb2,
    storage_pb2,
)
from galileo.wire.zero_copy import deserializer, serializer

ANALYTICS = analytics_pb2.DESCRIPTOR.services_by_name["Analytics"]
CHANNELS = channels_pb2.DESCRIPTOR.services_by_name["Channels"]
CLUSTER = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"]
CONTINUOUS = continuous_pb2.DESCRIPTOR.services_by_name["Continuous"]
PARTITIONS = partitions_pb2.DESCRIPTOR.services_by_name["Partitions"]
QUERY = query_pb2.DESCRIPTOR.services_by_name["Query"]
SAMPLERS = samplers_pb2.DESCRIPTOR.services_by_name["Samplers"]
STORAGE = storage_pb2.DESCRIPTOR.services_by_name["Storage"]
NODE_SERVICES = (
    *(STORAGE, QUERY, ANALYTICS, CONTINUOUS),
    *(CLUSTER, PARTITIONS, CHANNELS, SAMPLERS),
)
"""The services of a node in protobuf, without health and reflection, which are gRPC's own; the
internal service is in `galileo.rpc.internal`."""

INTERNAL_SERVICE = "galileo.internal"
"""The full name of the service whose calls `galileo.rpc.internal` defines."""
EVALUATOR_SERVICE = "galileo.evaluator"
"""The full name of the service whose calls `galileo.spark.launcher` defines."""
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

_KINDS = ("unary", "stream")


def stub_of(service: ServiceDescriptor, channel: Any) -> SimpleNamespace:
    """The methods of a service at a server, as attributes; each makes a call.

    Args:
        service: its descriptor.
        channel: of `grpc` or `grpc.aio`.
    """
    return SimpleNamespace(**{m.name: _callable(m, channel) for m in service.methods})


def add_service(service: ServiceDescriptor, servicer: object, server: grpc.aio.Server) -> None:
    """Has a server answer the calls of a service.

    Args:
        service: its descriptor.
        servicer: has a function with the name of each method.
        server: has not started yet.

    Raises:
        AttributeError: the servicer lacks a method.
    """
    handlers = {m.name: handler(m, getattr(servicer, m.name)) for m in service.methods}
    server.add_registered_method_handlers(service.full_name, handlers)


def handler(
    method: MethodDescriptor, function: Callable[..., Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler by which a server answers the calls of a method with a function."""
    make = getattr(grpc, f"{_kind(method)}_rpc_method_handler")
    return make(
        function,
        request_deserializer=deserializer(GetMessageClass(method.input_type)),
        response_serializer=serializer(GetMessageClass(method.output_type)),
    )


def _callable(method: MethodDescriptor, channel: Any) -> Any:
    return getattr(channel, _kind(method))(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=serializer(GetMessageClass(method.input_type)),
        response_deserializer=deserializer(GetMessageClass(method.output_type)),
    )


def _kind(method: MethodDescriptor) -> str:
    """Whether requests and answers are streams, in gRPC's words, for example "unary_stream"."""
    return f"{_KINDS[method.client_streaming]}_{_KINDS[method.server_streaming]}"
