"""Takes the pictures of the map page, in a browser, of a cluster that is started for them."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import galileo
from galileo.generate import NamLike

START = "2014-03-01T00:00:00Z"
HOURS, STRIDE = 18, 3
WARM = "temperature > 290 AND S_INTERSECTS(geometry, BBOX(-106, 27, -88, 43))"
QUALITY = 50
"""Of WebP, 0 to 100."""
TIMEOUT_MS = 120_000
BORDERS_MS = 1_500
"""For borders, which the page draws last."""
WIDE, NARROW = (1440, 900), (390, 844)
BROWSER = shutil.which("chromium") or "/usr/bin/chromium"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: its name, what is done before it is taken, and how the page is opened."""

    name: str
    act: Callable[[Page], None]
    fragment: str = ""
    size: tuple[int, int] = WIDE
    theme: str = "light"


def take_map(directory: Path) -> None:
    """Writes the pictures `live-map*.webp`."""
    with sync_playwright() as playwright, galileo.LocalCluster(nodes=3, groups=1) as cluster:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        client = cluster.client(timeout="2m")
        with cluster.gateway() as gateway:

            def take(shots: list[Shot]) -> None:
                for shot in shots:
                    (directory / f"{shot.name}.webp").write_bytes(taken(browser, gateway.url, shot))

            take([Shot("live-map-empty", await_text("No dataset yet"))])
            hours = fill(client)
            begin_watch(client, hours)
            take([Shot("live-map", watch_news(client, hours), "at=-97,38,4.7"), *states()])
            cluster.node("node-3").kill()
            take([Shot("live-map-cluster", cluster_panel, theme="dark")])
        browser.close()


def fill(client: galileo.Client) -> Iterator[Any]:
    """Hours of a forecast; returns those that come later."""
    model = NamLike(seed=7, stride=STRIDE)
    client.create_dataset(model.schema())
    client.ingest("nam", model.stream(START, hours=HOURS))
    return model.stream("2014-03-01T18:00:00Z", hours=24, rows_per_batch=30_000)


def begin_watch(client: galileo.Client, hours: Iterator[Any]) -> None:
    """Submits a continuous query of the forecast, and waits for its first update."""
    ccq = client.submit("nam", WARM, interval="1s", expiration="12h")
    client.ingest("nam", next(hours))
    next(update for update in client.watch(ccq, token=ccq.token) if len(update.labels))


def taken(browser: Any, url: str, shot: Shot) -> bytes:
    """The picture as WebP."""
    is_narrow = shot.size == NARROW
    context = browser.new_context(
        viewport={"width": shot.size[0], "height": shot.size[1]},
        color_scheme=shot.theme,
        device_scale_factor=2 if is_narrow else 1,
        is_mobile=is_narrow,
        has_touch=is_narrow,
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"{url}/map#{shot.fragment}")
    shot.act(page)
    page.wait_for_timeout(500)
    full, small = io.BytesIO(page.screenshot()), io.BytesIO()
    with Image.open(full) as image:
        image.convert("RGB").save(small, format="webp", quality=QUALITY, method=6)
    context.close()
    return small.getvalue()


def states() -> list[Shot]:
    return [
        Shot("live-map-dark", drawn, theme="dark"),
        Shot("live-map-cell", choose_cell),
        Shot("live-map-ask", ask),
        Shot("live-map-phone", drawn, size=NARROW),
        Shot("live-map-phone-dark", phone_cell, size=NARROW, theme="dark"),
    ]


def await_text(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_text(text).first.wait_for()


def drawn(page: Page) -> None:
    """Waits for cells, bars and borders."""
    page.locator(".legend").wait_for()
    page.locator(".time .bar").first.wait_for()
    page.wait_for_timeout(BORDERS_MS)


def watch_news(client: galileo.Client, hours: Iterator[Any]) -> Callable[[Page], None]:
    """Shows a watch while new labels come."""

    def act(page: Page) -> None:
        drawn(page)
        page.get_by_text("running").wait_for()
        client.ingest("nam", next(hours))
        page.get_by_role("button", name=re.compile("^[0-9,]+ new$")).first.wait_for()

    return act


def choose_cell(page: Page) -> None:
    drawn(page)
    page.locator(".map").click(position={"x": 330, "y": 430})
    page.locator(".meteogram").nth(2).wait_for()


def ask(page: Page) -> None:
    drawn(page)
    page.get_by_label("Add a condition").select_option("humidity")
    page.locator(".editor .bar").first.wait_for()
    page.get_by_label("Copy as").select_option("Python")


def phone_cell(page: Page) -> None:
    drawn(page)
    page.locator(".map").tap(position={"x": 180, "y": 300})
    page.locator(".meteogram").first.wait_for()


def cluster_panel(page: Page) -> None:
    page.get_by_role("tab", name="Cluster").click()
    page.get_by_text("unreachable").first.wait_for()
    drawn(page)
