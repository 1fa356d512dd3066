"""A collector of OpenTelemetry: a gRPC server that takes spans over OTLP and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_pb2_grpc

WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A span as it came in."""

    trace: str
    id: str
    parent: str
    name: str
    service: str
    node: str
    took_s: float
    begun_s: float
    is_error: bool
    facts: dict[str, Any]


class Collector(service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Listens from the moment it is made until it is stopped."""

    def __init__(self, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._spans: list[RecordedSpan] = []
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)]
        )
        service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                of = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [_to_span(one, of) for one in scope.spans]
        return service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[RecordedSpan]:
        with self._lock:
            return list(self._spans)

    def trace_with(self, holds: Callable[[list[RecordedSpan]], bool]) -> list[RecordedSpan]:
        """The spans of the first trace of which something holds, as soon as one is there."""
        found = self.find(holds, within_s=WITHIN_S)
        assert found, [sorted({one.name for one in trace}) for trace in self.traces()]
        return found

    def find(
        self, holds: Callable[[list[RecordedSpan]], bool], *, within_s: float
    ) -> list[RecordedSpan] | None:
        """The same, or None where there is none in time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for trace in self.traces():
                if holds(trace):
                    return trace
            time.sleep(0.1)
        return None

    def traces(self) -> list[list[RecordedSpan]]:
        found: dict[str, list[RecordedSpan]] = {}
        for one in self.spans():
            found.setdefault(one.trace, []).append(one)
        return list(found.values())

    def stop(self) -> None:
        self._server.stop(0).wait()


def _to_span(span: Any, of: dict[str, str]) -> RecordedSpan:
    facts = {one.key.removeprefix("galileo."): _value(one.value) for one in span.attributes}
    return RecordedSpan(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        service=of["service.name"],
        node=of.get("service.instance.id", ""),
        took_s=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        begun_s=span.start_time_unix_nano / 1e9,
        is_error=span.status.code == 2,
        facts=facts,
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
