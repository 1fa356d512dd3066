"""Headers of proxies: who is believed, and which element of a list counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from expected_errors import raises

from galileo.errors import ConfigError, InputError
from galileo.http_serving.proxies import ForwardedRequest, TrustedProxies

PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"])
WHOLE = ForwardedRequest("192.0.2.7", "https", "maps.example", "/geo")


def x(*, host: str = "maps.example", **others: str) -> dict[str, str]:
    given = {"for": "192.0.2.7", "proto": "https", "host": host, "prefix": "/geo", **others}
    return {f"x-forwarded-{name}": value for name, value in given.items()}


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        ({}, ForwardedRequest()),
        (x(), WHOLE),
        (x(prefix="/geo/"), WHOLE),
        ({"x-forwarded-proto": "https"}, ForwardedRequest(scheme="https")),
        (
            {"forwarded": 'for=192.0.2.7;proto=https;host="maps.example:8443"'},
            ForwardedRequest("192.0.2.7", "https", "maps.example:8443"),
        ),
        ({"forwarded": 'For="[2001:dba::1]:4711"'}, ForwardedRequest("2001:dba::1")),
        ({"forwarded": "for=192.0.2.7:80, for=10.1.1.1"}, ForwardedRequest("192.0.2.7")),
        # What a client claims stands before what the first named proxy wrote.
        (
            {"forwarded": "for=1.1.1.1;host=evil, for=192.0.2.7;host=maps.example;proto=https"},
            ForwardedRequest("192.0.2.7", "https", "maps.example"),
        ),
        (
            {"forwarded": "for=1.1.1.1;host=evil, for=192.0.2.7;proto=https"},
            ForwardedRequest("192.0.2.7", "https"),
        ),
        (
            x(**{"for": "1.1.1.1, 192.0.2.7, 10.0.0.9", "host": "evil, maps.example, inner"}),
            WHOLE,
        ),
        (x(**{"for": "1.1.1.1, 192.0.2.7", "host": "evil, maps.example"}), WHOLE),
        (x(**{"for": "10.0.0.1, 10.0.0.2"}), replace(WHOLE, client="10.0.0.1")),
        ({"x-forwarded-for": "unknown"}, ForwardedRequest("unknown")),
    ],
)
def test_element_of_the_last_named_proxy_counts(
    headers: dict[str, str], read: ForwardedRequest
) -> None:
    for peer in ("127.0.0.1", "::ffff:127.0.0.1", "10.2.3.4", "2001:db8::7"):
        assert PROXIES.read(peer, headers) == read
    for peer in ("192.0.2.1", "::1", "", "localhost"):
        assert PROXIES.read(peer, headers) == ForwardedRequest(), "not one that was named"


@pytest.mark.parametrize(
    "headers",
    [
        {**x(), "forwarded": "for=192.0.2.7"},
        x(proto="gopher"),
        x(host="maps.example/path"),
        x(host="user@maps.example"),
        x(prefix="//evil.example"),
        x(prefix="geo"),
        {"forwarded": "for=192.0.2.7 host=maps.example"},
        {"forwarded": 'host="maps.example'},
        {"forwarded": "for=192.0.2.7;host=a b"},
    ],
)
def test_malformed_headers_of_a_proxy_are_refused(headers: dict[str, str]) -> None:
    with raises(InputError, parameter="Forwarded"):
        PROXIES.read("127.0.0.1", headers)
    assert PROXIES.read("192.0.2.1", headers) == ForwardedRequest()


@pytest.mark.parametrize("network", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", ""])
def test_proxy_that_is_no_network_is_refused(network: str) -> None:
    with raises(ConfigError, expected="network"):
        TrustedProxies([network])
