"""Who may call a node, how much of it each may use, and what is told of that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from galileo.clock import Clock
from galileo.config import Config
from galileo.errors import ConfigError
from galileo.rpc.authorisation import Authorisation
from galileo.rpc.call_log import CallTracker
from galileo.rpc.identity import Identify, Identity, everybody
from galileo.rpc.quotas import QuotaResolver
from galileo.rpc.rate_limit import Metering
from galileo.rpc.token_store import TokenStore
from galileo.server.audit import Audit
from galileo.server.audit_log import AuditLog
from galileo.wire.tls_credentials import server_credentials


class Security:
    """See the module.

    Args:
        config: of the node.
        clock: both of it.
        owner_of: whose a continuous query is; None: it is not known.

    Attributes:
        identify: says who calls.
        allowances: what each may use.
        metering: what each uses.
        audit: what is told; None: nothing.
        calls: counts those under way.

    Raises:
        ConfigError: a file of [tls], [auth] or [audit] cannot be used, or nodes could not prove
            that they are nodes.
    """

    def __init__(
        self, config: Config, *, clock: Clock, owner_of: Callable[[str], str | None]
    ) -> None:
        self._config = config
        self.audit: Audit | None = None
        self.identify = _identity(config, on_look=self._principals_looked_at)
        self.allowances = QuotaResolver(config.quotas, self.identify)
        self.metering = Metering(self.allowances, monotonic=clock.monotonic)
        self.audit = _audit(config, owner_of=owner_of, clock=clock)
        self.calls = CallTracker(
            metering=self.metering if self.identify is everybody else None,
            on_end=self.audit.call_ended if self.audit is not None else None,
        )

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """The first is asked last, just before the handler: who is refused still counts."""
        if self.identify is everybody:
            return [self.calls]
        return [self.calls, Authorisation(self.identify, self.metering)]

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigError as `server_credentials`."""
        return server_credentials(
            self._config.keys, lambda error: self.note("reload-certificate", error)
        )

    def note(self, action: str, error: ConfigError | None = None) -> None:
        """Tells the audit log of what the node did by itself."""
        if self.audit is not None:
            self.audit.note(action, self._config.node.name, error=error)

    def flush(self) -> None:
        """Now and then: refusals that were waited with are told."""
        if self.audit is not None:
            self.audit.flush()

    def close(self) -> None:
        if self.audit is not None:
            self.note("stop")
            self.audit.close()

    def _principals_looked_at(self, error: ConfigError | None) -> None:
        self.note("reload-principals", error)


def _identity(config: Config, *, on_look: Callable[[ConfigError | None], None]) -> Identify:
    """Who calls, as the configuration has it proved. Raises ConfigError as `Security`."""
    config.keys.check()
    is_mutual = config.keys.is_tls
    if not config.auth.token_file:
        return Identity(None, is_mutual=True) if is_mutual else everybody
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
