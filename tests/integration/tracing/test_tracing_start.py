"""Where spans go, and that nothing of OpenTelemetry is there until they do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from expected_errors import raises

from galileo import spans
from galileo.errors import ConfigError
from galileo.tracing import TracingOptions, start_tracing
from galileo.tracing.start import collector_of


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:4317", ("127.0.0.1:4317", False)),
        ("http://localhost", ("localhost:4317", False)),
        ("https://collector.example:443/", ("collector.example:443", True)),
        ("http://[::1]:9", ("[::1]:9", False)),
    ],
)
def test_collector_of_an_endpoint_is_its_address_and_tls(
    endpoint: str, expected: tuple[str, bool]
) -> None:
    assert collector_of(endpoint) == expected
    TracingOptions(endpoint).check()


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:4317", "ftp://a", "http://", "http://a:x", "http://a/v1/traces", "http://u:p@a"],
)
def test_tracing_options_with_an_invalid_endpoint_are_refused(endpoint: str) -> None:
    with raises(ConfigError, key="tracing.endpoint"):
        TracingOptions(endpoint).check()


def test_tracing_options_for_another_host_require_tls_or_insecure() -> None:
    with raises(ConfigError, key="tracing.insecure"):
        TracingOptions("http://10.0.0.9:4317").check()
    TracingOptions("http://10.0.0.9:4317", insecure=True).check()
    TracingOptions("https://10.0.0.9:4317").check()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_tracing_options_with_an_invalid_ratio_are_refused(ratio: float) -> None:
    with raises(ConfigError, key="tracing.ratio"):
        TracingOptions("http://127.0.0.1:4317", ratio).check()


def test_start_tracing_without_an_endpoint_starts_nothing() -> None:
    assert start_tracing(TracingOptions(), service="x") is None
    assert not spans.is_on()


@pytest.mark.slow
def test_opentelemetry_is_not_imported_without_tracing() -> None:
    code = (
        "import sys, galileo, galileo.server.main, galileo.spark.evaluator, galileo.cli.main\n"
        "sys.exit(sum(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_start_tracing_without_the_extra_names_the_command() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from galileo.tracing import TracingOptions, start_tracing\n"
        "try: start_tracing(TracingOptions('http://127.0.0.1:4317'), service='x')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'galileo-store[otel]'" in done.stdout
