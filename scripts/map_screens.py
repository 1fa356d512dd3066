"""Takes the pictures of the map page, in a browser, of clusters that are started for them."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import galileo
from galileo.client import Credentials
from galileo.generate import NamLike
from galileo.rpc import token_store
from galileo.rpc.access import EVERY_DATASET, Principal, Role

START = "2014-03-01T00:00:00Z"
HOURS, STRIDE = 18, 3
WARM = "temperature > 290 AND S_INTERSECTS(geometry, BBOX(-106, 27, -88, 43))"
QUALITY = 30
"""Of WebP, 0 to 100."""
TIMEOUT_MS = 120_000
BORDERS_MS = 2_500
"""For borders, which the page draws last."""
WIDE, NARROW = (1440, 900), (390, 844)
THEMES = ("light", "dark")
BROWSER = shutil.which("chromium") or "/usr/bin/chromium"

Act = Callable[[Page], None]


@dataclass(frozen=True, slots=True)
class State:
    """What a picture shows; there is one of each of its sizes and themes.

    Attributes:
        name: in the names of the pictures; "" for the map as it is.
        act: what is done in each page before it is taken.
        fragment: of the pages' address.
        sizes: of the pages.
        themes: of the pages.
    """

    name: str
    act: Act
    fragment: str = ""
    sizes: tuple[tuple[int, int], ...] = (WIDE, NARROW)
    themes: tuple[str, ...] = THEMES


def take_map(directory: Path) -> None:
    """Writes the pictures `live-map*.webp`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        take_forbidden(browser, directory)
        with galileo.LocalCluster(nodes=3, groups=1) as cluster:
            client = cluster.client(timeout="2m")
            with cluster.gateway() as gateway:

                def take(*states: State) -> None:
                    for state in states:
                        take_state(browser, gateway.url, state, directory)

                take(State("empty", await_text("No dataset yet")))
                hours = fill(client)
                ccq = begin_watch(client, hours)
                take(*watch_states(client, hours))
                take(State("cell", choose_cell), State("ask", ask), State("cluster", cluster_panel))
                take(*channel_states(client, hours))
                take(State("offline", lose_network))
                kill_coordinator(client, cluster, ccq)
                take(State("killed", killed_panel))
        browser.close()


def take_state(browser: Any, url: str, state: State, directory: Path) -> None:
    """Writes a picture of each size and theme."""
    for size, theme in itertools.product(state.sizes, state.themes):
        words = "live-map", state.name, "phone" * (size == NARROW), theme.removeprefix("light")
        with opened(browser, size, theme) as page:
            page.goto(f"{url}/map#{state.fragment}")
            state.act(page)
            name = "-".join(filter(None, words))
            (directory / f"{name}.webp").write_bytes(picture_of(page))


@contextmanager
def opened(browser: Any, size: tuple[int, int], theme: str) -> Iterator[Page]:
    is_narrow = size == NARROW
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        device_scale_factor=1.5 if is_narrow else 1,
        is_mobile=is_narrow,
        has_touch=is_narrow,
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    yield page
    context.close()


def picture_of(page: Page) -> bytes:
    """The page as WebP."""
    page.wait_for_timeout(500)
    full, small = io.BytesIO(page.screenshot()), io.BytesIO()
    with Image.open(full) as image:
        image.convert("RGB").save(small, format="webp", quality=QUALITY, method=6)
    return small.getvalue()


# --- the clusters --------------------------------------------------------------------------------


def fill(client: galileo.Client) -> Iterator[Any]:
    """Hours of a forecast; returns those that come later."""
    model = NamLike(seed=7, stride=STRIDE)
    client.create_dataset(model.schema())
    client.ingest("nam", model.stream(START, hours=HOURS))
    return model.stream("2014-03-01T18:00:00Z", hours=24, rows_per_batch=30_000)


def begin_watch(client: galileo.Client, hours: Iterator[Any]) -> galileo.Ccq:
    """Submits a continuous query of the forecast, and waits for its first update."""
    ccq = client.submit("nam", WARM, interval="1s", expiration="12h")
    client.ingest("nam", next(hours))
    next(update for update in client.watch(ccq, token=ccq.token) if len(update.labels))
    return ccq


def kill_coordinator(
    client: galileo.Client, cluster: galileo.LocalCluster, ccq: galileo.Ccq
) -> None:
    """Kills a node, and waits until another one coordinates the query."""
    [before] = client.list_ccqs("nam")
    cluster.node(before.coordinator).kill()
    update = client.fetch(ccq, token=ccq.token)
    while client.list_ccqs("nam")[0].term == before.term:
        update = client.fetch(ccq, token=update.token)


def take_forbidden(browser: Any, directory: Path) -> None:
    """Pictures of a caller who has no grant on a dataset."""
    with tempfile.TemporaryDirectory() as scratch, guarded(Path(scratch)) as (url, token):

        def refuse(page: Page) -> None:
            page.get_by_role("textbox", name="Token").fill(token)
            page.get_by_role("button", name="Use this token").click()
            page.get_by_role("heading", name="No access to radar").wait_for()
            page.wait_for_timeout(BORDERS_MS)

        take_state(browser, url, State("forbidden", refuse, fragment="dataset=radar"), directory)


@contextmanager
def guarded(directory: Path) -> Iterator[tuple[str, str]]:
    """The URL of a gateway that wants tokens, and the token of one who may use one dataset."""
    principals, own = directory / "principals.toml", directory / "token"

    def add(name: str, role: Role, datasets: tuple[str, ...] = EVERY_DATASET) -> str:
        return token_store.add(principals, Principal(name, frozenset({role}), datasets))

    own.touch(0o600)
    own.write_text(add("node", Role.NODE))
    admin, ann = add("root", Role.ADMIN), add("ann", Role.READER, ("nam",))
    settings = {"auth": {"token_file": str(principals), "node_token_file": str(own)}}
    proof = Credentials(admin)
    with galileo.LocalCluster(nodes=1, settings=settings, proof=proof) as cluster:
        with cluster.client() as client:
            for name in ("nam", "radar"):
                client.create_dataset(galileo.Schema(name, [galileo.Feature("temperature")]))
        with cluster.gateway() as gateway:
            yield gateway.url, ann


# --- what is done in a page ----------------------------------------------------------------------


def await_text(text: str) -> Act:
    def act(page: Page) -> None:
        page.get_by_text(text).first.wait_for()
        page.wait_for_timeout(BORDERS_MS)

    return act


def drawn(page: Page) -> None:
    """Waits for cells, bars and borders."""
    page.locator(".legend").wait_for()
    page.locator(".time .bar").first.wait_for()
    page.wait_for_timeout(BORDERS_MS)


def is_phone(page: Page) -> bool:
    return page.locator(".views").is_visible()


def open_panel(page: Page, name: str) -> None:
    if is_phone(page):
        page.locator(".views").get_by_role("button", name=name).first.click()
    else:
        page.get_by_role("tab", name=name, exact=name == "Cell").click()


def watch_states(client: galileo.Client, hours: Iterator[Any]) -> Iterator[State]:
    """A watch while new labels come; on a telephone the map and the watch are two pictures."""

    def await_news(page: Page) -> None:
        page.locator(".watch .state.running").wait_for(state="attached")
        client.ingest("nam", next(hours))
        news = page.locator(".watch").get_by_text(re.compile("^[0-9,]+ new$"))
        news.wait_for(state="attached")

    def stay(page: Page) -> None:
        drawn(page)
        await_news(page)

    def open_watches(page: Page) -> None:
        drawn(page)
        open_panel(page, "Watches")
        await_news(page)

    yield State("", stay, "at=-97,38,4.7")
    yield State("watch", open_watches, sizes=(NARROW,))


def channel_states(client: galileo.Client, hours: Iterator[Any]) -> Iterator[State]:
    """A subscription of an area: its form, and its notifications as they come."""
    template = "temperature > :least AND S_INTERSECTS(geometry, :area)"
    columns = ["latitude", "longitude", "time", "temperature", "humidity"]
    client.create_channel(galileo.Channel("warm", "nam", template, columns=columns, period="500ms"))
    middle = "at=-97,36,5.4&panel=channels"

    def fill_form(page: Page) -> None:
        drawn(page)
        if is_phone(page):
            open_panel(page, "Channels")
        page.get_by_role("button", name="Subscribe an area").click()
        page.get_by_label("least").fill("291")
        page.get_by_role("button", name="Polygon").last.click()
        draw_polygon(page)
        page.get_by_text("A polygon of").wait_for()

    def follow(page: Page) -> None:
        fill_form(page)
        page.get_by_role("button", name="Subscribe", exact=True).click()
        page.get_by_text("0 notifications").wait_for()
        client.ingest("nam", next(hours))
        page.locator(".watch").get_by_text(re.compile("^[0-9,]+ new$")).wait_for()

    yield State("subscribe", fill_form, middle, sizes=(NARROW,), themes=("light",))
    yield State("channels", follow, middle, sizes=(WIDE,), themes=("light",))


def draw_polygon(page: Page) -> None:
    """Draws a polygon of five corners; a second click on the last one ends it."""
    box = page.locator(".map").bounding_box()
    assert box is not None
    corners = [(0.3, 0.35), (0.6, 0.28), (0.75, 0.45), (0.6, 0.68), (0.33, 0.62)]
    for x, y in [*corners, corners[-1]]:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.wait_for_timeout(400)


def choose_cell(page: Page) -> None:
    drawn(page)
    if is_phone(page):
        page.locator(".map").tap(position={"x": 180, "y": 300})
    else:
        page.locator(".map").click(position={"x": 330, "y": 430})
    page.locator(".meteogram").nth(2).wait_for()


def ask(page: Page) -> None:
    drawn(page)
    if is_phone(page):
        open_panel(page, "Ask")
    page.get_by_label("Add a condition").select_option("humidity")
    page.locator(".editor .bar").first.wait_for()
    page.get_by_label("Copy as").select_option("Python")


def cluster_panel(page: Page) -> None:
    drawn(page)
    open_panel(page, "Cluster")
    page.get_by_text("Coordinators").wait_for()


def lose_network(page: Page) -> None:
    drawn(page)
    page.context.set_offline(True)
    page.get_by_text("Next attempt in 2 s.").wait_for()


def killed_panel(page: Page) -> None:
    drawn(page)
    open_panel(page, "Cluster")
    page.get_by_text("unreachable").first.wait_for()
