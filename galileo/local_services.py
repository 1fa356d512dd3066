"""Gateways and workers of a `LocalCluster`: processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from galileo.client import Credentials
from galileo.errors import Unavailable
from galileo.wire.tls_credentials import TOKEN_VARIABLE, without_token

STOP_TIMEOUT_S = 15.0
LOG_TAIL_BYTES = 2_000


class _LocalService:
    """A process of the `galileo` command; runs within a `with` block.

    Args:
        command: its name.
        nodes: addresses of the cluster's nodes.
        log: its log file.
        tls: directory of the certificate that the nodes see; "" without TLS.
        timeout: how long it retries unreachable nodes.
        arguments: further ones of the command.
    """

    def __init__(
        self,
        command: str,
        nodes: Sequence[str],
        *,
        log: Path,
        tls: str = "",
        timeout: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self._command = command
        self._log = log
        named = [word for node in nodes for word in ("--node", node)]
        given = {"--tls": tls, "--timeout": timeout}
        named += [word for option, value in given.items() if value for word in (option, value)]
        self._arguments = [*named, *arguments]
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
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
        """Starts the process, and waits until it is ready.

        Raises:
            Unavailable: it does not start; with the end of its log.
        """
        command = [sys.executable, "-m", "galileo", self._command, "--json"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--parent", str(os.getpid()), *self._arguments],
                env=without_token(os.environ) | self._environment,
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
            raise Unavailable(
                f"the {self._command} did not start; the end of its log {self._log}:\n{tail}"
            )
        self._note(json.loads(line))

    def stop(self) -> None:
        """Stops the process by SIGTERM, after a timeout by SIGKILL."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the process by SIGKILL, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def _note(self, line: dict[str, str]) -> None:
        """Takes what the process says when it is ready."""


class LocalGateway(_LocalService):
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
        given = ["--port", str(port), *arguments]
        super().__init__("gateway", nodes, log=log, tls=tls, timeout=timeout, arguments=given)
        self.url = ""

    def _note(self, line: dict[str, str]) -> None:
        self.url = line["url"]


class LocalWorker(_LocalService):
    """A `galileo worker` process; pushes notifications within a `with` block.

    Args:
        nodes: addresses of the cluster's nodes.
        log: its log file.
        proof: its credentials.
        arguments: further ones of the command.

    Attributes:
        name: as `Client.deliveries` has it; "" before it runs.

    Example:
        >>> with cluster.worker() as worker:  # doctest: +SKIP
        ...     print(worker.running)
        True
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        log: Path,
        proof: Credentials,
        arguments: Sequence[str] = (),
    ) -> None:
        if proof.token_file:
            arguments = ["--token-file", str(proof.token_file), *arguments]
        super().__init__("worker", nodes, log=log, tls=str(proof.tls), arguments=arguments)
        if proof.token:
            self._environment[TOKEN_VARIABLE] = proof.token
        self.name = ""

    def _note(self, line: dict[str, str]) -> None:
        self.name = line["worker"]
