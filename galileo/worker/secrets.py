"""The secrets of sinks, each bound to a kind of sink and to hosts.

Who creates a broker names a secret, and chooses the host that gets it. So the operator of the
worker says in a file of rules, in TOML, which sinks may use which secret:

    [ops]
    file = "ops.secret"  # Relative to the file of rules.
    kind = "mqtt"
    hosts = ["mqtt.example.org"]  # With * and ? as in grants.

`insecure = true` also sends the secret over connections without TLS. Rules and secrets are read
again for each request of a webhook, and each connection of others.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from galileo.errors import ConfigError
from galileo.model.broker import Kafka, Mqtt, Webhook
from galileo.redaction import hide

SECRET_BYTES_MAX = 64 << 10
"""Bytes of the file of a secret, and of that of the rules."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that a kind of sink may use.

    Attributes:
        name: of its rule.
        hosts: patterns of the hosts that it is for.
        insecure: whether it is also sent without TLS.
    """

    name: str
    hosts: tuple[str, ...]
    insecure: bool
    _text: str = field(repr=False)

    def text_for(self, host: str) -> str:
        """The text of the secret, without space around it.

        Raises:
            ConfigError: it is not for this host.
        """
        if not any(fnmatchcase(host.lower(), pattern.lower()) for pattern in self.hosts):
            wanted = f"a host that the secret {self.name!r} is for, got {host!r}"
            raise _wrong(f"{wanted}; add the host to its rule, or name another secret")
        return self._text


def read_secret(rules: Path | None, sink: Webhook | Mqtt | Kafka) -> Secret | None:
    """The secret that a sink names; None if it names none.

    Raises:
        ConfigError: no rule binds the secret to this kind of sink, or its file cannot be read.
    """
    name = sink.secret
    if not name:
        return None
    if rules is None:
        raise _wrong(f"a file of rules with the secret {name!r}; start the worker with one")
    rule = _rule(rules, name)
    if rule["kind"] != sink.kind:
        raise _wrong(
            f"a secret of the kind {sink.kind!r}, got {name!r} of the kind {rule['kind']!r}"
        )
    text = _read(rules.parent / rule["file"], f"the secret {name!r}").strip()
    if not text:
        raise _wrong(f"a text in the file of the secret {name!r}")
    hide(text, *text.splitlines())
    return Secret(name, tuple(rule["hosts"]), rule.get("insecure", False), text)


def _rule(rules: Path, name: str) -> dict[str, Any]:
    """The rule of a secret."""
    try:
        rule = tomllib.loads(_read(rules, "the rules of secrets")).get(name)
    except tomllib.TOMLDecodeError:  # Its message quotes the file, in which there may be a secret.
        raise _wrong(f"TOML in {rules}") from None
    shape = {"file": str, "kind": str, "hosts": list, "insecure": bool}
    if (
        not isinstance(rule, dict)
        or not {"file", "kind", "hosts"} <= rule.keys() <= shape.keys()
        or any(type(value) is not shape[key] for key, value in rule.items())
        or not all(isinstance(host, str) for host in rule["hosts"])
    ):
        wanted = "with file, kind and hosts, and perhaps insecure"
        raise _wrong(f"a rule of the secret {name!r} in {rules}, {wanted}")
    return rule


def _read(path: Path, words: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise _wrong(f"{words} in {path}: {error.strerror}") from error
    except UnicodeDecodeError:  # The error has the bytes.
        raise _wrong(f"{words} as text in {path}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise _wrong(f"{words} of at most {SECRET_BYTES_MAX:,} bytes in {path}")
    return text


def _wrong(wanted: str) -> ConfigError:
    return ConfigError(f"expected {wanted}", expected="secrets")
