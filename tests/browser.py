"""A real browser for tests of pages: Debian's Chromium, driven by Playwright, without a window and without a network.

`browser` is a fixture for test modules: `from tests.browser import browser  # noqa: F401`. Where Chromium is missing,
tests skip with that reason. `open_page` gathers what a page must not have: messages on its console, errors, requests
that leave the machine.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

Scheme = Literal["light", "dark"]
WAIT_MS_MAX: Final = 60_000.0
HEIGHT: Final = 900
# Chromium refuses its sandbox to root. Pages of tests are our own.
ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
COUNT_COLOURS: Final = """async base64 => {
  const image = new Image();
  image.src = "data:image/png;base64," + base64;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width, canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer), counts = {};
  for (const pixel of data) counts[pixel & 0xffffff] = (counts[pixel & 0xffffff] || 0) + 1;
  return counts;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed: `make servers` installs it (package chromium, by apt)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS), timeout=WAIT_MS_MAX)
        try:
            yield running
        finally:
            running.close()


@dataclass
class Watched:
    """A page and what went wrong on it."""

    page: Page
    console: list[str] = field(default_factory=list)
    """Every message and error."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were loaded, in their order; the first is the page's own."""

    def overflow_px(self) -> int:
        """How far the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return width

    def colours(self, part: str) -> dict[str, int]:
        """Pixels by colour in a screenshot of the part with this selector: a blank one has one colour."""
        running = self.page.context.browser
        assert running is not None
        return colours(running, self.page.locator(part).screenshot())


@contextmanager
def open_page(browser: Browser, address: str, *, width: int = 1_280, scheme: Scheme = "light") -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS_MAX)
    try:
        watched = Watched(context.new_page())
        watched.page.on("console", lambda message: watched.console.append(message.text))
        watched.page.on("pageerror", lambda error: watched.console.append(str(error)))
        watched.page.on("request", lambda request: watched.requests.append(request.url))
        watched.page.goto(address)
        yield watched
    finally:
        context.close()


def colours(browser: Browser, png: bytes) -> dict[str, int]:
    """Pixels by colour, as `rgb(…)`. The browser decodes its own picture, on a blank page."""
    context = browser.new_context()
    try:
        counts: dict[str, int] = context.new_page().evaluate(COUNT_COLOURS, base64.b64encode(png).decode())
        return {_rgb(int(pixel)): count for pixel, count in counts.items()}
    finally:
        context.close()


def _rgb(pixel: int) -> str:
    """As `getComputedStyle` writes it; red is the lowest byte."""
    return f"rgb({pixel & 255}, {pixel >> 8 & 255}, {pixel >> 16 & 255})"
