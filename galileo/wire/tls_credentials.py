"""TLS credentials and tokens of a process, and the checks of its peers.

Changed files are read again, so that certificates and tokens can be replaced without a restart: a
server uses new files for the next connection, a client for the next channel. While files do not
match (one is not written yet), the old ones stay in use.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import grpc

from galileo.errors import ConfigError
from galileo.private_ca import AUTHORITY, CERTIFICATE, KEY

TOKEN_VARIABLE = "GALILEO_TOKEN"
"""Environment variables of clients, which are not passed to server processes."""
TOKEN_BYTES_MAX = 512
FILE_BYTES_MAX = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

State: TypeAlias = tuple[tuple[int, int], ...]
"""Change time and inode of each file, to detect replaced files."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files and the token of a process.

    Attributes:
        certificate: file of the own certificate, PEM; "" without TLS.
        key: file of its private key, readable by its owner only.
        authority: file of the CA certificates that peers are checked against.
        token_file: file of a token, readable by its owner only; "" for none.
        token: in place of the file; hidden from `repr`.
        insecure: whether to send a token unencrypted beyond this machine.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)
    insecure: bool = False

    @staticmethod
    def of(*, tls: str, token_file: str = "", token: str = "", insecure: bool = False) -> TlsFiles:
        """With the files of a directory of `galileo cert issue`; "" without TLS."""
        more = TlsFiles(token_file=token_file, token=token, insecure=insecure)
        if not tls:
            return more
        certificate, key, authority = (str(Path(tls) / n) for n in (CERTIFICATE, KEY, AUTHORITY))
        return replace(more, certificate=certificate, key=key, authority=authority)

    @property
    def is_tls(self) -> bool:
        return bool(self.certificate or self.key or self.authority)

    def check_named(self) -> None:
        """Raises ConfigError if only some of the TLS files are named."""
        for name in ("certificate", "key", "authority"):
            if self.is_tls and not getattr(self, name):
                raise ConfigError(
                    "expected tls.certificate, tls.key and tls.authority together, got no "
                    f"tls.{name}",
                    expected="all_files",
                    key=f"tls.{name}",
                )

    def check_of_node(self) -> None:
        """Raises ConfigError if a node could not authenticate to others."""
        if not (self.is_tls or self.token_file):
            raise ConfigError(
                "expected auth.node_token_file or certificates in [tls], by which this node "
                "authenticates to the others; got neither"
            )

    def check(self) -> None:
        """Raises ConfigError if a file is missing or wrong, or a secret is readable by others."""
        if self.is_tls:
            _read_pems(self)
        self.read_token()

    def read_token(self) -> str:
        """The token; "" if there is none.

        Raises:
            ConfigError: the file has no token, or others can read it.
        """
        if self.token_file:
            return read_secret(self.token_file, name="token_file")
        return _token_of(self.token.encode(errors="replace"), "token") if self.token else ""

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials of a channel; None without TLS. Raises ConfigError as `check`."""
        if not self.is_tls:
            return None
        authority, key, certificate = _read_pems(self)
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def state(self) -> State:
        """A value that changes when a file is replaced."""
        paths = (self.certificate, self.key, self.authority, self.token_file)
        return tuple(_stamp(path) for path in paths if path)


NO_TLS_FILES = TlsFiles()


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """The content of matching key files.

    Attributes:
        credentials: None without TLS.
        token: "" if there is none.
    """

    credentials: grpc.ChannelCredentials | None
    token: str = field(repr=False)


class TlsLoader:
    """Reads the same files for each channel; thread-safe."""

    def __init__(self, keys: TlsFiles) -> None:
        self.keys = keys
        self._last: LoadedTls | None = None

    def read(self) -> LoadedTls:
        """The content of the files; the previous content while they do not match.

        Raises:
            ConfigError: they cannot be used, and there is no previous content.
        """
        try:
            self._last = LoadedTls(self.keys.channel_credentials(), self.keys.read_token())
        except ConfigError:
            if self._last is None:
                raise
        return self._last


def without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without secrets, for a child process that runs code of users."""
    return {name: value for name, value in environment.items() if name != TOKEN_VARIABLE}


def server_credentials(
    keys: TlsFiles, on_look: Callable[[ConfigError | None], None] | None = None
) -> grpc.ServerCredentials:
    """Server credentials that require client certificates; the files are checked per connection.

    Args:
        keys: TLS files of the server.
        on_look: called after each change of the files, with the error if any; in any thread.

    Raises:
        ConfigError: as `TlsFiles.check`.
    """
    fetch = _Reloading(keys, on_look)
    return grpc.dynamic_ssl_server_credentials(
        fetch.first(), fetch, require_client_authentication=True
    )


class _Reloading:
    """Called by gRPC before each handshake; None means unchanged."""

    def __init__(
        self, keys: TlsFiles, on_look: Callable[[ConfigError | None], None] | None = None
    ) -> None:
        self._keys = keys
        self._on_look = on_look
        self._state = keys.state()

    def first(self) -> grpc.ServerCertificateConfiguration:
        return _configuration(self._keys)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        state = self._keys.state()
        if state == self._state:
            return None
        try:
            configuration = _configuration(self._keys)
        except ConfigError as error:
            log.warning(
                "cannot use the new certificate, keeping the previous one: %s", error.message
            )
            self._tell(error)
            return None
        self._state = state
        log.info("using the new certificate in %s", self._keys.certificate)
        self._tell(None)
        return configuration

    def _tell(self, error: ConfigError | None) -> None:
        if self._on_look is not None:
            self._on_look(error)


def _configuration(keys: TlsFiles) -> grpc.ServerCertificateConfiguration:
    authority, key, certificate = _read_pems(keys)
    return grpc.ssl_server_certificate_configuration(
        [(key, certificate)], root_certificates=authority
    )


def _read_pems(keys: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Reads authority, key and certificate, and checks that they match."""
    keys.check_named()
    key = _secret(keys.key, "tls.key")
    certificate, authority = (
        _content(getattr(keys, name), f"tls.{name}") for name in ("certificate", "authority")
    )
    _checked(
        lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            keys.certificate, keys.key, password=""
        ),
        f"the certificate in {keys.certificate} and its private key, in PEM, in {keys.key}",
        key="tls.certificate",
    )
    _checked(
        lambda: ssl.create_default_context(cadata=authority.decode("ascii")),
        f"certificates of an authority in PEM in {keys.authority}",
        key="tls.authority",
    )
    return authority, key, certificate


def _checked(look: Callable[[], object], expected: str, *, key: str) -> None:
    try:
        look()
    except (OSError, ValueError) as error:
        # The library's message is left out: it might contain the content of a file.
        raise ConfigError(
            f"expected {expected}, got others ({type(error).__name__})", expected="pem", key=key
        ) from None


def _secret(path: str, name: str) -> bytes:
    """The content of a file that only its owner can read."""
    content = _content(path, name)
    mode = Path(path).stat().st_mode
    if mode & _OTHERS:
        raise ConfigError(
            f"expected {name} to be a file that only its owner can read, got mode "
            f"{stat.S_IMODE(mode):04o}; run chmod 600 on it",
            expected="private_file",
            key=name,
        )
    return content


def _content(path: str, name: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        # Not the path: it may be the secret itself by mistake.
        why = error.strerror if isinstance(error, OSError) else "it has no such name"
        raise ConfigError(
            f"expected {name} to be a readable file: {why}", expected="readable_file", key=name
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"expected at most {FILE_BYTES_MAX:,} bytes in the file of {name}")
    return content


def read_secret(path: str, *, name: str) -> str:
    """The secret in a file, one word.

    Args:
        path: of the file.
        name: of the configuration key, for errors.

    Raises:
        ConfigError: the file has none, or others can read it.
    """
    return _token_of(_secret(path, name), name)


def _token_of(content: bytes, name: str) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        token = content.decode("ascii").strip()
        if 0 < len(token) <= TOKEN_BYTES_MAX and token.isprintable() and " " not in token:
            return token
    raise ConfigError(
        f"expected one token of at most {TOKEN_BYTES_MAX} letters, digits and signs in {name}, "
        "got something else",
        expected="token",
        key=name,
    )


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return (0, 0)
    return (status.st_mtime_ns, status.st_ino)
