"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from galileo.client.async_client import NOT_SENT, AsyncClient
from galileo.client.blocking_calls import BlockingCalls
from galileo.client.loop_thread import LoopThread
from galileo.client.proof import Proof
from galileo.model.times import Duration


def connect(
    address: str,
    *more: str,
    timeout: Duration | None = None,
    token: str = "",
    token_file: str | Path = "",
    tls: str | Path = "",
    insecure: bool = False,
) -> Client:
    """A client of the cluster that a node at "host:port" belongs to.

    Args:
        address: of any node.
        more: of others, tried when the first is away.
        timeout: retry unreachable or busy nodes for up to this long.
        token: that proves who calls, where the cluster asks; else from GALILEO_TOKEN.
        token_file: a file of it, which nobody else may read; else from GALILEO_TOKEN_FILE.
        tls: a directory with certificate.pem, key.pem and authority.pem, as `galileo certs`
            makes it; else from GALILEO_TLS.
        insecure: whether the token may travel unencrypted to other machines.

    Example:
        >>> with galileo.connect("127.0.0.1:7701") as client:
        ...     print(client.count("weather"))
        4
    """
    proof = Proof(token, token_file, tls, insecure)
    return Client(address, *more, timeout=timeout, proof=proof)


class Client(BlockingCalls):
    """A cluster, from the outside; every call blocks, Ctrl-C cancels it.

    The calls are those of `AsyncClient`. `connect` makes one.

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
        self, *addresses: str, timeout: Duration | None = None, proof: Proof | None = None
    ) -> None:
        self._loop = LoopThread("galileo-client")
        try:
            self._client = self._run(_made(addresses, timeout, proof))
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return repr(self._client).replace("<AsyncClient", "<Client", 1)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_SENT)

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
    addresses: tuple[str, ...], timeout: Duration | None, proof: Proof | None
) -> AsyncClient:
    return AsyncClient(*addresses, timeout=timeout, proof=proof)
