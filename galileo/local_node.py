"""One node of a `LocalCluster`: a process of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from galileo.config import NODE_ENVIRONMENT
from galileo.errors import Unavailable
from galileo.wire.channel import open_blocking_channel
from galileo.wire.services import HEALTH
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles, without_token

START_TIMEOUT_S = 300.0
"""For a node with much data, or on a busy machine; one that ends is noticed at once."""
STOP_TIMEOUT_S = 15.0
LOOK_S = 0.1
LOG_TAIL_BYTES = 2_000


class LocalNode:
    """One node process of a `LocalCluster`.

    Attributes:
        name: of the node.
        address: "127.0.0.1:port", at which others connect to it.
        listen: the address to bind, if it differs; else empty.
        log: the log file.
        was_started: whether this object has started it before.
        prefix: words before those of its command when it is started, of a program that runs the
            rest in its own place, such as ("env", "TZ=UTC").
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        config: Path,
        write_config: Callable[[], object],
        listen: str = "",
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self.name = name
        self.address = address
        self.log = config.with_suffix(".log")
        self.listen = listen
        self.prefix: tuple[str, ...] = ()
        self._config = config
        self._write_config = write_config
        self.was_started = False
        self._keys = keys
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<LocalNode {self.name} at {self.address}, {'up' if self.running else 'down'}>"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> None:
        """Starts the process; call `wait` before use."""
        if self.running:
            return
        if not self.was_started:
            # Not before: it may be the file of a running cluster.
            self._write_config()
            self.was_started = True
        command = [*self.prefix, sys.executable, "-m", "galileo.server"]
        elsewhere = ["--set", f"node.listen={self.listen}"] if self.listen else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *elsewhere, "--config", str(self._config), "--parent", str(os.getpid())],
                env={**NODE_ENVIRONMENT, **without_token(os.environ)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the node serves.

        Raises:
            Unavailable: it ended, or does not serve in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not self._serves():
            has_ended = not self.running
            if has_ended or time.monotonic() > deadline:
                what = "did not start" if has_ended else f"does not serve after {timeout_s:g} s"
                raise Unavailable(
                    f"node {self.name} {what}; the end of its log {self.log}:\n{self._log_tail()}",
                    node=self.name,
                )
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """Kills the process by SIGKILL."""
        self._signal(signal.SIGKILL)
        self.wait_stopped()

    def stop(self) -> None:
        """Stops the process by SIGTERM, after a timeout by SIGKILL."""
        self._signal(signal.SIGTERM)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Waits until the process has ended; after a timeout kills it."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Pauses the process by SIGSTOP: its connections stay open, it answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Starts the node again with its data, and waits until it serves."""
        if self.running:
            self.stop()
        self.start()
        self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def _serves(self) -> bool:
        with open_blocking_channel(self.address, self._keys) as channel:
            try:
                reply = channel.stub(HEALTH).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def _log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
