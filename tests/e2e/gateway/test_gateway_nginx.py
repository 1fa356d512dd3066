"""A gateway behind a real nginx with TLS and a path, configured as docs/proxies.md says."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pytest
from map_pages import TIMEOUT_MS, chromium
from proving import Certified

import galileo
from galileo.cluster import free_ports
from galileo.local_services import LocalGateway
from galileo.private_ca import AUTHORITY, CERTIFICATE, KEY

ROOT = Path(__file__).parents[3]
ROWS = 2_500
TIMEOUT_S = 120.0
AWAY_S = 5.0
NGINX = next(filter(None, map(shutil.which, ("nginx", "/usr/sbin/nginx"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt-get install nginx)"),
]


def block(page: str, language: str, word: str) -> str:
    """The block of a page of the documents that has a word."""
    text = (ROOT / "docs" / page).read_text()
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    [found] = [one for one in blocks if word in one]
    return found


@dataclass(frozen=True)
class Site:
    """The URL that users of nginx have, and what is behind it."""

    url: str
    cluster: galileo.LocalCluster
    client: galileo.Client
    authority: Path
    gateway_port: int

    def get(self, url: str) -> Any:
        context = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as reply:
            return json.loads(reply.read())

    @contextlib.contextmanager
    def gateway(self) -> Iterator[None]:
        arguments = ["--proxy", "127.0.0.1", "--root-path", "/geo", "--host-name", "localhost"]
        with LocalGateway(
            self.cluster.addresses,
            log=self.cluster.directory / "proxied.log",
            port=self.gateway_port,
            timeout="1s",
            arguments=arguments,
        ):
            yield


@contextlib.contextmanager
def nginx(directory: Path, *, port: int, gateway_port: int, certificates: Path) -> Iterator[None]:
    directory.mkdir()
    server = block("proxies.md", "nginx", "proxy_pass")
    for given, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("maps.example", "localhost"),
        ("/etc/nginx/maps.pem", str(certificates / CERTIFICATE)),
        ("/etc/nginx/maps.key", str(certificates / KEY)),
        ("127.0.0.1:7790", f"127.0.0.1:{gateway_port}"),
    ):
        assert given in server
        server = server.replace(given, here)
    temporary = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n"
    (directory / "nginx.conf").write_text(f"pid {directory}/pid;\n{whole}")
    log = directory / "error.log"
    command = [str(NGINX), "-c", str(directory / "nginx.conf"), "-e", str(log), "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, no_evaluator: dict[str, Any]) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("nginx")
    certificates = Certified.made(directory / "certificates").of("node", "localhost")
    port, gateway_port = free_ports(2)
    with (
        galileo.LocalCluster(nodes=1, settings={"evaluator": no_evaluator}) as cluster,
        nginx(directory / "run", port=port, gateway_port=gateway_port, certificates=certificates),
    ):
        client = cluster.client()
        client.create_dataset(
            galileo.Schema("rain", [galileo.Feature("amount")], geohash_precision=3)
        )
        times = pd.Timestamp("2014-03-01T06:00Z") + pd.to_timedelta(range(ROWS), "s")
        rows = {"latitude": 40.0, "longitude": [n % 90 for n in range(ROWS)], "time": times}
        client.ingest("rain", pd.DataFrame({**rows, "amount": range(ROWS)}))
        client.create_channel(galileo.Channel("wet", "rain", "amount > :least", period="100ms"))
        client.subscribe("wet", {"id": ["s"], "broker": ["me"], "least": [1e6]})
        url = f"https://localhost:{port}/geo"
        yield Site(url, cluster, client, certificates / AUTHORITY, gateway_port)


def test_next_links_lead_through_nginx(site: Site) -> None:
    with site.gateway():
        amounts, url = list[float](), f"{site.url}/collections/rain/items?f=geojson"
        while url:
            page = site.get(url)
            amounts += [one["properties"]["amount"] for one in page["features"]]
            url = next((one["href"] for one in page["links"] if one["rel"] == "next"), "")
            assert not url or url.startswith(f"{site.url}/")
        assert sorted(amounts) == list(range(ROWS))


@pytest.mark.skipif(shutil.which("ogrinfo") is None, reason="ogrinfo is not installed (gdal-bin)")
def test_gdal_reads_all_pages_through_nginx(site: Site) -> None:
    with site.gateway():
        command = ["ogrinfo", "-ro", f"OAPIF:{site.url}", "rain", "-oo", "PAGE_SIZE=1000"]
        command += ["--config", "GDAL_HTTP_UNSAFESSL", "YES", "-where", "amount < 2400"]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, text=True)
        assert done.returncode == 0, done.stderr
        assert "ERROR" not in done.stderr
        assert done.stdout.count("OGRFeature(rain)") == 2_400


def test_map_shows_cells_through_nginx(site: Site) -> None:
    where = urlsplit(site.url)
    with site.gateway(), chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.set_default_timeout(TIMEOUT_MS)
        foreign: list[str] = []
        failures: list[str] = []
        page.on(
            "request", lambda one: foreign.append(one.url) if where.netloc not in one.url else None
        )
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("response", lambda one: failures.append(one.url) if one.status >= 400 else None)
        with page.expect_response(lambda one: "/collections/rain/cells" in one.url) as cells:
            page.goto(f"{site.url}/map#dataset=rain")
        assert cells.value.status == 200
        assert cells.value.url.startswith(f"{site.url}/collections/rain/cells")
        page.goto(f"{site.url}/collections/rain/items")
        page.get_by_role("link", name="Next page").click()
        page.wait_for_url(re.compile("after="))
        assert page.url.startswith(f"{site.url}/")
        assert (foreign, failures) == ([], [])


def test_event_source_follows_over_outages_of_nodes_and_of_the_gateway(site: Site) -> None:
    """The script of the documents, with a broker of a channel in place of a query."""
    script = block("http.md", "js", "new EventSource")
    for given, here in (
        ("/ccqs/ccq-8c1f/events?after=", "/geo/channels/wet/brokers/me/events?token="),
        ('"update"', '"notifications"'),
    ):
        assert given in script
        script = script.replace(given, here)
    shown = "window.shown = []; const show = (features) => shown.push(...features);"
    with chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.set_default_timeout(TIMEOUT_MS)
        least = 1_000_000.0

        def await_(condition: str) -> None:
            """Waits for a condition; the policy of the page forbids playwright's own way."""
            deadline = time.monotonic() + TIMEOUT_S
            while not page.evaluate(condition):
                assert time.monotonic() < deadline, condition
                time.sleep(0.05)

        def reported(client: galileo.Client) -> None:
            """Stores an observation that matches, and waits until the page has it."""
            nonlocal least
            least += 1
            row = {"latitude": [40.0], "longitude": [8.0], "amount": [least]}
            client.ingest("rain", {**row, "time": [pd.Timestamp("2015-03-01T06:00Z")]})
            await_(f"shown.filter((one) => one.properties.amount === {least}).length === 1")

        with site.gateway():
            page.goto(f"{site.url}/conformance?f=json")  # Its policy lets scripts connect.
            page.evaluate(f"(() => {{ {shown}{script}; window.source = () => events; }})()")
            reported(site.client)
            first = page.evaluate_handle("source()")
            [node] = site.cluster.nodes
            node.kill()
            # The stream ends, and those that follow it are empty.
            await_("source().readyState === EventSource.CONNECTING")
            time.sleep(AWAY_S)
            node.restart()
            reported(site.client)
            assert page.evaluate("(first) => first === source()", first), "it came back by itself"
        await_("source().readyState === EventSource.CLOSED")  # By a 502 of nginx.
        with site.gateway():
            reported(site.client)
            amounts = page.evaluate("shown.map((feature) => feature.properties.amount)")
            assert amounts == [1_000_001.0, 1_000_002.0, 1_000_003.0], "each once"
