"""Authentication of callers by certificate, token, or both."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from galileo.errors import Forbidden, Unauthenticated
from galileo.rpc.access import ANONYMOUS, ANY_CLIENT, EVERY_DATASET, Principal, Role
from galileo.rpc.error_mapping import Context
from galileo.rpc.token_store import TokenStore
from galileo.wire.channel import TOKEN_KEY, TOKEN_SCHEME

NODE_URI = b"galileo:node:"
CLIENT_URI = b"galileo:client:"
_URIS = "peer_uri"


CALLER: ContextVar[Principal | None] = ContextVar("galileo_caller", default=None)
"""The authenticated caller of the call that this task serves."""


class Identify(Protocol):
    """Returns the caller. Raises Unauthenticated."""

    def __call__(self, context: Context) -> Principal: ...


def anonymous(context: Context) -> Principal:
    """The caller if no authentication is configured."""
    return ANONYMOUS


class Identity:
    """Authenticates callers.

    Args:
        principals: the known tokens; None if callers need none.
        is_mutual: whether connections use mutual TLS. Then only the owner of a node certificate is
            a node; no token gives that role.
    """

    def __init__(self, principals: TokenStore | None, *, is_mutual: bool) -> None:
        self._principals = principals
        self._is_mutual = is_mutual

    def __call__(self, context: Context) -> Principal:
        if self._is_mutual:
            node = _node_of(context)
            if node:
                return Principal(node, frozenset({Role.NODE}), EVERY_DATASET)
        if self._principals is None:
            return ANY_CLIENT if self._is_mutual else ANONYMOUS
        principal = self._principals.of_token(_token_of(context))
        if principal is None:
            raise Unauthenticated(
                "the token is unknown or revoked; ask an administrator of the cluster for another"
            )
        if self._is_mutual and principal.is_node:
            return replace(principal, roles=principal.roles - {Role.NODE})
        return principal


def _token_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_KEY and isinstance(value, str) and value.startswith(TOKEN_SCHEME):
            return value[len(TOKEN_SCHEME) :]
    raise Unauthenticated("authentication required: the call has no token", remedy="token")


def _node_of(context: Context) -> str:
    """The name in a node's certificate; "" for a client's.

    Raises:
        Forbidden: the authority has signed something else.
    """
    uris = context.auth_context().get(_URIS, ())
    ours = [uri for uri in uris if uri.startswith((NODE_URI, CLIENT_URI))]
    if len(ours) != 1:
        raise Forbidden(
            "expected a certificate for one node or client (a URI galileo:node:NAME or "
            "galileo:client:NAME), got another; create one with galileo cert issue"
        )
    if ours[0].startswith(CLIENT_URI):
        return ""
    return str(ours[0][len(NODE_URI) :].decode(errors="replace"))
