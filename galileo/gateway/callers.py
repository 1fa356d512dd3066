"""Who sends a request: the token in it, and the client that passes it on to the nodes."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request

from galileo.client.async_client import AsyncClient
from galileo.client.client_pool import ClientPool
from galileo.errors import Forbidden, GalileoError, Overloaded, Unauthenticated
from galileo.gateway.options import CALLERS_MAX, REQUESTS_OF_CALLER_MAX, GatewayOptions
from galileo.wire.tls_credentials import TOKEN_BYTES_MAX

NODE_ROLE = "node"


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
        self._requests: Counter[str] = Counter()
        self._readers: Counter[str] = Counter()
        self._is_checked = not options.cluster_keys.is_tls

    @property
    def readers(self) -> int:
        """The number of readers of events."""
        return self._readers.total()

    async def close(self) -> None:
        await self._clients.close()

    @contextlib.asynccontextmanager
    async def client(self, request: Request) -> AsyncIterator[AsyncClient]:
        """The client of a request's caller, for the block.

        Raises:
            Unauthenticated: the request has no token, or a malformed one.
            Overloaded: the caller has too many requests.
        """
        token = await self._token(request)
        if self._requests[token] >= REQUESTS_OF_CALLER_MAX or len(self._requests) >= CALLERS_MAX:
            raise Overloaded(
                f"expected at most {REQUESTS_OF_CALLER_MAX} requests of a caller at a time; try "
                "again when one of them is answered",
                bound=REQUESTS_OF_CALLER_MAX,
            )
        with _counted(self._requests, token):
            yield self._clients.client(token)

    @contextlib.asynccontextmanager
    async def reader(self, request: Request) -> AsyncIterator[AsyncClient]:
        """The client of the caller of a request for events, which lasts; for the block.

        Raises:
            Unauthenticated: the request has no token, or a malformed one.
            Overloaded: the gateway, or the caller, has too many readers.
        """
        token, readers_max = await self._token(request), self._options.readers_max
        if self._readers.total() >= readers_max or self._readers[token] >= (readers_max + 1) // 2:
            raise Overloaded(
                f"expected at most {readers_max} readers of events, and half of them of one "
                "caller; end some, or read at another gateway",
                bound=readers_max,
            )
        with _counted(self._readers, token):
            yield self._clients.client(token)

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


@contextlib.contextmanager
def _counted(counter: Counter[str], token: str) -> Iterator[None]:
    """Counts a token, for the block."""
    counter[token] += 1
    try:
        yield
    finally:
        counter[token] -= 1
        if not counter[token]:
            del counter[token]


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
