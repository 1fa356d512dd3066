"""A real MQTT server (mosquitto)."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
START_TIMEOUT_S = 30.0
needs_mosquitto = pytest.mark.skipif(
    not Path(MOSQUITTO).exists(), reason="mosquitto is not installed (Debian: mosquitto)"
)


class MosquittoServer:
    """A mosquitto process, which can be stopped and started again at its address."""

    def __init__(self, directory: Path, port: int, *settings: str) -> None:
        self.url = f"mqtt://127.0.0.1:{port}"
        self.port = port
        self._path = directory / "mosquitto.conf"
        lines = [f"listener {port} 127.0.0.1", "max_queued_messages 0", *settings]
        lines.append(f"user {getpass.getuser()}")
        self._path.write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "mosquitto does not listen"
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
