"""Authentication, authorisation, quotas and audit log of a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from galileo.clock import Clock
from galileo.config import Config
from galileo.errors import ConfigError
from galileo.rpc.admission import Admission
from galileo.rpc.call_log import CallTracker
from galileo.rpc.identity import Identify, Identity, anonymous
from galileo.rpc.interceptor import CallInterceptor
from galileo.rpc.quotas import QuotaResolver
from galileo.rpc.rate_limit import Metering
from galileo.rpc.token_store import TokenStore
from galileo.server.audit import Audit
from galileo.server.audit_log import AuditLog
from galileo.wire.tls_credentials import server_credentials


class Security:
    """The security components of a node.

    Args:
        config: of the node.
        clock: wall and monotonic clock.
        owner_of: the owner of a continuous query; None if it is unknown.

    Attributes:
        identify: returns the caller of a call.
        allowances: the quotas of principals.
        metering: the usage of principals.
        audit: the audit log; None if it is disabled.
        calls: counts the active calls.

    Raises:
        ConfigError: a file of [tls], [auth] or [audit] cannot be used, or nodes could not
            authenticate to each other.
    """

    def __init__(
        self, config: Config, *, clock: Clock, owner_of: Callable[[str], str | None]
    ) -> None:
        self._config = config
        self.audit: Audit | None = None
        self.identify = _identity(config, on_look=self._record_reload)
        self.allowances = QuotaResolver(config.quotas, self.identify)
        self.metering = Metering(self.allowances, monotonic=clock.monotonic)
        self.audit = _audit(config, owner_of=owner_of, clock=clock)
        on_end = self.audit.call_ended if self.audit is not None else None
        self.calls = CallTracker(on_end=on_end)

    def interceptor(self, admission: Admission) -> CallInterceptor:
        """The interceptor of the server; refused calls are recorded, too."""
        return CallInterceptor(self.calls, self.identify, self.metering, admission)

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigError as `server_credentials`."""
        return server_credentials(
            self._config.keys, lambda error: self.note("reload-certificate", error)
        )

    def note(self, action: str, error: ConfigError | None = None) -> None:
        """Records an act of the node itself in the audit log."""
        if self.audit is not None:
            self.audit.note(action, self._config.node.name, error=error)

    def flush(self) -> None:
        """Writes aggregated refusals that are due; call it periodically."""
        if self.audit is not None:
            self.audit.flush()

    def close(self) -> None:
        if self.audit is not None:
            self.note("stop")
            self.audit.close()

    def _record_reload(self, error: ConfigError | None) -> None:
        self.note("reload-principals", error)


def _identity(config: Config, *, on_look: Callable[[ConfigError | None], None]) -> Identify:
    """The configured authentication. Raises ConfigError as `Security`."""
    config.keys.check()
    is_mutual = config.keys.is_tls
    if not config.auth.token_file:
        return Identity(None, is_mutual=True) if is_mutual else anonymous
    known = TokenStore(Path(config.auth.token_file))
    known.on_look = on_look
    return Identity(known, is_mutual=is_mutual)


def _audit(config: Config, *, owner_of: Callable[[str], str | None], clock: Clock) -> Audit | None:
    section = config.audit
    if not section.file:
        return None
    path = Path(config.node.directory, section.file)
    written = AuditLog(path, bytes_max=section.bytes_max, files_max=section.files_max)
    return Audit(written, node=config.node.name, owner_of=owner_of, clock=clock)
