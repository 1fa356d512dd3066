"""The map page: what its users do, in a real browser, with a real cluster and gateway."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pandas as pd
import pytest
import shapely
from map_pages import NARROW, WIDE, MapPage, chromium, opened
from proving import Tokens, auth_section

import galileo
from galileo.local_services import LocalGateway
from galileo.rpc.access import Role

START = pd.Timestamp("2014-03-01T00:00Z")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def observations(places: list[tuple[float, float]], temperatures: list[float]) -> pd.DataFrame:
    """An observation of each place, an hour after the last one."""
    latitudes, longitudes = np.array(places).T
    return pd.DataFrame(
        {
            "latitude": latitudes,
            "longitude": longitudes,
            "time": START + pd.to_timedelta(np.arange(len(places)), "h"),
            "temperature": temperatures,
            "station": [f"S{number}" for number in range(len(places))],
        }
    )


def created(client: galileo.Client, name: str) -> str:
    features = [galileo.Feature("temperature", unit="K"), galileo.Feature("station", type="text")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    return name


SETTLE_MS = 5_000
PLACES = [(37.3, -103.4), (40.1, -103.4), (42.9, -103.4), (37.3, -97.7), (40.1, -97.7)]
"""In the middles of 9ww, 9xn, 9xw, 9yd and 9z4."""
TEMPERATURES = [280.0, 285.0, 290.0, 295.0, 300.0]


@pytest.fixture
def dataset(
    cluster: galileo.LocalCluster, fresh_name: Callable[[str], str]
) -> tuple[galileo.Client, str]:
    """A client, and the name of a dataset with an observation in each of five cells."""
    client = cluster.client()
    name = created(client, fresh_name("seen"))
    client.ingest(name, observations(PLACES, TEMPERATURES))
    return client, name


def test_a_question_is_asked_and_its_cells_are_shown(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str]
) -> None:
    _, name = dataset
    with opened(browser, gateway.url, fragment=f"dataset={name}", refusals=(400,)) as shown:
        page = shown.page
        shown.await_cells(5)
        assert page.get_by_label("Coloured by").input_value() == "temperature"
        assert "280" in page.locator(".legend").inner_text()

        query = page.get_by_label(re.compile("^Query"))
        query.fill("temprature > 288")
        page.get_by_role("button", name="Use temperature").click()
        assert query.input_value() == "temperature > 288"
        page.get_by_text("About 3 labels").wait_for()
        assert shown.count_cells() == 5, "not before Show"
        page.get_by_role("button", name="Show", exact=True).click()
        shown.await_cells(3)
        assert "filter=temperature+%3E+288" in page.url

        page.get_by_role("button", name=re.compile("^Show the cell")).first.click()
        page.locator(".meteogram").get_by_text("300 K").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        [row] = pd.read_csv(download.value.path()).to_dict("records")
        assert (row["temperature"], row["station"]) == (300.0, "S4")
        # It was moved to the middle of the map: viridis ends in yellow.
        shown.await_pixel(0.5, 0.5, lambda red, green, blue, _: min(red, green) > 220 > 60 > blue)


CONDITIONS = {
    "": "",
    "temperature > 290": "temperature > 290",
    "temperature>=-1.5e1": "temperature >= -15",
    "temperature BETWEEN 1 AND 2 and station IN ('a''b','c AND d')": "temperature BETWEEN 1 AND 2 "
    "AND station IN ('a''b', 'c AND d')",
    "station = 'x'": "station IN ('x')",
    "raining = TRUE": "raining = true",
    "S_INTERSECTS(geometry, BBOX(-1,2, 3.5,4)) AND temperature < 3": "S_INTERSECTS(geometry, "
    "BBOX(-1, 2, 3.5, 4)) AND temperature < 3",
    "S_INTERSECTS(geometry,POLYGON((0 0,1 0,1 1,0 0)))": "S_INTERSECTS(geometry, POLYGON((0 0, "
    "1 0, 1 1, 0 0)))",
}
"""Texts of queries, and what their conditions are as a text."""
TEXTS_ONLY = (
    "temperature > 1 OR humidity < 2",
    "(temperature > 1 AND humidity < 2)",
    "NOT temperature > 1",
    "temperature <> 1",
    "station LIKE 'K%'",
    r"station = 'it\'s'",
    "temperature > humidity",
)


@pytest.mark.slow
def test_queries_become_conditions_only_where_nothing_is_lost(
    browser: Any, gateway: LocalGateway
) -> None:
    script = """async (texts) => {
        const { src } = document.querySelector("script[type=module]");
        const { parse, text } = await import(new URL("conditions.js", src));
        return texts.map((one) => { const found = parse(one); return found && text(found); });
    }"""
    with opened(browser, gateway.url) as shown:
        found = shown.page.evaluate(script, [*CONDITIONS, *CONDITIONS.values(), *TEXTS_ONLY])
    again = [*CONDITIONS.values()]
    assert found == [*again, *again, *(None for _ in TEXTS_ONLY)]


@pytest.mark.slow
def test_a_link_shows_the_same_to_others(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str]
) -> None:
    _, name = dataset
    with opened(browser, gateway.url, fragment=f"dataset={name}") as shown:
        page = shown.page
        page.get_by_label("Add a condition").select_option("station")
        page.get_by_role("group", name="Condition on station").get_by_label("S1").check()
        page.get_by_role("button", name="Show", exact=True).click()
        shown.await_cells(2)
        page.get_by_role("slider", name="End of the time range").press("Home")
        page.get_by_text("1 Mar 2014, 00:00 to 01:00 UTC").wait_for()
        shown.await_cells(1)
        link = page.url
    fragment = urlsplit(link).fragment
    with opened(browser, gateway.url, fragment=fragment, color_scheme="dark") as other:
        other.await_cells(1)
        page = other.page
        assert page.get_by_label(re.compile("^Query")).input_value() == "station IN ('S0', 'S1')"
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.get_by_role("button", name="Show all times").click()
        other.await_cells(2)
        page.get_by_role("button", name=re.compile("^Remove the condition")).click()
        page.get_by_role("button", name="Show", exact=True).click()
        other.await_cells(5)


@pytest.mark.slow
def test_a_region_is_drawn_and_a_cell_is_chosen_without_a_mouse(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str]
) -> None:
    _, name = dataset
    with opened(browser, gateway.url, fragment=f"dataset={name}") as shown:
        page = shown.page
        shown.await_cells(5)
        page.locator(".map").press("Enter")  # Nothing is in the middle, between two columns.
        assert "cell=" not in page.url
        page.get_by_role("button", name="Show the cell 9xn").press("Enter")
        page.get_by_role("heading", name="9xn").wait_for()
        page.locator(".map").press("Escape")
        page.locator(".map").press("Enter")
        page.get_by_role("heading", name="9xn").wait_for()

        page.get_by_role("button", name="Box").click()
        box = page.locator(".map").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.click(x - 40, y - 40)
        page.mouse.move(x, y)
        page.mouse.click(x + 40, y + 40)
        page.get_by_text("in the box").wait_for()
        page.get_by_role("button", name="Show", exact=True).click()
        shown.await_cells(1)


@pytest.mark.slow
def test_the_page_survives_the_loss_of_its_network(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str]
) -> None:
    client, name = dataset
    with opened(browser, gateway.url, fragment=f"dataset={name}") as shown:
        shown.may_lose = True
        page = shown.page
        shown.await_cells(5)
        shown.await_painted()
        page.context.set_offline(True)
        page.get_by_role("alert").get_by_text("This computer is offline.").wait_for()
        for seconds in (2, 1):  # The first wait is of one second, the next of two.
            page.get_by_text(f"Next attempt in {seconds} s.").wait_for()
        assert shown.count_cells() == 5
        assert shown.is_painted()
        shown.check_accessible()

        client.ingest(name, observations([(45.7, -103.4)], [281.0]))
        page.context.set_offline(False)
        shown.await_cells(6)
        page.get_by_text("complete").first.wait_for()
        page.get_by_role("main").get_by_role("alert").wait_for(state="detached")


def test_labels_of_a_keyed_dataset_are_withdrawn(
    browser: Any,
    cluster: galileo.LocalCluster,
    gateway: LocalGateway,
    fresh_name: Callable[[str], str],
) -> None:
    client, name = cluster.client(), fresh_name("alarms")
    features = [galileo.Feature("temperature", unit="K"), galileo.Feature("station", type="text")]
    client.create_dataset(
        galileo.Schema(name, features, geohash_precision=3, key="station", time_bucket="12h")
    )
    whole = observations(PLACES, TEMPERATURES)
    client.ingest(name, whole)
    with opened(browser, gateway.url, fragment=f"dataset={name}") as shown:
        page = shown.page
        shown.await_cells(5)
        page.get_by_role("button", name="Watch…").click()
        page.get_by_label("every").select_option("1s")
        page.get_by_role("button", name="Watch", exact=True).click()
        watch = page.get_by_role("article", name=f"Watch of {name}")
        watch.get_by_text("5 now").wait_for()
        latest = watch.get_by_label("Latest labels").get_by_role("button")

        middle = whole.iloc[[1]].assign(temperature=311.0)
        client.ingest(name, middle)  # It replaces.
        watch.get_by_text("1 new").wait_for()
        watch.get_by_text("5 now").wait_for()
        assert sorted(text[:3] for text in latest.all_inner_texts()) == [
            "9ww",
            "9xn",
            "9xw",
            "9yd",
            "9z4",
        ]
        shown.tab("Cells")
        page.get_by_role("cell", name="311").wait_for()
        shown.tab("Watches")

        client.delete(name, middle)
        watch.get_by_text("4 now").wait_for()
        assert "9xn" not in {text[:3] for text in latest.all_inner_texts()}
        shown.await_cells(4)
        shown.check_accessible()
    [ccq] = client.list_ccqs(name)
    client.cancel(ccq.id)


@pytest.mark.slow
def test_new_labels_come_exactly_once_though_the_gateway_is_killed(
    browser: Any, cluster: galileo.LocalCluster, dataset: tuple[galileo.Client, str]
) -> None:
    client, name = dataset
    with cluster.gateway() as first:
        port = urlsplit(first.url).port
        with opened(browser, first.url, fragment=f"dataset={name}") as shown:
            shown.may_lose = True
            page = shown.page
            shown.await_cells(5)
            page.get_by_role("button", name="Watch…").click()
            page.get_by_label("every").select_option("1s")
            page.get_by_role("button", name="Watch", exact=True).click()
            watch = page.get_by_role("article", name=f"Watch of {name}")
            watch.get_by_text("5 labels").wait_for()

            client.ingest(name, observations([(45.7, -103.4)], [281.0]))
            watch.get_by_text("1 new").wait_for()
            watch.get_by_text("6 labels").wait_for()
            watch.get_by_role("button", name="c8n").wait_for()
            shown.await_cells(6)

            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            page.get_by_role("alert").get_by_text("The gateway does not answer").wait_for()
            page.get_by_text(re.compile(r"^Next attempt in \d s\.$")).wait_for()
            assert shown.count_cells() == 6, "the map stays"
            shown.tab("Watches")
            page.get_by_text("The stream of news is interrupted").wait_for()
            shown.check_accessible()
            client.ingest(name, observations([(45.7, -97.7)], [282.0]))
            first.stop()
            with cluster.gateway(port=port or 0):
                shown.await_cells(7)
                shown.tab("Watches")
                watch.get_by_text("2 new").wait_for()
                client.ingest(name, observations([(48.5, -97.7)], [283.0]))
                watch.get_by_text("3 new").wait_for()
                page.wait_for_timeout(SETTLE_MS)
                watch.get_by_text("8 labels").wait_for()
                latest = watch.get_by_label("Latest labels").get_by_role("button")
                cells = [text[:3] for text in latest.all_inner_texts()]
                assert cells[:3] == ["cbd", "cb4", "c8n"], "each once, the newest first"
                assert page.get_by_text("The stream of news is interrupted").count() == 0
                assert len(client.list_ccqs(name)) == 1
                watch.get_by_role("button", name="End…").click()
                watch.get_by_role("button", name="End it for good").click()
                watch.get_by_text("cancelled").wait_for()
                assert "running" not in {info.state for info in client.list_ccqs(name)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_new_labels_come_exactly_once_though_the_coordinator_is_killed(
    browser: Any, evaluator: dict[str, Any]
) -> None:
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    # While partitions are away, counts of the map are partial, and refreshes are refused.
    refused = (503, 504)
    with galileo.LocalCluster(nodes=3, settings=settings) as cluster:
        client = cluster.client(timeout="120s")
        name = created(client, "live")
        client.ingest(name, observations(PLACES, TEMPERATURES))
        with (
            cluster.gateway() as gateway,
            opened(browser, gateway.url, fragment=f"dataset={name}", refusals=refused) as shown,
        ):
            page = shown.page
            shown.await_cells(5)
            page.get_by_role("button", name="Watch…").click()
            page.get_by_label("every").select_option("1s")
            page.get_by_role("button", name="Watch", exact=True).click()
            watch = page.get_by_role("article", name=f"Watch of {name}")
            watch.get_by_text("5 labels").wait_for()

            [info] = client.list_ccqs(name)
            killed = cluster.node(info.coordinator)
            client.ingest(name, observations([(45.7, -103.4)], [281.0]))
            killed.kill()
            killed.restart()
            for number in range(4):
                client.ingest(name, observations([(45.7, -97.7 - number)], [282.0 + number]))
            watch.get_by_text("10 labels").wait_for()
            assert len(client.query(name)) == 10
            client.ingest(name, observations([(48.5, -97.7)], [290.0]))
            watch.get_by_text("11 labels").wait_for()
            page.wait_for_timeout(SETTLE_MS)  # A label that came twice would be counted by now.
            assert watch.get_by_text("11 labels").count() == 1
            [after] = client.list_ccqs(name)
            assert (after.id, after.state) == (info.id, "running")


@pytest.mark.slow
def test_an_empty_cluster_says_what_to_do_and_shows_what_comes(
    browser: Any, no_evaluator: dict[str, Any]
) -> None:
    with galileo.LocalCluster(nodes=1, settings={"evaluator": no_evaluator}) as cluster:
        client = cluster.client()
        with cluster.gateway() as gateway, opened(browser, gateway.url, size=NARROW) as shown:
            page = shown.page
            page.get_by_role("heading", name="No dataset yet").wait_for()
            page.get_by_text("galileo ingest weather FILE --create").wait_for()
            page.get_by_text("1 of 1 node").wait_for()
            shown.check_accessible()
            page.get_by_role("button", name="Ask", exact=True).click()
            assert page.get_by_role("button", name="Watch…").is_disabled(), (
                "there is nothing to watch"
            )
            page.get_by_role("button", name="Map", exact=True).click()
            created(client, "first")
            page.get_by_role("heading", name="first is empty").wait_for()
            page.get_by_text("galileo ingest first FILE").wait_for()
            shown.check_accessible()
            client.ingest("first", observations(PLACES, TEMPERATURES))
            page.locator(".legend").wait_for()
            page.get_by_role("button", name="Cells", exact=True).click()
            page.get_by_text("5 cells on the map").wait_for()


@pytest.fixture
def guarded(
    no_evaluator: dict[str, Any], tmp_path: Path
) -> Iterator[tuple[LocalGateway, dict[str, str]]]:
    """A gateway of a cluster with tokens and two datasets; tokens by the names of principals."""
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("ann", Role.READER, datasets=("rain",))
    tokens.add("eve", Role.READER, datasets=())
    auth = auth_section(tokens, tokens.tokens["node"])
    settings = {"evaluator": no_evaluator, "auth": auth}
    proof = tokens.proof("admin")
    with galileo.LocalCluster(nodes=1, settings=settings, proof=proof) as cluster:
        client = cluster.client()
        for name in ("rain", "wind"):
            created(client, name)
            client.ingest(name, observations(PLACES, TEMPERATURES))
        with cluster.gateway() as running:
            yield running, tokens.tokens


@pytest.mark.slow
def test_a_token_is_asked_for_and_its_rights_hold(
    browser: Any, guarded: tuple[LocalGateway, dict[str, str]]
) -> None:
    gateway, tokens = guarded
    with opened(browser, gateway.url, refusals=(401, 403, 404)) as shown:
        page = shown.page

        def use_token(token: str) -> None:
            page.get_by_role("textbox", name="Token").fill(token)
            page.get_by_role("button", name="Use this token").click()

        page.get_by_role("heading", name="Your token").wait_for()
        shown.check_accessible()
        use_token("glt_wrong")
        page.get_by_role("dialog").get_by_role("alert").wait_for()
        shown.check_accessible()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("heading", name="A token is needed").wait_for()
        page.get_by_role("main").get_by_role("button", name="Use a token").click()
        use_token(tokens["ann"])
        shown.await_cells(5)
        assert page.get_by_label("Dataset").locator("option").all_inner_texts() == ["rain"]
        page.get_by_role("button", name="Signed in as ann").wait_for()
        assert tokens["ann"] not in page.url
        assert page.evaluate("JSON.stringify({...sessionStorage})").find("glt_") < 0

        page.evaluate("location.hash = 'dataset=wind'")
        page.get_by_role("heading", name="No access to wind").wait_for()
        page.get_by_text("ann has no grant on a dataset wind, or there is none").wait_for()
        assert page.locator(".legend").count() == 0
        shown.check_accessible()
        shown.check_cards_fit()
        page.get_by_role("button", name="Open rain").click()
        shown.await_cells(5)
        page.reload()
        page.get_by_role("heading", name="Your token").wait_for()


@pytest.mark.slow
def test_a_token_without_rights_says_what_it_lacks(
    browser: Any, guarded: tuple[LocalGateway, dict[str, str]]
) -> None:
    gateway, tokens = guarded
    with opened(browser, gateway.url, refusals=(401, 403)) as shown:
        page = shown.page
        page.get_by_role("textbox", name="Token").fill(tokens["eve"])
        page.get_by_role("button", name="Use this token").click()
        page.get_by_role("heading", name="No dataset for you").wait_for()
        page.get_by_text("eve has no grant on a dataset.").wait_for()
        shown.check_accessible()
        shown.check_cards_fit()
        page.get_by_role("main").get_by_role("button", name="Use another token").click()
        page.get_by_role("textbox", name="Token").fill(tokens["node"])
        page.get_by_role("button", name="Use this token").click()
        refused = page.get_by_text("'node' may not call Cluster/ListDatasets")
        refused.wait_for()
        assert "one of the roles admin, reader" in refused.inner_text()
        shown.check_accessible()


@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_page_is_accessible(
    browser: Any,
    gateway: LocalGateway,
    dataset: tuple[galileo.Client, str],
    size: tuple[int, int],
) -> None:
    _, name = dataset
    fragment = f"dataset={name}&filter=temperature+%3E+281"
    with opened(browser, gateway.url, fragment=fragment, size=size) as shown:
        page = shown.page
        page.locator(".legend").wait_for()
        shown.check_accessible()
        if size == NARROW:
            page.get_by_role("button", name="Ask", exact=True).click()
        page.get_by_role("button", name="temperature > 281 K", exact=True).click()
        page.get_by_role("button", name="Watch…").click()
        page.get_by_label("Copy as").select_option("GDAL")
        shown.check_accessible()
        for panel in ("Channels", "Cells", "Cluster"):
            if size == NARROW:
                page.get_by_role("button", name=panel, exact=True).click()
            else:
                shown.tab(panel)
            shown_first = {"Channels": "paragraph", "Cells": "table", "Cluster": "heading"}[panel]
            page.get_by_role("tabpanel").get_by_role(shown_first).first.wait_for()
            shown.check_accessible()


def news_of(client: galileo.Client, channel: str, broker: str) -> list[tuple[str, str]]:
    """Subscription and station of each notification so far."""
    rows = [
        row
        for batch in client.follow(channel, broker, wait="3s")
        for row in batch.to_arrow().select(["subscription", "station"]).to_pylist()
    ]
    return [(row["subscription"], row["station"]) for row in rows]


def draw_box(shown: MapPage, west: float, south: float, east: float, north: float) -> None:
    """Clicks two corners, at shares of the map's size."""
    box = shown.page.locator(".map").bounding_box()
    for x, y in ((west, north), (east, south)):
        shown.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        shown.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


@pytest.fixture
def channel(dataset: tuple[galileo.Client, str]) -> str:
    """A channel of the dataset, which takes an area and the least temperature."""
    client, name = dataset
    template = "temperature > :least AND S_INTERSECTS(geometry, :area)"
    client.create_channel(galileo.Channel(f"{name}-in", name, template, period="200ms"))
    return f"{name}-in"


@pytest.mark.slow
def test_an_area_is_subscribed_and_its_notifications_are_shown(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str], channel: str
) -> None:
    client, name = dataset
    fragment = f"dataset={name}&panel=channels&at=-100,40,5"
    with opened(browser, gateway.url, fragment=fragment) as shown:
        page = shown.page
        page.get_by_role("button", name="Subscribe an area").click()
        form = page.get_by_role("form", name="Subscribe an area")
        assert form.get_by_role("button", name="Subscribe", exact=True).is_disabled()
        form.get_by_role("button", name="Box").click()
        draw_box(shown, 0.4, 0.6, 0.6, 0.4)
        form.get_by_text(re.compile("^From .* to ")).wait_for()
        form.get_by_label("least").fill("280")
        broker = form.get_by_label("Broker").input_value()
        form.get_by_role("button", name="Subscribe", exact=True).click()
        one = page.get_by_role("article", name=f"Subscription {broker}-1")
        one.get_by_text("running").wait_for()
        one.get_by_text("0 notifications").wait_for()
        [stored] = client.table(f"{channel}.subscriptions").rows.to_pylist()
        assert (stored["id"], stored["broker"], stored["least"]) == (f"{broker}-1", broker, 280.0)
        area = shapely.from_wkb(stored["area"])
        assert area.covers(shapely.Point(-100, 40))
        assert not area.intersects(shapely.MultiPoint([(-105, 40), (-100, 45)]))

        assert not shown.is_ringed()
        there, away = (40.0, -100.0), (45.7, -103.4)
        client.ingest(name, observations([there, there, away], [281.0, 279.0, 285.0]))
        one.get_by_text("1 new", exact=True).wait_for()
        one.get_by_text("1 notification", exact=True).wait_for()
        latest = one.get_by_label("Latest notifications")
        assert latest.get_by_role("button").all_inner_texts() == ["40.00° N, 100.00° W"]
        assert "temperature 281" in latest.inner_text()
        shown.await_ringed()
        shown.check_accessible()

        page.reload()
        one.get_by_text("1 notification", exact=True).wait_for()
        shown.await_ringed()
        assert one.get_by_text("new").count() == 0, "it was there before the page"
        client.ingest(name, observations([there], [282.0]))
        one.get_by_text("2 notifications").wait_for()
        one.get_by_text("1 new", exact=True).wait_for()

        one.get_by_role("button", name="Unsubscribe").click()
        one.wait_for(state="detached")
        shown.await_ringed(False)
        assert client.table(f"{channel}.subscriptions").rows.num_rows == 0
        assert "subscriptions=" not in page.url


@pytest.mark.slow
def test_an_area_is_subscribed_without_a_mouse(
    browser: Any, gateway: LocalGateway, dataset: tuple[galileo.Client, str]
) -> None:
    client, name = dataset
    template = (
        "S_DWITHIN(geometry, :place, :metres) AND station <> :other AND T_AFTER(time, :since)"
    )
    near = galileo.Channel(f"{name}-near", name, template, new="either", leave=True, period="200ms")
    client.create_channel(near)
    fragment = f"dataset={name}&panel=channels&at=-103.4,40.1,5"
    with opened(browser, gateway.url, fragment=fragment, size=NARROW, refusals=(400, 404)) as shown:
        page = shown.page
        page.locator(".legend").wait_for()
        page.get_by_role("button", name="Channels", exact=True).press("Enter")
        page.get_by_role("button", name="Subscribe an area").press("Enter")
        form = page.get_by_role("form", name="Subscribe an area")
        form.get_by_label("Id").fill("ship")
        form.get_by_label("Broker").fill("bridge")
        form.get_by_label("metres").fill("-5")
        form.get_by_label("other").fill("S9")
        form.get_by_label("since").fill("2014-01-01T00:00:00")
        form.get_by_role("button", name="Middle").press("Enter")
        form.get_by_text("40.10° N, 103.40° W").wait_for()
        form.get_by_label("Id").press("Enter")
        form.get_by_role("alert").get_by_text(re.compile("distance|metres")).wait_for()
        shown.check_accessible()
        form.get_by_label("metres").fill("1000")
        form.get_by_label("Id").press("Enter")
        one = page.get_by_role("article", name="Subscription ship")
        one.get_by_text("1 notification", exact=True).wait_for()  # It is there already.
        assert news_of(client, near.name, "bridge") == [("ship", "S1")]

        page.get_by_role("button", name="Subscribe an area").press("Enter")
        page.evaluate("location.hash = location.hash.replace(/at=[^&]*/, 'at=-97.7,37.3,5')")
        form.get_by_label("Id").fill("ship")
        form.get_by_label("metres").fill("1000")
        form.get_by_label("since").fill("2014-01-01T00:00:00")
        form.get_by_role("button", name="Middle").press("Enter")
        form.get_by_text("37.30° N, 97.70° W").wait_for()
        form.get_by_label("Id").press("Enter")
        form.get_by_text("A subscription ship of the broker bridge is there already.").wait_for()
        assert client.table(f"{near.name}.subscriptions").rows["other"].to_pylist() == ["S9"]
        form.get_by_role("button", name="Replace it").press("Enter")
        one.get_by_text("3 notifications").wait_for()
        one.get_by_text("left", exact=True).wait_for()
        assert sorted(news_of(client, near.name, "bridge")) == [
            *[("ship", "S1")] * 2,
            ("ship", "S3"),
        ]
        shown.check_accessible()


@pytest.mark.slow
def test_notifications_come_exactly_once_though_the_gateway_is_killed(
    browser: Any, cluster: galileo.LocalCluster, dataset: tuple[galileo.Client, str], channel: str
) -> None:
    client, name = dataset
    area = shapely.box(-105, 36, -96, 50)
    subscription = {"id": ["us, all/50%"], "least": [200.0], "area": [area]}
    client.subscribe(channel, subscription, broker="desk")
    client.ingest(name, observations(PLACES, TEMPERATURES))
    with cluster.gateway() as first:
        port = urlsplit(first.url).port
        key = f"{channel}/us%2C%20all%2F50%25"
        fragment = f"dataset={name}&panel=channels&subscriptions={quote(key)}"
        with opened(browser, first.url, fragment=fragment) as shown:
            shown.may_lose = True
            page = shown.page
            one = page.get_by_role("article", name="Subscription us, all/50%")
            one.get_by_text("5 notifications").wait_for()
            client.ingest(name, observations([(45.7, -103.4)], [281.0]))
            one.get_by_text("1 new", exact=True).wait_for()

            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            one.get_by_text("The stream of notifications is interrupted").wait_for()
            shown.check_accessible()
            client.ingest(name, observations([(45.7, -97.7)], [282.0]))
            first.stop()
            with cluster.gateway(port=port or 0):
                one.get_by_text("2 new", exact=True).wait_for()
                client.ingest(name, observations([(48.5, -97.7)], [283.0]))
                one.get_by_text("3 new", exact=True).wait_for()
                assert one.get_by_text("8 notifications").count() == 1, "each once"
                assert one.get_by_text("The stream of notifications").count() == 0
                assert len(news_of(client, channel, "desk")) == 8
                client.drop_dataset(channel)
                one.get_by_role("alert").get_by_text(channel).wait_for()
                page.get_by_text(f"No channel of {name} takes an area.").wait_for()
                one.get_by_role("button", name="Hide").click()
                one.wait_for(state="detached")
