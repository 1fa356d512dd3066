"""Where a client finds its cluster: arguments, the environment and the user's profiles."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from galileo.dht.topology import with_port
from galileo.errors import ConfigError, InputError
from galileo.model.schema import nearest_name
from galileo.wire.tls_credentials import TOKEN_VARIABLE, TlsFiles

TOKEN, TOKEN_FILE, TLS = TOKEN_VARIABLE, "GALILEO_TOKEN_FILE", "GALILEO_TLS"
NODE, PROFILE = "GALILEO_NODE", "GALILEO_PROFILE"
DEFAULT_PROFILE = "default"
DEFAULT_NODE = "127.0.0.1"
OUTPUTS = ("table", "json")
_KEYS = ("node", "token_file", "tls", "insecure", "timeout", "output")
_CREDENTIALS = frozenset({"token", "token_file", "tls", "insecure"})
_TOKENS = frozenset({"token", "token_file"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client.

    Attributes:
        token: as `galileo token create` printed it. Never shown.
        token_file: file of the token, readable by its owner only, in its place.
        tls: a directory as `galileo cert issue` writes it, with certificate.pem, key.pem and
            authority.pem; "" without TLS.
        insecure: whether the token may travel unencrypted to other machines.
    """

    token: str = field(default="", repr=False)
    token_file: str | Path = ""
    tls: str | Path = ""
    insecure: bool = False

    def keys(self, environment: Mapping[str, str] | None = None) -> TlsFiles:
        """The files to read. What is not given comes from the environment, the process's own if
        absent: GALILEO_TOKEN, GALILEO_TOKEN_FILE, GALILEO_TLS.

        Raises:
            InputError: both a token and a token file were given.

        Example:
            >>> galileo.client.Credentials(token="secret").keys().token
            'secret'
        """
        known = os.environ if environment is None else environment
        token, token_file = self.token, str(self.token_file)
        if token and token_file:
            raise InputError("expected a token or a file of one, got both")
        if not token and not token_file:
            token_file = known.get(TOKEN_FILE, "")
            token = "" if token_file else known.get(TOKEN, "")
        tls = str(self.tls) or known.get(TLS, "")
        return TlsFiles.of(tls=tls, token_file=token_file, token=token, insecure=self.insecure)


@dataclass(frozen=True, slots=True)
class Profile:
    """How to reach a cluster; what is empty is left to the next source.

    Attributes:
        node: addresses of nodes, as "host:port" or "host".
        token: that proves who calls; never read from a file of profiles.
        token_file: file of the token.
        tls: directory with certificate, key and authority.
        insecure: whether the token may be sent over an unencrypted connection.
        timeout: how long to retry unreachable nodes; a duration.
        output: of the command line, "table" or "json".
    """

    node: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls: str = ""
    insecure: bool = False
    timeout: str = ""
    output: str = ""

    def proof(self) -> Credentials:
        return Credentials(self.token, self.token_file, self.tls, self.insecure)


def profiles_path(environment: Mapping[str, str]) -> Path:
    """The user's file of profiles, which need not exist."""
    home = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "galileo" / "config.toml"


def resolve(
    arguments: Profile, *, name: str = "", environment: Mapping[str, str] | None = None
) -> Profile:
    """Complete what the caller said by the environment and a profile.

    The environment comes before the profile, unless the profile is named here. Credentials of a
    profile that has nodes are used for these nodes only.

    Args:
        arguments: what the caller said.
        name: of a profile; else that of GALILEO_PROFILE, else "default", which need not exist.
        environment: the process's own if absent.

    Raises:
        ConfigError: the file of profiles is wrong, or has no profile of that name.
    """
    variables = os.environ if environment is None else environment
    profile = read_profile(name or variables.get(PROFILE, ""), variables)
    token_file = variables.get(TOKEN_FILE, "")
    from_environment = Profile(
        node=tuple(map(with_port, variables.get(NODE, "").replace(",", " ").split())),
        token="" if token_file else variables.get(TOKEN, ""),
        token_file=token_file,
        tls=variables.get(TLS, ""),
    )
    # The client refuses what is no text.
    nodes = (
        with_port(address) if isinstance(address, str) else address for address in arguments.node
    )
    chosen = replace(arguments, node=tuple(nodes))
    withheld = _proof_of(profile) if name and _is_foreign(chosen, profile) else []
    if withheld and not _proof_of(chosen) and not _proof_of(from_environment):
        raise ConfigError(
            f"the {' and '.join(withheld)} of profile {name!r} are for {', '.join(profile.node)} "
            f"only, got the node {', '.join(chosen.node)}; add it to the profile, or name its "
            "credentials",
            profile=name,
        )
    if name:
        chosen = _merge(_merge_profile(chosen, profile), from_environment)
    else:
        chosen = _merge_profile(_merge(chosen, from_environment), profile)
    return replace(chosen, node=chosen.node or (with_port(DEFAULT_NODE),))


def _merge_profile(first: Profile, profile: Profile) -> Profile:
    """The profile's token must not be sent to a node that the profile does not name."""
    without = _CREDENTIALS if _is_foreign(first, profile) else frozenset()
    return _merge(first, profile, without=without)


def _is_foreign(first: Profile, profile: Profile) -> bool:
    return bool(profile.node) and not set(first.node) <= set(profile.node)


def _proof_of(profile: Profile) -> list[str]:
    """The names of the credentials that a profile has."""
    return [name for name in ("token", "token_file", "tls") if getattr(profile, name)]


def _merge(first: Profile, second: Profile, *, without: frozenset[str] = frozenset()) -> Profile:
    if first.token or first.token_file:
        without |= _TOKENS
    open_fields = [field.name for field in fields(Profile) if not getattr(first, field.name)]
    return replace(
        first, **{name: getattr(second, name) for name in open_fields if name not in without}
    )


def read_profile(name: str, environment: Mapping[str, str]) -> Profile:
    """The profile of that name; where none is named, "default" or an empty one."""
    path = profiles_path(environment)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        tables = {}
    except OSError as error:
        raise ConfigError(
            f"the profiles in {path} cannot be read: {error.strerror}", file=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the profiles in {path} are not TOML: {error}", file=str(path)
        ) from error
    if name and name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise ConfigError(
            f"there is no profile {name!r} in {path}; profiles: {known}",
            file=str(path),
            profile=name,
        )
    return _profile(
        tables.get(name or DEFAULT_PROFILE, {}), f"[{name or DEFAULT_PROFILE}] of {path}"
    )


def _profile(table: Any, where: str) -> Profile:
    if not isinstance(table, dict):
        raise ConfigError(f"expected {where} to be a table, got {table!r}", expected="table")
    for key, value in table.items():
        if key not in _KEYS:
            close = nearest_name(key, _KEYS)
            hint = f"; did you mean {close!r}?" if close else "."
            raise ConfigError(
                f"unknown key in {where}: {key!r}{hint} Known: {', '.join(_KEYS)}",
                key=key,
                nearest=close,
            )
        if not _is_fitting(key, value):
            kind = {"node": "a text or a list of texts", "insecure": "true or false"}
            raise ConfigError(
                f"expected {kind.get(key, 'a text')} for {key} in {where}, got {value!r}",
                key=key,
            )
    node = table.get("node", [])
    nodes = tuple(map(with_port, [node] if isinstance(node, str) else node))
    profile = Profile(**{**table, "node": nodes})
    if profile.output and profile.output not in OUTPUTS:
        raise ConfigError(
            f"expected table or json for output in {where}, got {profile.output!r}", key="output"
        )
    return replace(profile, token_file=_expand(profile.token_file), tls=_expand(profile.tls))


def _is_fitting(key: str, value: object) -> bool:
    if key == "insecure":
        return isinstance(value, bool)
    if key == "node" and isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str)


def _expand(path: str) -> str:
    return str(Path(path).expanduser()) if path else ""
