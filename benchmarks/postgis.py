"""A PostGIS server of the benchmark's own: in a temporary directory, reached by a Unix socket."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from benchmarks.sizes import NotInstalled
from galileo.model.times import column_micros, micros

USER = "postgres"
PORT = 5432
STANDBY_S = 30.0
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "1GB",
    "work_mem": "256MB",
    "maintenance_work_mem": "512MB",
    "effective_cache_size": "4GB",
    "random_page_cost": "1.1",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "timezone": "UTC",
}
"""Memory enough for everything to stay in it. Compiling a plan and starting workers took longer
than they saved on two cores, so both are off: with them PostGIS took up to four times as long."""

_BINARIES = Path("/usr/lib/postgresql")
_CONTROLS = Path("/usr/share/postgresql")
_PROGRAMS = ("initdb", "pg_ctl", "psql")
_TIME = re.compile(r"^Time: ([\d.]+) ms")
_END = "-- answered --"
POSTGRES_EPOCH_US = micros("2000-01-01T00:00:00Z")
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"


class NoServer(NotInstalled):
    """PostgreSQL with PostGIS is not installed; the text says what to do."""


class Session:
    """One `psql` that stays open; every statement's time is what `psql` says it waited."""

    def __init__(self, process: subprocess.Popen[str], writes: IO[str], reads: IO[str]) -> None:
        self._process, self._writes, self._reads = process, writes, reads

    def ask(self, statement: str, *, rows_to: Path | None = None) -> tuple[float, list[str]]:
        """Seconds until all rows had arrived, and the rows unless they went to a file."""
        self._writes.write(f"\\o {rows_to}\n" if rows_to else "\\o\n")
        self._writes.write(f"{statement};\n\\o\n\\echo {_END}\n")
        self._writes.flush()
        lines: list[str] = []
        for line in self._reads:
            if line.rstrip("\n") == _END:
                break
            lines.append(line.rstrip("\n"))
        else:
            raise RuntimeError(f"expected an answer from psql, it ended after {lines[-5:]}")
        took = next(float(found[1]) for line in reversed(lines) if (found := _TIME.match(line)))
        return took / 1e3, [line for line in lines if not _TIME.match(line)]

    def close(self) -> None:
        self._writes.close()
        self._process.wait(timeout=30)
        self._reads.close()


@contextmanager
def readable_directory() -> Iterator[Path]:
    """A temporary directory whose files the server's user can read."""
    with tempfile.TemporaryDirectory(prefix="postgis-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@contextmanager
def running(*, standbys: int = 0, tcp_port: int = 0) -> Iterator[Session]:
    """A server with an empty database and the extension, and a session with it.

    Args:
        standbys: further servers on this machine; one of them has to confirm each commit.
        tcp_port: on the loopback interface, for programs that know no Unix sockets; 0 for none.

    Raises:
        NoServer: it is not installed.
    """
    binaries = _binaries()
    with tempfile.TemporaryDirectory(prefix="postgis-bench-") as name, ExitStack() as servers:
        directory = Path(name)
        if os.geteuid() == 0:
            shutil.chown(directory, USER)
        data = directory / "data"
        _run(binaries / "initdb", "-D", data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8")
        settings = {"unix_socket_directories": name} | SETTINGS
        if tcp_port:
            settings |= {"listen_addresses": "127.0.0.1", "port": str(tcp_port)}
        _set(data, settings)
        servers.enter_context(_serving(binaries, data))
        with ExitStack() as stack:
            session = stack.enter_context(_connected(binaries, directory, tcp_port or PORT))
            for number in range(standbys):
                copy = directory / f"standby-{number}"
                _run(
                    binaries / "pg_basebackup",
                    "-h",
                    name,
                    "-U",
                    USER,
                    "-D",
                    copy,
                    "-R",
                    "-c",
                    "fast",
                )
                _set(copy, {"port": str(PORT + 1 + number)})
                servers.enter_context(_serving(binaries, copy))
            if standbys:
                session.ask("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
                session.ask("SELECT pg_reload_conf()")
                _expect_standbys(session, standbys)
            yield session


def _expect_standbys(session: Session, count: int) -> None:
    deadline = time.monotonic() + STANDBY_S
    while True:
        states = session.ask("SELECT sync_state FROM pg_stat_replication")[1]
        if states == ["quorum"] * count:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"expected {count} synchronous standbys, got {states}")
        time.sleep(0.1)


def _set(data: Path, settings: dict[str, str]) -> None:
    written = "".join(f"{key} = '{value}'\n" for key, value in settings.items())
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(written)


@contextmanager
def _serving(binaries: Path, data: Path) -> Iterator[None]:
    _run(binaries / "pg_ctl", "-D", data, "-w", "-l", f"{data}.log", "start")
    try:
        yield
    finally:
        _run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


@contextmanager
def _connected(binaries: Path, directory: Path, port: int) -> Iterator[Session]:
    command = [binaries / "psql", "-h", directory, "-p", port, "-U", USER, "-d", "postgres"]
    process = subprocess.Popen(
        _as_user(*command, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("expected pipes to psql")
    session = Session(process, process.stdin, process.stdout)
    process.stdin.write("\\timing on\n")
    try:
        _extended(session)
        yield session
    finally:
        session.close()


def _extended(session: Session) -> None:
    session.ask("SET client_min_messages = error")
    _, found = session.ask("SELECT name FROM pg_available_extensions WHERE name = 'postgis'")
    if found != ["postgis"]:
        raise NoServer(_ADVICE)
    session.ask("CREATE EXTENSION postgis")


def versions() -> dict[str, str]:
    """The versions of PostgreSQL and PostGIS.

    Raises:
        NoServer: it is not installed.
    """
    said = subprocess.run([_binaries() / "pg_ctl", "--version"], capture_output=True, text=True)
    found = {"PostgreSQL": said.stdout.split()[2]}
    for control in sorted(_CONTROLS.glob("*/extension/postgis.control")):
        if stated := re.search(r"default_version = '(.+)'", control.read_text()):
            found["PostGIS"] = stated[1]
    return found


_ADVICE = (
    "PostgreSQL with PostGIS is not installed; on Debian: "
    "apt-get update && apt-get install postgresql-15 postgresql-15-postgis-3"
)


def _binaries() -> Path:
    """The directory with all of the newest server's programs; what the path names comes last."""
    newest_first = sorted(
        _BINARIES.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True
    )
    on_path = [Path(at).parent for at in [shutil.which("pg_ctl")] if at]
    for directory in [*newest_first, *on_path]:
        if all((directory / program).exists() for program in _PROGRAMS):
            return directory
    raise NoServer(_ADVICE)


def _run(*command: object) -> None:
    done = subprocess.run(_as_user(*command), capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")


def _as_user(*command: object) -> list[str]:
    """The server refuses to be run by root, so root runs it as `USER`."""
    words = [str(word) for word in command]
    return ["runuser", "-u", USER, "--", *words] if os.geteuid() == 0 else words


def binary_copy(table: pa.Table) -> bytes:
    """The rows as PostgreSQL's binary COPY format has them; only doubles and times, no nulls.

    Source: PostgreSQL 15 documentation, COPY, "Binary Format".
    """
    fields: list[tuple[str, str]] = [("count", ">i2")]
    for name in table.column_names:
        fields += [(f"{name} bytes", ">i4"), (name, ">i8" if name == "time" else ">f8")]
    rows = np.empty(table.num_rows, dtype=fields)
    rows["count"] = table.num_columns
    for name in table.column_names:
        column = table.column(name)
        rows[f"{name} bytes"] = 8
        is_time = name == "time"
        rows[name] = column_micros(column) - POSTGRES_EPOCH_US if is_time else column.to_numpy()
    return _COPY_SIGNATURE + rows.tobytes() + _COPY_END
