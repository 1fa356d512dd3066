"""Traces for OpenTelemetry, where somebody asks for them: this process' spans go to a collector.

Importing this imports nothing of OpenTelemetry; it is an extra (`galileo-store[otel]`).
"""

from galileo.tracing.start import NO_TRACING, Tracing, TracingOptions, start_tracing, tracing

__all__ = ["NO_TRACING", "Tracing", "TracingOptions", "start_tracing", "tracing"]
