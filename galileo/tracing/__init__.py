"""Export of spans to an OpenTelemetry collector.

Importing this package does not import OpenTelemetry, which is an extra (`galileo-store[otel]`).
"""

from galileo.tracing.start import NO_TRACING, Tracing, TracingOptions, start_tracing, tracing

__all__ = ["NO_TRACING", "Tracing", "TracingOptions", "start_tracing", "tracing"]
