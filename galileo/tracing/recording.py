"""A recorder of spans by OpenTelemetry's SDK, which exports them over OTLP in a thread of its own.

Ended spans enter a bounded queue and are dropped if it is full, so that a collector never delays
requests. An unreachable collector is logged once, and once when it is back.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from galileo import request_id, spans
from galileo.spans import Fact, Kind
from galileo.version import VERSION

QUEUE_MAX = 4_096
"""Queued spans."""
BATCH_MAX = 512
DELAY_MS = 500
EXPORT_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 3.0
_KINDS = {"inside": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}

log = logging.getLogger(__name__)


class _Span:
    __slots__ = ("_span", "traceparent")

    def __init__(self, made: trace.Span) -> None:
        self._span = made
        of = made.get_span_context()
        self.traceparent = f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"

    def note(self, name: str, fact: Fact) -> None:
        self._span.set_attribute(f"galileo.{name}", fact)

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(ended_ns)


class Recording:
    """Records the spans of this process.

    Args:
        address: `host:port` of the collector.
        is_tls: whether to use TLS, with the certificates that this machine trusts.
        ratio: the recorded share of traces that begin here.
        service, node: resource attributes of this process.
    """

    def __init__(
        self, address: str, *, is_tls: bool, ratio: float, service: str, node: str
    ) -> None:
        # `_LoggingExporter` logs failures once; the SDK would log each attempt.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        facts = {"service.name": service, "service.version": VERSION}
        if node:
            facts["service.instance.id"] = node
        self._provider = TracerProvider(
            resource=Resource.create(facts),
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            shutdown_on_exit=False,
            id_generator=_SystemIdGenerator(),
        )
        exporter = OTLPSpanExporter(endpoint=address, insecure=not is_tls, timeout=EXPORT_TIMEOUT_S)
        self._exporter = _LoggingExporter(exporter, address)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=QUEUE_MAX,
                schedule_delay_millis=DELAY_MS,
                max_export_batch_size=BATCH_MAX,
                export_timeout_millis=1e3 * EXPORT_TIMEOUT_S,
            )
        )
        self._tracer = self._provider.get_tracer("galileo", VERSION)

    def begin(
        self, name: str, *, parent: str, kind: Kind, begun_ns: int | None, facts: dict[str, Fact]
    ) -> _Span:
        attributes = {f"galileo.{key}": fact for key, fact in facts.items()}
        if request := request_id.current():
            attributes["galileo.request"] = request
        context = trace.set_span_in_context(_parent(parent)) if parent else Context()
        span = self._tracer.start_span(
            name,
            context=context,
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=begun_ns,
        )
        return _Span(span)

    def close(self) -> None:
        spans.record_with(None)
        # The SDK waits for its exporter without a timeout.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)
        # Drops the spans that the SDK would otherwise try to export for another 16 s.
        self._exporter.shutdown()


def _parent(traceparent: str) -> trace.Span:
    _, trace_id, span_id, flags = traceparent.split("-")
    return NonRecordingSpan(
        SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(flags, 16)),
        )
    )


class _SystemIdGenerator(RandomIdGenerator):
    """Draws ids from the system, as the SDK's generator shares `random` with the program.

    A program that seeds `random` would get the same ids in each run, and other numbers with tracing
    than without.
    """

    def generate_span_id(self) -> int:
        return 1 + secrets.randbelow(2**64 - 1)

    def generate_trace_id(self) -> int:
        return 1 + secrets.randbelow(2**128 - 1)


class _LoggingExporter(SpanExporter):
    """Logs when a collector becomes unreachable, and when it is back."""

    def __init__(self, exporter: SpanExporter, address: str) -> None:
        self._exporter = exporter
        self._address = address
        self._is_failing = False
        self._is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._is_closed:
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            log.debug("cannot export spans", exc_info=error)
            result = SpanExportResult.FAILURE
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            log.warning("cannot export spans to %s; dropping them", self._address)
        elif self._is_failing and not is_failing:
            log.info("exporting spans to %s again", self._address)
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._is_closed = True
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
