"""The map page in a real browser, which has to be without errors, and to stay on this machine."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 300_000
"""It ends only tests that would hang."""
WIDE, NARROW = (1440, 900), (390, 844)
_NO_SANDBOX = ["--no-sandbox"]  # Root has none, as in containers.
_LISTEN = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""
_REFUSED = re.compile(r"Failed to load resource: .* status of (\d+)")
_LOST = re.compile(r"Failed to load resource: net::ERR_|net::ERR_INCOMPLETE_CHUNKED_ENCODING")
_IS_PAINTED = """(selector) => {
    const canvas = document.querySelector(selector), { width, height } = canvas;
    // A copy, since browsers warn of repeated reading.
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    return data.some((value, index) => index % 4 === 3 && value);
}"""
_FIT = """() => {
    const [card] = document.querySelectorAll(".card"), [pre] = card.querySelectorAll("pre");
    const { left, right } = card.getBoundingClientRect();
    const style = getComputedStyle(pre), lines = pre.textContent.trim().split("\\n").length;
    const padding = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
    const height = pre.clientHeight - padding;
    const line = parseFloat(style.lineHeight) || 1.5 * parseFloat(style.fontSize);
    return { card: left >= 0 && right <= innerWidth, pre: height < (lines + 0.5) * line };
}"""
CELLS = ".ol-layers > canvas"
"""The canvas of the cells."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no browser: install chromium (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_NO_SANDBOX)
        yield browser
        browser.close()


@dataclass
class MapPage:
    """A page of the browser, and what it has done.

    Attributes:
        page: of playwright.
        host: "host:port" of the gateway, the only one that it may ask.
        refusals: statuses of answers that the test expects, which browsers report as errors.
        may_lose: whether connections may break, because the test ends the gateway.
    """

    page: Any
    host: str
    refusals: tuple[int, ...] = ()
    may_lose: bool = False
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.add_init_script(_LISTEN)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type not in ("error", "warning"):
            return
        refused = _REFUSED.match(message.text)
        if refused and int(refused[1]) in self.refusals:
            return
        if self.may_lose and _LOST.match(message.text):
            return
        self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.netloc != self.host and parts.scheme != "blob":
            self.foreign.append(request.url)

    def check(self) -> None:
        """No error, no violation of the policy, no request to another host."""
        assert self.errors == []
        assert self.page.evaluate("violations") == []
        assert self.foreign == []

    def check_accessible(self) -> None:
        """No serious finding of axe, in light and in dark colours."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            self.page.locator(f'html[data-theme="{scheme}"]').wait_for()
            found = axe.run(self.page).response["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []

    def check_cards_fit(self) -> None:
        """Notices over the map lie within the window of a phone, and none of their lines wraps."""
        size = self.page.viewport_size
        self.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        assert self.page.evaluate(_FIT) == {"card": True, "pre": True}
        self.page.set_viewport_size(size)

    # --- what a user sees --------------------------------------------------------------------

    def count_cells(self) -> int:
        """The number of cells on the map, as the table of them says."""
        self.tab("Cells")
        panel = self.page.get_by_role("tabpanel")
        panel.get_by_text(re.compile(r"on the map|no cells")).first.wait_for()
        found = re.search(r"([\d,]+) cells? on the map", panel.inner_text())
        return int(found[1].replace(",", "")) if found else 0

    def await_cells(self, count: int) -> None:
        """Waits until the map has so many cells."""
        self.tab("Cells")
        noun = "cell" if count == 1 else "cells"
        self.page.get_by_text(f"{count:,} {noun} on the map", exact=True).wait_for()

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=re.compile(f"^{name}")).click()

    def is_painted(self) -> bool:
        """Whether cells colour pixels of the map."""
        return bool(self.page.evaluate(_IS_PAINTED, CELLS))

    def await_painted(self) -> None:
        """Waits until cells colour pixels of the map: the table has them a few frames earlier."""
        self._await(self.is_painted)

    def pixel(self, x: float, y: float) -> tuple[int, ...]:
        """Red, green, blue and opacity of the canvas of cells, at shares of its size."""
        script = """([selector, x, y]) => {
            const canvas = document.querySelector(selector);
            const at = [Math.round(x * canvas.width), Math.round(y * canvas.height)];
            return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
        }"""
        return tuple(self.page.evaluate(script, [CELLS, x, y]))

    def await_pixel(self, x: float, y: float, is_expected: Callable[..., bool]) -> None:
        """Waits until `is_expected` holds of the values of a pixel; of `pixel`."""
        self._await(lambda: is_expected(*self.pixel(x, y)))

    def is_ringed(self) -> bool:
        """Whether a ring is around the middle of the map."""
        box, size = self.page.locator(".map").bounding_box(), 40
        left, top = box["x"] + (box["width"] - size) / 2, box["y"] + (box["height"] - size) / 2
        middle = self.page.screenshot(clip={"x": left, "y": top, "width": size, "height": size})
        with Image.open(io.BytesIO(middle)) as image:
            red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")), 2, 0)
        return bool(((red > 220) & (green > 70) & (green < 155) & (blue < 90)).any())

    def await_ringed(self, is_expected: bool = True) -> None:
        """Waits until a ring is around the middle of the map, or none."""
        self._await(lambda: self.is_ringed() == is_expected)

    def _await(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT_MS / 1e3
        while not holds():
            assert time.monotonic() < end, "it took too long"
            self.page.wait_for_timeout(20)


@contextmanager
def opened(
    browser: Any,
    url: str,
    *,
    fragment: str = "",
    size: tuple[int, int] = WIDE,
    refusals: tuple[int, ...] = (),
    **options: Any,
) -> Iterator[MapPage]:
    """The map of a gateway in a new page; it is checked at the end."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    shown = MapPage(context.new_page(), urlsplit(url).netloc, refusals=refusals)
    shown.listen()
    shown.page.goto(f"{url}/map{'#' if fragment else ''}{fragment}")
    yield shown
    shown.check()
    context.close()
