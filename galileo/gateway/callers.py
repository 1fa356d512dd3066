"""Who sends a request: the token in it, and the client that passes it on to the nodes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request

from galileo.client.async_client import AsyncClient
from galileo.client.client_pool import ClientPool
from galileo.errors import Forbidden, GalileoError, Overloaded, Unauthenticated
from galileo.gateway.options import REQUESTS_OF_CALLER_MAX, GatewayOptions
from galileo.gateway.rights import Principals, Right
from galileo.shares import SHARE_HOLDER, ShareHolder
from galileo.wire.tls_credentials import TOKEN_BYTES_MAX

NODE_ROLE = "node"
_TOKEN, _CALLER = "galileo_token", "galileo_caller"
"""Members of the scope of a request that was let in."""


class Callers:
    """The clients of the callers; belongs to one event loop.

    Args:
        options: of the gateway.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._clients = ClientPool(
            options.nodes, keys=options.cluster_keys, patience_s=options.patience_s
        )
        self._principals = Principals(self._clients.identity)
        self._requests: Counter[ShareHolder] = Counter()
        self._readers: dict[Callable[[], object], ShareHolder] = {}
        """What ends each reader of events, the newest last."""
        self._is_checked = not options.cluster_keys.is_tls

    @property
    def readers(self) -> int:
        """The number of readers of events."""
        return len(self._readers)

    async def close(self) -> None:
        await self._clients.close()

    async def admit(self, request: Request, right: Right) -> ShareHolder:
        """Lets the caller of a request in, whose body is not read before.

        Args:
            request: `client` and `reader` are those of its caller afterwards.
            right: that the caller needs.

        Raises:
            NotPermitted: the request has no token, or one without the right.
            GalileoError: no node can be asked.
        """
        caller = ShareHolder(request.client.host if request.client else "")
        SHARE_HOLDER.set(caller)
        if right.call:
            token = await self._token(request)
            principal = await self._principals.of_token(token, host=caller.host)
            right.check(principal, request.path_params)
            if principal.name and token != self._options.anonymous_token:
                # One caller at whatever hosts, and none of those that share a host with it.
                caller = ShareHolder(principal.name, principal.name)
            request.scope[_TOKEN], request.scope[_CALLER] = token, caller
            SHARE_HOLDER.set(caller)
        return caller

    @contextlib.asynccontextmanager
    async def client(self, request: Request) -> AsyncIterator[AsyncClient]:
        """The client of the caller of a request that was let in, for the block.

        Raises:
            Overloaded: the caller has too many requests.
        """
        caller = request.scope[_CALLER]
        if self._requests[caller] >= REQUESTS_OF_CALLER_MAX:
            raise Overloaded(
                f"expected at most {REQUESTS_OF_CALLER_MAX} requests of a caller at a time; try "
                "again when one of them is answered",
                bound=REQUESTS_OF_CALLER_MAX,
            )
        self._requests[caller] += 1
        try:
            yield self._clients.client(request.scope[_TOKEN])
        finally:
            self._requests[caller] -= 1
            if not self._requests[caller]:
                del self._requests[caller]

    @contextlib.asynccontextmanager
    async def reader(self, request: Request) -> AsyncIterator[AsyncClient]:
        """The client of the caller of a request for events, which lasts; for the block.

        Raises:
            Overloaded: the gateway, or the caller, has too many readers; also in the block, when
                another caller with fewer of them gets the place.
        """
        caller, task, is_revoked = request.scope[_CALLER], asyncio.current_task(), False
        assert task is not None, "requests are answered in tasks"

        def revoke() -> None:
            nonlocal is_revoked
            is_revoked = True
            task.cancel()

        self._make_room(caller)
        self._readers[revoke] = caller
        try:
            yield self._clients.client(request.scope[_TOKEN])
        except asyncio.CancelledError:
            if not is_revoked or task.uncancel():
                raise
            raise self._too_many_readers() from None
        finally:
            self._readers.pop(revoke, None)

    def _make_room(self, caller: ShareHolder) -> None:
        """Ends the newest reader of the caller with the most, where all places are taken."""
        if len(self._readers) < self._options.readers_max:
            return
        counts = Counter(self._readers.values())
        most = max(counts, key=counts.__getitem__, default=caller)
        if counts[most] <= counts[caller] + 1:
            raise self._too_many_readers()
        newest = next(end for end in reversed(self._readers) if self._readers[end] == most)
        del self._readers[newest]
        newest()

    def _too_many_readers(self) -> Overloaded:
        return Overloaded(
            f"expected at most {self._options.readers_max} readers of events, of which each caller "
            "has a share; try again later, or read at another gateway",
            bound=self._options.readers_max,
        )

    async def _token(self, request: Request) -> str:
        token = token_of(request.headers.get("authorization", ""))
        token = token or self._options.anonymous_token
        if not self._is_checked:
            await self._check_certificate()
        if not (token or self._options.anonymous or not self._options.cluster_keys.is_tls):
            raise Unauthenticated("authentication required: the request has no token")
        return token

    async def is_reachable(self) -> bool:
        """Whether a node of the cluster answers."""
        try:
            await self._clients.client("").topology_json()
        except Unauthenticated:
            return True
        except GalileoError:
            return False
        return True

    async def _check_certificate(self) -> None:
        """Makes sure that the nodes decide by the callers' tokens.

        A cluster without tokens lets in every client with a certificate, so each caller would have
        the rights of the gateway; a node's certificate is even let in as a node.

        Raises:
            Forbidden: the gateway's certificate is let in without a token.
        """
        try:
            gateway = await self._clients.client("").whoami()
        except Unauthenticated:
            self._is_checked = True
            return
        if NODE_ROLE in gateway.roles:
            raise Forbidden(
                "the gateway has a node's certificate, with which its callers could do everything; "
                "issue one for a client (galileo cert issue client)"
            )
        if not self._options.anonymous:
            raise Forbidden(
                "the cluster asks for no tokens, so each caller of this gateway would have the "
                "rights of its certificate; give tokens to callers (galileo token create), or "
                "start the gateway for anonymous callers"
            )
        self._is_checked = True


def token_of(header: str) -> str:
    """The token in an `Authorization` header; "" for no header.

    It is that of `Bearer`, or the password of `Basic`, which GIS programs send.

    Raises:
        Unauthenticated: the header has no token.
    """
    if not header:
        return ""
    scheme, _, value = header.partition(" ")
    token = value.strip()
    if scheme.lower() == "basic":
        token = _password_of(token)
    elif scheme.lower() != "bearer":
        token = ""
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable():
        raise Unauthenticated(
            "expected 'Authorization: Bearer TOKEN', or Basic with the token as the password"
        )
    return token


def _password_of(credentials: str) -> str:
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return decoded.partition(":")[2]
