"""Which addresses sinks may reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy
from galileo.worker.options import WorkerOptions


@pytest.mark.parametrize(
    ("allow", "host", "address", "is_allowed"),
    [
        ([], "example.org", "93.184.216.34", True),
        ([], "example.org", "2606:2800:220:1:248:1893:25c8:1946", True),
        ([], "example.org", "127.0.0.1", False),
        ([], "example.org", "10.1.2.3", False),
        ([], "example.org", "169.254.169.254", False),
        ([], "example.org", "fe80::1%eth0", False),
        ([], "example.org", "::ffff:127.0.0.1", False),
        ([], "example.org", "0.0.0.0", False),
        ([], "example.org", "224.0.0.1", False),
        (["10.0.0.0/8"], "example.org", "10.1.2.3", True),
        (["10.0.0.0/8"], "example.org", "::ffff:10.1.2.3", True),
        (["10.0.0.0/8"], "example.org", "192.168.1.1", False),
        (["sink.internal"], "SINK.internal", "192.168.1.1", True),
        (["sink.internal"], "other.internal", "192.168.1.1", False),
        (["::1"], "localhost", "::1", True),
    ],
)
def test_public_and_named_addresses_are_allowed(
    allow: list[str], host: str, address: str, is_allowed: bool
) -> None:
    policy = AddressPolicy(allow)
    if is_allowed:
        policy.check(host, [address])
        return
    with pytest.raises(ConfigError):
        policy.check(host, [address])


def test_each_address_of_a_host_counts() -> None:
    with pytest.raises(ConfigError):
        AddressPolicy([]).check("example.org", ["93.184.216.34", "127.0.0.1"])


@pytest.mark.parametrize("text", ["10.0.0.0/99", "", "10.0.0.1/8"])
def test_what_looks_like_a_network_has_to_be_one(text: str) -> None:
    with pytest.raises(ConfigError):
        AddressPolicy([text])


def test_secrets_are_files(tmp_path: Path) -> None:
    (tmp_path / "ops").write_text(" whsec_abc\n")
    (tmp_path / "empty").write_text("\n")
    options = WorkerOptions(secrets=tmp_path)
    assert options.secret("ops") == "whsec_abc"
    for name in ("empty", "absent"):
        with pytest.raises(ConfigError):
            options.secret(name)
    with pytest.raises(ConfigError):
        WorkerOptions().secret("ops")
