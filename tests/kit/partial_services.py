"""Servers of test doubles that have some methods of a service."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from galileo.wire.services import handler


def add_part(service: ServiceDescriptor, servicer: Any, server: grpc.aio.Server) -> None:
    """Serves the methods that a double has; a call of another one is answered UNIMPLEMENTED."""
    handlers = {
        method.name: handler(method, getattr(servicer, method.name))
        for method in service.methods
        if hasattr(servicer, method.name)
    }
    server.add_registered_method_handlers(service.full_name, handlers)
