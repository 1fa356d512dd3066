"""The pages of the API: a visitor's way through them, in a real browser with a real cluster."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pytest
from map_pages import NARROW, WIDE, chromium, opened

import galileo
from galileo.client import async_datasets
from galileo.local_services import LocalGateway

HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def dataset(cluster: galileo.LocalCluster, fresh_name: Callable[[str], str]) -> str:
    """A dataset with 150 observations, whose texts and units are hostile."""
    name = fresh_name("pages")
    client = cluster.client()
    features = [galileo.Feature("rain", unit="<b>mm"), galileo.Feature("note", type="text")]
    with pytest.MonkeyPatch.context() as patch:  # Nodes take any text as a unit.
        patch.setattr(async_datasets, "check_units", lambda _: None)
        client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    rows = 150
    frame = {
        "latitude": 40.0,
        "longitude": 8.0,
        "time": pd.Timestamp("2014-03-01T00:00Z") + pd.to_timedelta(range(rows), "s"),
        "rain": range(rows),
        "note": HOSTILE,
    }
    client.ingest(name, pd.DataFrame(frame))
    return name


def read(url: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


@pytest.mark.slow
def test_a_visitor_finds_observations_and_nothing_of_them_runs(
    browser: Any, gateway: LocalGateway, dataset: str
) -> None:
    with opened(browser, gateway.url, size=NARROW, refusals=(404,)) as shown:
        page = shown.page
        page.goto(gateway.url)
        page.get_by_role("link", name=re.compile("^The datasets")).click()
        page.get_by_role("link", name=dataset, exact=True).click()
        assert "<b>mm" in page.locator("main").inner_text()
        page.get_by_role("link", name="Observations", exact=True).click()
        assert page.locator("tbody tr").count() == 100
        assert HOSTILE in page.locator("tbody").inner_text()
        page.get_by_role("link", name="Next page").click()
        assert page.locator("tbody tr").count() == 50
        page.locator("tbody a").first.click()
        assert HOSTILE in page.locator("dl").inner_text()
        page.goto(f"{gateway.url}/collections/absent")
        assert "does not exist" in page.locator("main").inner_text()
        for width, height in (NARROW, WIDE):
            page.set_viewport_size({"width": width, "height": height})
            widest = page.evaluate("document.documentElement.scrollWidth")
            assert widest <= width, "nothing but tables is wider than the window"


def test_page_and_document_have_one_address(gateway: LocalGateway, dataset: str) -> None:
    path = f"/collections/{dataset}/items?limit=2"
    reply, body = read(gateway.url, path)
    document = json.loads(body)
    assert reply.headers["Vary"] == "Accept"
    [page] = [link for link in document["links"] if link["rel"] == "alternate"]
    reply, body = read(gateway.url, page["href"].removeprefix(gateway.url))
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script" not in reply.headers["Content-Security-Policy"]
    assert reply.headers["Vary"] == "Accept"
    assert all(feature["id"].encode() in body for feature in document["features"])
    assert read(gateway.url, path, Accept="text/html")[1].count(b"<tr>") == 3
    # Parameters that are wrong are so for pages, too.
    reply, body = read(gateway.url, f"{path}&f=html&nothing=1")
    assert (reply.status, b"there is no parameter" in body) == (400, True)
