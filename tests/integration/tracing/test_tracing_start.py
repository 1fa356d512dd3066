"""Where spans go, and that nothing of OpenTelemetry is there until they do."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
def test_where_a_collector_is(endpoint: str, expected: tuple[str, bool]) -> None:
    assert collector_of(endpoint) == expected
    TracingOptions(endpoint).check()


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:4317", "ftp://a", "http://", "http://a:x", "http://a/v1/traces", "http://u:p@a"],
)
def test_what_is_no_collector(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="expected a collector as http://host:4317"):
        TracingOptions(endpoint).check()


def test_a_collector_elsewhere_needs_tls_or_a_word() -> None:
    with pytest.raises(ConfigError, match=r"tracing\.insecure = true"):
        TracingOptions("http://10.0.0.9:4317").check()
    TracingOptions("http://10.0.0.9:4317", insecure=True).check()
    TracingOptions("https://10.0.0.9:4317").check()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_what_is_no_ratio(ratio: float) -> None:
    with pytest.raises(ConfigError, match="ratio of 0 to 1"):
        TracingOptions("http://127.0.0.1:4317", ratio).check()


def test_without_an_endpoint_nothing_starts() -> None:
    assert start_tracing(TracingOptions(), service="x") is None
    assert not spans.is_on()


@pytest.mark.slow
def test_nothing_of_opentelemetry_is_imported_until_it_is_wanted() -> None:
    code = (
        "import sys, galileo, galileo.server.main, galileo.spark.evaluator, galileo.cli.main\n"
        "sys.exit(sum(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_lacks_is_told_with_what_to_do() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from galileo.tracing import TracingOptions, start_tracing\n"
        "try: start_tracing(TracingOptions('http://127.0.0.1:4317'), service='x')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'galileo-store[otel]'" in done.stdout
