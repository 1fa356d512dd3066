"""The token file: the principals, their tokens and their roles.

It holds no token, only the SHA-256 digest of each: tokens are long and random, so that guessing is
hopeless. A changed file is read again; if it is invalid, the previous content stays in effect.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from galileo.durable_files import replace_file
from galileo.errors import ConfigError, InputError, Unauthenticated
from galileo.model.broker import PATTERN, PATTERNS_MAX
from galileo.model.quotas import parse_quotas
from galileo.rpc.access import EVERY_DATASET, Principal, Role

TOKEN_PREFIX = "glt_"
"""Lets people and secret scanners recognise a token."""
TOKEN_RANDOM_BYTES = 32
LOOK_S = 1.0
PRINCIPALS_MAX = 10_000
SMALLER_IS_MORE = frozenset({"interval_min_s"})
"""Quotas that are minimums, not maximums."""
FILE_BYTES_MAX = 16 << 20

_KEYS = ("name", "roles", "datasets", "brokers", "token_sha256", "expires", "quotas")
UNBOUNDED_ROLES = frozenset({Role.WRITER, Role.ADMIN, Role.NODE})
"""Roles that are not bounded to some brokers: they create and drop channels as a whole."""
_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_PATTERN = re.compile(r"[a-z0-9_.*?-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

log = logging.getLogger(__name__)


class TokenStore:
    """The principals by token.

    Args:
        path: of the file.
        monotonic: seconds.
        wall: seconds since 1970.

    Attributes:
        on_look: called after each change of the file, with the error if it is invalid.

    Raises:
        ConfigError: it cannot be read, is wrong, or can be read by others.
    """

    def __init__(
        self,
        path: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._monotonic = monotonic
        self._wall = wall
        self._looked = monotonic()
        self._state = _stamp(path)
        self._found = read(path).effective()
        self.on_look: Callable[[ConfigError | None], None] = _ignored

    def of_token(self, token: str) -> Principal | None:
        """The principal of a token; None if the token is unknown.

        Raises:
            Unauthenticated: it has expired.
        """
        self._look()
        principal = self._found.get(digest_of(token))
        if principal is not None and self._wall() >= principal.expires_at:
            raise Unauthenticated(
                "the token has expired; ask an administrator of the cluster for another"
            )
        return principal

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked, state = now, _stamp(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._found = read(self._path).effective()
        except ConfigError as error:
            log.error("invalid token file, keeping the previous one: %s", error.message)
            self.on_look(error)
        else:
            log.info("read the token file: %d principals", len(self._found))
            self.on_look(None)


def _ignored(error: ConfigError | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Known:
    """The content of the token file.

    Attributes:
        principals: by the digests of their tokens, each with its own quotas.
        role_quotas: the quotas of roles, for principals without their own.
    """

    principals: Mapping[str, Principal]
    role_quotas: Mapping[Role, Mapping[str, float]]

    def effective(self) -> dict[str, Principal]:
        """The principals by digest, with the quotas that apply to them."""
        return {
            digest: self._with_roles(principal) for digest, principal in self.principals.items()
        }

    def _with_roles(self, principal: Principal) -> Principal:
        """Adds the quotas of its roles; the most generous bound applies."""
        quotas: dict[str, float] = {}
        for role in principal.roles & self.role_quotas.keys():
            for quota, bound in self.role_quotas[role].items():
                better = min if quota in SMALLER_IS_MORE else max
                quotas[quota] = better(quotas.get(quota, bound), bound)
        own = dict(principal.quotas)
        return replace(principal, quotas=tuple(sorted((quotas | own).items())))


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def read(path: Path) -> Known:
    """Reads a token file.

    Raises:
        ConfigError: as `TokenStore`. The message names positions, never values.
    """
    raw = _parsed(_content(path))
    listed, roles = raw.pop("principal", []), raw.pop("role", {})
    if raw or not isinstance(listed, list) or len(listed) > PRINCIPALS_MAX:
        raise ConfigError(
            f"expected at most {PRINCIPALS_MAX:,} tables [[principal]], tables [role.NAME], and "
            "nothing else in auth.token_file"
        )
    principals: dict[str, Principal] = {}
    names: set[str] = set()
    for number, table in enumerate(listed, start=1):
        digest, principal = _principal(table, number)
        if digest in principals or principal.name in names:
            raise ConfigError(f"expected principal {number} to have a name and token of its own")
        principals[digest] = principal
        names.add(principal.name)
    return Known(principals, _role_quotas(roles))


def add(path: Path, principal: Principal) -> str:
    """Adds a principal to the file, which is created if missing; returns the new token.

    Raises:
        InputError: the name is taken, or wrong.
        ConfigError: the file is wrong.
    """
    if not _NAME.fullmatch(principal.name):
        raise InputError(
            f"expected a name of a-z, 0-9, '_', '.', '-', got {principal.name!r}", parameter="name"
        )
    fault = brokers_fault(principal.brokers, principal.roles)
    if fault:
        raise InputError(fault, parameter="brokers")
    for pattern in principal.datasets:
        if not _PATTERN.fullmatch(pattern):
            raise InputError(
                f"expected the name of a dataset, perhaps with '*' and '?', got {pattern!r}",
                parameter="datasets",
            )
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_RANDOM_BYTES)
    with _locked(path):
        known = read(path) if path.exists() else Known({}, {})
        if any(other.name == principal.name for other in known.principals.values()):
            raise InputError(
                f"{principal.name!r} has a token already; revoke it first", principal=principal.name
            )
        added = {**known.principals, digest_of(token): principal}
        _write(path, replace(known, principals=added))
    return token


def brokers_fault(brokers: Sequence[str], roles: Collection[str]) -> str:
    """What is wrong with the brokers of a principal; "" if nothing is."""
    unbounded = sorted(UNBOUNDED_ROLES & set(roles))
    if brokers and unbounded:
        return (
            f"expected no brokers with the role {unbounded[0]}, which is not bounded to some; use "
            "subscriber, perhaps with reader"
        )
    if len(brokers) > PATTERNS_MAX or not all(map(PATTERN.fullmatch, brokers)):
        return (
            f"expected at most {PATTERNS_MAX} names of brokers, perhaps with '*' and '?', of at "
            "most 200 characters without '/' and control characters"
        )
    return ""


def remove(path: Path, name: str) -> None:
    """Removes a principal, which revokes its token.

    Raises:
        InputError: there is no principal of this name.
        ConfigError: the file is wrong.
    """
    with _locked(path):
        known = read(path)
        remaining = {
            digest: principal
            for digest, principal in known.principals.items()
            if principal.name != name
        }
        if len(remaining) == len(known.principals):
            names = (
                ", ".join(sorted(principal.name for principal in known.principals.values()))
                or "none"
            )
            raise InputError(
                f"expected the name of a principal, one of {names}; got {name!r}", principal=name
            )
        _write(path, replace(known, principals=remaining))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialises changes; locks the directory, because the file is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, known: Known) -> None:
    roles = [f"[role.{role}]\n{_assigned(bounds)}" for role, bounds in known.role_quotas.items()]
    tables = [_table(digest, principal) for digest, principal in known.principals.items()]
    replace_file(path, "\n".join([*roles, *tables]).encode())


def _table(digest: str, principal: Principal) -> str:
    # JSON of texts without control characters is TOML, too.
    expires = ""
    if principal.expires_at < inf:
        expires = f"expires = {dt.datetime.fromtimestamp(principal.expires_at, dt.UTC)}\n"
    bounds = ", ".join(f"{quota} = {bound!r}" for quota, bound in principal.quotas)
    return (
        "[[principal]]\n"
        f"name = {json.dumps(principal.name)}\n"
        f"roles = {json.dumps(sorted(principal.roles))}\n"
        f"datasets = {json.dumps(list(principal.datasets))}\n"
        f"{_assigned_brokers(principal.brokers)}"
        f"token_sha256 = {json.dumps(digest)}\n"
        f"{expires}" + (f"quotas = {{{bounds}}}\n" if bounds else "")
    )


def _assigned_brokers(brokers: Sequence[str]) -> str:
    # Beyond ASCII as it is: TOML has no pairs of surrogates.
    return f"brokers = {json.dumps(list(brokers), ensure_ascii=False)}\n" if brokers else ""


def _assigned(bounds: Mapping[str, float]) -> str:
    return "".join(f"{quota} = {bound!r}\n" for quota, bound in bounds.items())


def _content(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(
            f"expected auth.token_file to be a readable file: {error.strerror}; galileo token "
            "create writes one",
            key="auth.token_file",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("expected UTF-8 in auth.token_file") from None
    if mode & _OTHERS:
        raise ConfigError(
            "expected auth.token_file to be a file that only its owner can read, got mode "
            f"{stat.S_IMODE(mode):04o}; run chmod 600 on it",
            key="auth.token_file",
            mode=f"{stat.S_IMODE(mode):04o}",
        )
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"expected at most {FILE_BYTES_MAX:,} bytes in auth.token_file")
    return text


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # What the parser says can quote what it met.
        raise ConfigError("expected TOML in auth.token_file") from None


def _principal(table: Any, number: int) -> tuple[str, Principal]:
    if not isinstance(table, dict) or not {"name", "roles", "token_sha256"} <= set(table):
        raise ConfigError(f"expected name, roles and token_sha256 of principal {number}")
    if set(table) - set(_KEYS):
        raise ConfigError(f"expected of principal {number} nothing but {', '.join(_KEYS)}")
    name, digest = table["name"], table["token_sha256"]
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(f"expected a name of a-z, 0-9, '_', '.', '-' of principal {number}")
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ConfigError(
            f"expected 64 hexadecimal digits as token_sha256 of principal {number}; it is "
            "SHA-256 of the token, not the token"
        )
    roles = _texts(table["roles"], f"roles of principal {number}")
    if not roles or not set(roles) <= set(Role):
        raise ConfigError(f"expected roles of {', '.join(Role)} of principal {number}")
    datasets = _texts(table.get("datasets", list(EVERY_DATASET)), f"datasets of {number}")
    if not all(_PATTERN.fullmatch(pattern) for pattern in datasets):
        raise ConfigError(f"expected names or patterns of datasets of principal {number}")
    brokers = _texts(table.get("brokers", []), f"brokers of principal {number}")
    if fault := brokers_fault(brokers, roles):
        raise ConfigError(f"wrong brokers of principal {number}: {fault}")
    quotas = parse_quotas(table.get("quotas", {}), f"quotas of principal {number}")
    return digest, Principal(
        name,
        frozenset(Role(role) for role in roles),
        tuple(datasets),
        tuple(sorted(quotas.items())),
        _expiry(table, number),
        tuple(brokers),
    )


def _expiry(table: Mapping[str, Any], number: int) -> float:
    """Seconds since 1970; a date without a zone is in UTC."""
    expires = table.get("expires")
    if expires is None:
        return inf
    if type(expires) is dt.date:
        expires = dt.datetime.combine(expires, dt.time())
    if not isinstance(expires, dt.datetime):
        raise ConfigError(f"expected a date, perhaps with a time, as expires of principal {number}")
    return (expires if expires.tzinfo else expires.replace(tzinfo=dt.UTC)).timestamp()


def _role_quotas(raw: Any) -> dict[Role, dict[str, float]]:
    if not isinstance(raw, Mapping) or not set(raw) <= set(Role):
        raise ConfigError(f"expected tables [role.NAME] of {', '.join(Role)} and of nothing else")
    return {Role(name): parse_quotas(table, f"[role.{Role(name)}]") for name, table in raw.items()}


def _texts(value: Any, what: str) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"expected {what} to be a list of texts")
    return value


def _stamp(path: Path) -> tuple[int, int, int]:
    """Identifies the content and the mode of a file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
