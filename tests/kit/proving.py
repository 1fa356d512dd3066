"""Certificates and tokens for tests, made once for each caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galileo.client import Credentials
from galileo.private_ca import AUTHORITY, CERTIFICATE, KEY, Subject, issue, make_authority
from galileo.rpc import token_store
from galileo.rpc.access import EVERY_DATASET, Principal, Role
from galileo.wire.tls_credentials import TlsFiles

LOOPBACK = ("127.0.0.1",)


@dataclass(frozen=True)
class Certified:
    """A CA, and the names that it certifies."""

    directory: Path

    @staticmethod
    def made(directory: Path) -> Certified:
        make_authority(directory / "authority", cluster="test")
        return Certified(directory)

    def of(self, kind: Any, name: str, *, hosts: Sequence[str] = (), **facts: Any) -> Path:
        """A directory of certificate, key and authority; that of a node is for this machine."""
        hosts = tuple(hosts) or (LOOPBACK if kind == "node" else ())
        subject = Subject(kind, name, hosts, **facts)
        return issue(self.directory / "authority", subject, target=self.directory / name)


def keys_in(directory: Path, **more: Any) -> TlsFiles:
    files = (str(directory / name) for name in (CERTIFICATE, KEY, AUTHORITY))
    return TlsFiles(*files, **more)


def tls_section(directory: Path) -> dict[str, str]:
    found = keys_in(directory)
    return {"certificate": found.certificate, "key": found.key, "authority": found.authority}


@dataclass(frozen=True)
class Tokens:
    """A token file and its tokens."""

    path: Path
    tokens: dict[str, str]

    @staticmethod
    def made(path: Path) -> Tokens:
        return Tokens(path, {})

    @staticmethod
    def of_all_roles(path: Path) -> Tokens:
        """A principal with each role, named like it."""
        made = Tokens.made(path)
        for role in Role:
            made.add(role.value, role)
        return made

    def add(
        self, name: str, *roles: Role, datasets: tuple[str, ...] = EVERY_DATASET, **more: Any
    ) -> str:
        made = Principal(name, frozenset(roles), datasets, **more)
        self.tokens[name] = token_store.add(self.path, made)
        return self.tokens[name]

    def proof(self, name: str, tls: Path | str = "") -> Credentials:
        return Credentials(self.tokens[name], tls=tls)


def auth_section(tokens: Tokens, own: str) -> dict[str, str]:
    """Of the configuration of a node that asks for tokens; `own` is the one that it shows."""
    file = token_file(tokens.path.with_name("node.token"), own)
    return {"token_file": str(tokens.path), "node_token_file": str(file)}


def token_file(path: Path, token: str) -> Path:
    path.touch(0o600)
    path.write_text(token)
    return path
