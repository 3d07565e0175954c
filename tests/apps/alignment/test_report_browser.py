"""Tests of the report in a real browser: its content, its controls, and that HTML in names has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nest_ssl.apps.alignment.compare import CurvePoint
from nest_ssl.apps.alignment.report import write_report
from tests.apps.alignment.example_comparisons import diverging
from tests.browsing import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_ATTACK = "<img src=https://example.org/x onerror=document.title='attacked'>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a diverging run, as large as NEST Large, with HTML in names and settings."""
    comparison = diverging(at=400, layers=120)
    comparison.steps[0].layers.inside_others.append(_ATTACK)
    comparison.nemo = {**comparison.nemo, "device": _ATTACK}
    comparison.curves = [CurvePoint(n, (9 - n / 100, 9 - n / 101), (2.0, 2.0), (1e-4, 1e-4)) for n in range(100)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(comparison, path)
    return path


@pytest.fixture
def visit(browser: Browser, report: Path) -> Iterator[Visit]:
    visit = Visit(browser, report)
    yield visit
    visit.page.close()


def test_the_page_is_quiet_and_alone(visit: Visit, report: Path):
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    assert visit.page.locator("img").count() == 0
    assert visit.page.title().startswith("Different")


def test_the_verdict_and_where_to_look_are_on_the_first_screen(visit: Visit):
    for place in (visit.page.get_by_role("heading", level=1), visit.page.get_by_text("first layer in data order")):
        box = place.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < box["y"] + box["height"] < 800
    assert "Different" in visit.page.get_by_role("heading", level=1).inner_text()


def test_the_switch_changes_the_language_of_the_whole_page(visit: Visit):
    assert visit.shows("Part by part")
    visit.page.get_by_role("button", name="中文").click()
    assert visit.page.locator("h1").inner_text().endswith("不一致")
    assert not visit.shows("Part by part")
    assert visit.page.evaluate("document.documentElement.lang") == "zh"
    english = visit.page.locator("main [lang=en]")
    assert english.count() > 50
    assert english.filter(visible=True).count() == 0


def test_the_chosen_step_shows_its_chart_and_tables(visit: Visit):
    charts = visit.page.locator("svg.wide").filter(visible=True)
    assert charts.count() == 1
    assert visit.shows("layer calls at step 0")
    visit.page.locator("select.step").first.select_option("1")
    assert charts.count() == 1
    assert not visit.shows("layer calls at step 0")
    assert visit.page.locator("select.step").last.input_value() == "1"


def test_pointing_at_the_chart_reads_the_layer(visit: Visit):
    figure = visit.page.locator("figure[data-step='0']")
    figure.locator(".columns rect").nth(400).hover()
    name = figure.locator(".first-label").inner_html().removeprefix("≠ ")
    reading = figure.locator("output").inner_text()
    assert name in reading
    assert "1.0e-03" in reading


def test_the_page_never_scrolls_sideways(visit: Visit):
    visit.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    for width in (1280, 375):
        visit.page.set_viewport_size({"width": width, "height": 800})
        for language in ("English", "中文"):
            visit.page.get_by_role("button", name=language).click()
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_follows_the_browsers_language_and_colours_and_prints_light(browser: Browser, report: Path):
    page = Visit(browser, report, locale="zh-CN", color_scheme="dark").page
    assert page.locator("h1").inner_text().endswith("不一致")
    assert _lightness(page, "backgroundColor") < 60
    assert _lightness(page, "color") > 200
    page.emulate_media(media="print")
    assert _lightness(page, "backgroundColor") == 255
    page.close()


def _lightness(page: Page, style: str) -> float:
    colour = page.evaluate(f"getComputedStyle(document.body).{style}")
    channels = [float(number) for number in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(channels) / 3
