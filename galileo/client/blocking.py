"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galileo.client.arguments import no_such_call
from galileo.client.async_client import NOT_PICKLABLE, AsyncClient
from galileo.client.blocking_calls import BlockingCalls
from galileo.client.blocking_portal import BlockingPortal
from galileo.client.profiles import Credentials, Profile, resolve
from galileo.errors import InputError
from galileo.model.times import Duration


def connect(
    address: str | None = None,
    *more: str,
    timeout: Duration | None = None,
    profile: str = "",
    token: str = "",
    token_file: str | Path = "",
    tls: str | Path = "",
    insecure: bool = False,
) -> Client:
    """A client of the cluster that a node belongs to.

    Args:
        address: of any node, as "host:port" or "host"; the default port is 7701. Without one:
            GALILEO_NODE, else the profile, else the node on this machine.
        more: of others, tried when the first is down.
        timeout: retry unreachable or busy nodes for up to this long.
        profile: of ~/.config/galileo/config.toml; else that of GALILEO_PROFILE, else "default".
            What the arguments leave open comes from the environment, then from the profile; a
            profile that is named here comes first.
        token: that proves who calls, where the cluster asks; else from GALILEO_TOKEN.
        token_file: file of the token, readable by its owner only; else from GALILEO_TOKEN_FILE.
        tls: a directory with certificate.pem, key.pem and authority.pem, as `galileo cert`
            makes it; else from GALILEO_TLS.
        insecure: whether the token may travel unencrypted to other machines.

    Example:
        >>> with galileo.connect("127.0.0.1:7701") as client:
        ...     print(client.count("weather"))
        4
    """
    arguments = Profile(
        node=() if address is None else (address, *more),
        token=token,
        token_file=str(token_file),
        tls=str(tls),
        insecure=insecure,
    )
    if token and token_file:
        raise InputError("expected a token or a file of one, got both")
    chosen = resolve(arguments, name=profile)
    wait = timeout if timeout is not None else chosen.timeout or None
    return Client(*chosen.node, timeout=wait, proof=chosen.proof())


class Client(BlockingCalls):
    """A cluster, from the outside; every call blocks, Ctrl-C cancels it.

    The calls are those of `AsyncClient`. `connect` makes one. Close it, or use it in a `with`
    block; one that is garbage-collected ends its connections and thread as well.

    Args:
        addresses: "host:port" of one or more nodes; the others are learnt.
        timeout: retry unreachable or busy nodes for up to this long; 15 s when absent, and a
            minute for what is ingested.
        proof: who the client is, for clusters that ask; see docs/security.md. What it leaves
            open is read from GALILEO_TOKEN, GALILEO_TOKEN_FILE and GALILEO_TLS.

    Example:
        >>> with galileo.Client("127.0.0.1:7701", timeout="30s") as client:
        ...     print(len(client.query("weather", "temperature > 290")))
        2
    """

    def __init__(
        self, *addresses: str, timeout: Duration | None = None, proof: Credentials | None = None
    ) -> None:
        self._loop = BlockingPortal("galileo-client")
        try:
            self._client = self._run(_made(addresses, timeout, proof))
        except BaseException:
            self._loop.close()
            raise
        # Calls and views that are under way keep the asynchronous client, and thus the thread.
        weakref.finalize(self._client, self._loop.abandon).atexit = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(self, name)

    def __repr__(self) -> str:
        return repr(self._client).replace("<AsyncClient", "<Client", 1)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLABLE)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call that is under way with `Cancelled`; again is harmless.

        Example:
            >>> client = galileo.connect("127.0.0.1:7701")
            >>> client.close()
        """
        self._loop.close(self._client.close())


async def _made(
    addresses: tuple[str, ...], timeout: Duration | None, proof: Credentials | None
) -> AsyncClient:
    return AsyncClient(*addresses, timeout=timeout, proof=proof)
