"""What proxies in front of a server say of a request: who sent it, and to which address.

A proxy says it in `Forwarded` (RFC 7239) or in `X-Forwarded-*`, and any client can write these, so
they count if the connection is that of a proxy that was named. Each proxy appends what it knows to
what it was sent. The elements are therefore read from the end, as far as named proxies wrote them.
A proxy that writes one kind of header passes on what a client wrote in the other, so a request with
both kinds is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from galileo.errors import ConfigError, InputError

_PREFIXED = {name: f"x-forwarded-{name}" for name in ("for", "proto", "host", "prefix")}
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[^\s;,"]*)'
_PAIR = rf"\s*[\w-]+={_VALUE}\s*"
_FORWARDED = re.compile(rf"{_PAIR}(?:[;,]{_PAIR})*", re.ASCII)
_NAMED = re.compile(rf"([;,]?)\s*([\w-]+)=({_VALUE})", re.ASCII)
_FORMS = {
    "proto": re.compile(r"https?"),
    "host": re.compile(r"(?:[\w.-]+|\[[\dA-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII),
    "prefix": re.compile(r"(?:/[\w.~-]+)*/?", re.ASCII),
}


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """What proxies say of a request; "" for what they do not say.

    Attributes:
        client: address of its sender.
        scheme: "http" or "https".
        host: as the sender's `Host` header has it.
        prefix: of its path, which the proxy took away.
    """

    client: str = ""
    scheme: str = ""
    host: str = ""
    prefix: str = ""


class TrustedProxies:
    """The proxies whose headers count.

    Args:
        networks: addresses, or networks such as "10.0.0.0/8".

    Raises:
        ConfigError: one is neither.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        try:
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            raise ConfigError(
                f"expected addresses or networks of proxies, such as 10.0.0.0/8: {error}",
                expected="network",
            ) from error

    def read(self, peer: str, headers: Mapping[str, str]) -> ForwardedRequest:
        """What the proxies of a request say; nothing if the peer is none of them.

        Args:
            peer: address of the other end of the connection.
            headers: by their names in lower case; those of one name joined by commas.

        Raises:
            InputError: the headers are malformed, or of both kinds.
        """
        if not self._trusts(peer):
            return ForwardedRequest()
        lists = _lists(headers)
        senders = [_address(sender) for sender in lists["for"]]
        hop = 0
        while hop + 1 < len(senders) and self._trusts(senders[-1 - hop]):
            hop += 1
        # A proxy may replace what it was sent where others append, so a list can be shorter.
        values = {
            name: found[-1 - hop] if len(found) > hop else found[0] if found else ""
            for name, found in lists.items()
        }
        for name, form in _FORMS.items():
            if values[name] and not form.fullmatch(values[name]):
                raise _malformed(f"{name} of a forwarded request", values[name])
        return ForwardedRequest(
            client=senders[-1 - hop] if senders else "",
            scheme=values["proto"],
            host=values["host"],
            prefix=values["prefix"].rstrip("/"),
        )

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:  # A name, or "unknown".
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._networks)


def _lists(headers: Mapping[str, str]) -> dict[str, list[str]]:
    """What each proxy has written, by the names of the parameters of `Forwarded`."""
    given = {
        name: [part.strip() for part in headers[header].split(",")]
        for name, header in _PREFIXED.items()
        if header in headers
    }
    text = headers.get("forwarded")
    if text is not None and given:
        raise InputError(
            "expected Forwarded or X-Forwarded-* of a proxy, got both; let the proxy remove those "
            "that it does not write",
            parameter="Forwarded",
        )
    if text is not None:
        if not _FORWARDED.fullmatch(text):
            raise _malformed("Forwarded", text)
        for separator, name, value in _NAMED.findall(text):
            if separator != ";":  # Each element has each name, so that the lists are as long.
                for values in (given.setdefault(one, []) for one in _PREFIXED):
                    values.append("")
            plain = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            given.setdefault(name.lower(), [""])[-1] = plain
    return {name: given.get(name, []) for name in _PREFIXED}


def _address(sender: str) -> str:
    """An address without its port; other names as they are."""
    match = re.fullmatch(r"\[(.+)\](?::\d+)?|([\d.]+):\d+", sender)
    return (match[1] or match[2]) if match else sender


def _malformed(header: str, text: str) -> InputError:
    return InputError(f"expected a well-formed {header}, got {text!r:.200}", parameter="Forwarded")
