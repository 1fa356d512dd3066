"""A gateway of a `LocalCluster`: a process of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from galileo.errors import Unavailable
from galileo.wire.tls_credentials import without_token

STOP_TIMEOUT_S = 15.0
LOG_TAIL_BYTES = 2_000


class LocalGateway:
    """A `galileo gateway` process; serves within a `with` block.

    Args:
        nodes: addresses of the cluster's nodes.
        log: its log file.
        port: to listen on; 0 for a free one.
        tls: directory of the certificate that the nodes see; "" without TLS.
        timeout: how long it retries unreachable nodes.
        arguments: further ones of the command.

    Attributes:
        url: of the API; "" before it serves.

    Example:
        >>> with cluster.gateway() as gateway:  # doctest: +SKIP
        ...     print(gateway.url)
        http://127.0.0.1:41473
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        log: Path,
        port: int = 0,
        tls: str = "",
        timeout: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.url = ""
        self._log = log
        named = [word for node in nodes for word in ("--node", node)]
        given = {"--tls": tls, "--timeout": timeout}
        named += [word for option, value in given.items() if value for word in (option, value)]
        self._arguments = [*named, "--port", str(port), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalGateway:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> None:
        """Starts the process, and waits until it serves.

        Raises:
            Unavailable: it does not start; with the end of its log.

        Example:
            >>> gateway.start()  # doctest: +SKIP
        """
        command = [sys.executable, "-m", "galileo", "gateway", "--json"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--parent", str(os.getpid()), *self._arguments],
                env=without_token(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it is a pipe"
        with self._process.stdout as output:
            line = output.readline()
        if not line:
            self._process.wait(STOP_TIMEOUT_S)
            tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise Unavailable(f"the gateway did not start; the end of its log {self._log}:\n{tail}")
        self.url = json.loads(line)["url"]

    def stop(self) -> None:
        """Stops the process by SIGTERM, after a timeout by SIGKILL.

        Example:
            >>> gateway.stop()  # doctest: +SKIP
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
