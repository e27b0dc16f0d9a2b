"""Reports in a real browser: nothing is loaded, nothing fails, nothing is wider than the screen, all is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser

from llog.loadtest.artifacts import ClientSummary, Loss
from llog.loadtest.report import write_comparison, write_report
from tests.browser import Scheme, browser, open_page  # noqa: F401
from tests.unit.loadtest.artefacts import RunShape, write_run

HOSTILE = '</td></svg><script>console.error("ran")</script><img src=x onerror=console.error("loaded")>'
SCREENS = [
    ("report", 1_280, "light"),
    ("report", 1_280, "dark"),
    ("report", 390, "light"),
    ("report", 390, "dark"),
    ("partial", 390, "light"),
    ("comparison", 390, "dark"),
]
COLOURS_MIN = 10
"""Of smoothed edges of text and lines; a part that is not drawn has one or two."""
LINE_PIXELS_MIN = 20


def _hostile(summary: ClientSummary) -> ClientSummary:
    return replace(
        summary,
        limited_by_generator=HOSTILE,
        failed={HOSTILE: 3},
        losses={HOSTILE: Loss(missing=1), "x" * 400: Loss(1)},
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report, one of an incomplete run, and a comparison of both."""
    results = tmp_path_factory.mktemp("results")
    whole = write_run(results, RunShape(faults=True), change_client=_hostile)
    partial = write_run(results, RunShape(brokers=1, measured_intervals=2))
    (partial.path / "client-summary.json").unlink()
    return {
        "report": write_report(whole),
        "partial": write_report(partial),
        "comparison": write_comparison(whole, partial, results / "comparison.html"),
    }


@pytest.mark.parametrize(("name", "width", "scheme"), SCREENS)
def test_a_page_shows_on_screens_of_any_width_and_scheme(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
    name: str,
    width: int,
    scheme: Scheme,
) -> None:
    with open_page(browser, pages[name].as_uri(), width=width, scheme=scheme) as watched:
        assert watched.console == []
        assert watched.requests == [pages[name].as_uri()], "the page loads something"
        assert watched.overflow_px() <= 0
        drawn = watched.colours("#throughput svg.plot")
        assert len(drawn) >= COLOURS_MIN
        stroke = watched.page.locator("#throughput svg.plot .line").last.evaluate(
            "line => getComputedStyle(line).stroke"
        )
        assert drawn.get(stroke, 0) >= LINE_PIXELS_MIN, "the line drawn last covers others"
        dark = watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
        assert dark == (scheme == "dark")


def test_every_chart_draws_its_series_inside_its_own_frame(browser: Browser, pages: dict[str, Path]) -> None:  # noqa: F811
    with open_page(browser, pages["report"].as_uri()) as watched:
        outside = watched.page.evaluate(
            """() => [...document.querySelectorAll("svg.plot")].flatMap(svg => {
                 const frame = svg.getBoundingClientRect();
                 return [...svg.querySelectorAll(".line, .area, .bar, text")]
                   .map(shape => [shape, shape.getBoundingClientRect()])
                   .filter(([, box]) => box.left < frame.left - 2 || box.right > frame.right + 2
                     || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
                   .map(([shape]) => svg.querySelector("title").textContent + ": " + shape.outerHTML.slice(0, 80));
               })"""
        )
        assert outside == []
        assert watched.page.locator("svg.plot .line, svg.plot .area").count() > 30
        assert watched.page.locator("script").count() == 0


def test_hidden_data_of_a_chart_opens_without_scripts(browser: Browser, pages: dict[str, Path]) -> None:  # noqa: F811
    with open_page(browser, pages["report"].as_uri(), width=390) as watched:
        table = watched.page.locator("#throughput table")
        assert not table.is_visible()
        watched.page.locator("#throughput summary").click()
        assert table.is_visible()
        assert "acknowledged" in table.inner_text()
        assert watched.overflow_px() <= 0


def test_a_report_prints_with_its_charts(browser: Browser, pages: dict[str, Path]) -> None:  # noqa: F811
    with open_page(browser, pages["report"].as_uri(), scheme="dark") as watched:
        watched.page.emulate_media(media="print", color_scheme="dark")
        assert watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not watched.page.locator("nav").is_visible()
        assert watched.page.locator("#throughput svg.plot").is_visible()
        assert watched.page.pdf().startswith(b"%PDF")
