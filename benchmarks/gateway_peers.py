"""Features over HTTP: a page of GeoJSON, compared with pygeoapi and tipg over PostGIS.

All serve the same rows, each from one process, and answer the same request in turns; pages with
wrong numbers of features fail. The peers are installed from PyPI into an environment of their own
in a temporary directory.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow as pa

from benchmarks import clusters, ingest_postgis, postgis
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench, NotInstalled

FEATURES = 10_000
"""The largest page of a gateway."""
TABLE = "observations"
PYGEOAPI, TIPG = "0.21.0", "1.6.1"
PACKAGES = (
    *(f"pygeoapi=={PYGEOAPI}", "psycopg2-binary", "geoalchemy2"),
    *(f"tipg=={TIPG}", "uvicorn"),
)
INSTALL_S = 600.0
START_S = 60.0
TIMEOUT_S = 120.0
HOST = "127.0.0.1"
PYGEOAPI_TIMES, TIPG_TIMES = 5.0, 2.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Seconds for a page.

    Raises:
        NotInstalled: PostGIS is not installed, or the peers cannot be.
    """
    rows = clusters.forecast(FEATURES, stride=1).select(ingest_postgis.COLUMNS)
    with ExitStack() as stack:
        session = stack.enter_context(postgis.running())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-bench-")))
        programs = _installed(directory)
        _store(session, rows)
        [sockets] = session.ask("SHOW unix_socket_directories")[1]
        running = stack.enter_context(clusters.cluster(bench.directory, nodes=1))
        client = stack.enter_context(running.client())
        client.create_dataset(ingest_postgis.SCHEMA)
        client.ingest(ingest_postgis.SCHEMA.name, rows)
        gateway = stack.enter_context(running.gateway())
        pygeoapi = stack.enter_context(_pygeoapi(programs, directory, sockets))
        tipg = stack.enter_context(_tipg(programs, directory, sockets))
        path = f"collections/{ingest_postgis.SCHEMA.name}/items?limit={FEATURES}"
        own, first, second = in_turn(
            _page(f"{gateway.url}/{path}"),
            _page(f"{pygeoapi}/collections/{TABLE}/items?f=json&limit={FEATURES}"),
            _page(f"{tipg}/collections/public.{TABLE}/items?f=geojson&limit={FEATURES}"),
            runs=bench.sizes.runs,
        )
    for name, spread, times in (
        (f"pygeoapi {PYGEOAPI}", first, PYGEOAPI_TIMES),
        (f"tipg {TIPG}", second, TIPG_TIMES),
    ):
        yield Figure(
            f"a page of {FEATURES:,} features as GeoJSON, compared with {name}",
            "s",
            own,
            (Peer(f"{name} over PostGIS", spread),),
            (Goal("at most", 40e-3), Goal("at most", 1 / times, of_peer=True)),
        )


def _installed(directory: Path) -> Path:
    """The directory of the peers' programs. Raises NotInstalled."""
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / "bin"
    command: list[str | Path] = [
        programs / "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        raise NotInstalled(f"pygeoapi and tipg cannot be installed: {done.stderr[-300:]}")
    return programs


def _store(session: postgis.Session, rows: pa.Table) -> None:
    with ingest_postgis.copying(session, rows, rows=FEATURES) as (copy, _):
        copy()
    session.ask(f"ALTER TABLE {TABLE} ADD COLUMN id serial PRIMARY KEY")
    session.ask(f"ANALYZE {TABLE}")


@contextmanager
def _pygeoapi(programs: Path, directory: Path, sockets: str) -> Iterator[str]:
    port = _free_port()
    config, document = directory / "pygeoapi.json", directory / "openapi.json"
    config.write_text(json.dumps(_pygeoapi_config(port, sockets)))  # JSON is YAML.
    environment = {"PYGEOAPI_CONFIG": str(config), "PYGEOAPI_OPENAPI": str(document)}
    command: list[str | Path] = [
        programs / "pygeoapi",
        "openapi",
        "generate",
        config,
        "--output-file",
        document,
    ]
    subprocess.run(command, env=_environment(environment), check=True, stdout=subprocess.DEVNULL)
    with _serving(programs, "pygeoapi.starlette_app:APP", port, environment) as url:
        yield url


def _pygeoapi_config(port: int, sockets: str) -> dict[str, object]:
    texts = {"title": "peer", "description": "peer", "keywords": ["peer"]}
    provider = {
        "type": "feature",
        "name": "PostgreSQL",
        "data": {
            "host": sockets,
            "port": postgis.PORT,
            "dbname": "postgres",
            "user": postgis.USER,
            "password": "",
        },
        "id_field": "id",
        "table": TABLE,
        "geom_field": "place",
    }
    return {
        "server": {
            "bind": {"host": HOST, "port": port},
            "url": f"http://{HOST}:{port}",
            "mimetype": "application/json; charset=UTF-8",
            "encoding": "utf-8",
            "languages": ["en-US"],
            "limits": {"default_items": FEATURES, "max_items": FEATURES},
            "map": {"url": "", "attribution": ""},
        },
        "logging": {"level": "ERROR"},
        "metadata": {
            "identification": {**texts, "terms_of_service": "", "url": "http://peer.example"},
            "license": {"name": "none", "url": "http://peer.example"},
            "provider": {"name": "peer", "url": "http://peer.example"},
            "contact": {"name": "peer"},
        },
        "resources": {
            TABLE: {
                "type": "collection",
                **texts,
                "links": [],
                "extents": {"spatial": {"bbox": [-180, -90, 180, 90]}},
                "providers": [provider],
            }
        },
    }


@contextmanager
def _tipg(programs: Path, directory: Path, sockets: str) -> Iterator[str]:
    environment = {
        "DATABASE_URL": f"postgresql://{postgis.USER}@{quote(sockets, safe='')}/postgres",
        "TIPG_MAX_FEATURES_PER_QUERY": str(FEATURES),
    }
    with _serving(programs, "tipg.main:app", _free_port(), environment) as url:
        yield url


@contextmanager
def _serving(programs: Path, app: str, port: int, environment: dict[str, str]) -> Iterator[str]:
    """A server of an application, and its URL."""
    command: list[str | Path] = [programs / "uvicorn", app, "--host", HOST, "--port", str(port)]
    command += ["--log-level", "error", "--no-access-log"]
    with subprocess.Popen(command, env=_environment(environment)) as process:
        try:
            _await_port(process, port)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()


def _environment(own: dict[str, str]) -> dict[str, str]:
    """That of this process, without its paths of modules."""
    return {name: at for name, at in os.environ.items() if name != "PYTHONPATH"} | own


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError("a peer did not start; the reason is above") from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def _page(url: str) -> Callable[[], None]:
    """What asks for a page and receives it whole; its features are counted once."""
    where = urlsplit(url)
    is_checked = False

    def ask() -> None:
        nonlocal is_checked
        connection = http.client.HTTPConnection(where.netloc, timeout=TIMEOUT_S)
        connection.request("GET", f"{where.path}?{where.query}")
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"expected a page at {url}, got {reply.status}: {body[:300]!r}")
        if not is_checked:
            found = len(json.loads(body)["features"])
            if found != FEATURES:
                raise RuntimeError(f"expected {FEATURES} features at {url}, got {found}")
            is_checked = True

    return ask
