"""The page of a run in a real browser: charts, sound, languages, and no network requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nest_ssl.apps.pages.page import write_page
from nest_ssl.apps.report.page import render
from nest_ssl.apps.report.run import open_runs
from nest_ssl.apps.report.summary import gather
from tests.apps.report.example_runs import training, write_events, write_run, write_samples
from tests.browsing import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return an active run that was started twice, and one that learns more slowly."""
    base = tmp_path_factory.mktemp("runs")
    first = write_run(base / "first", began=time.time() - 300, steps=700)
    write_events(first, (training(), range(664, 900, 5)), began=time.time() - 60, seconds_a_step=0.2)
    second = write_run(base / "second <b>", began=time.time() - 300, steps=600, decay=900)
    for folder in (first, second):
        write_samples(folder, 640)
    return [first, second]


@pytest.fixture(scope="module")
def single(folders: list[Path]) -> Path:
    return written(folders[:1], folders[0].parent / "single.html")


@pytest.fixture(scope="module")
def several(folders: list[Path]) -> Path:
    return written(folders, folders[0].parent / "several.html")


def written(folders: list[Path], path: Path) -> Path:
    write_page(render(gather(open_runs(folders))), path)
    return path


@pytest.fixture
def visit(browser: Browser, single: Path) -> Iterator[Visit]:
    visit = Visit(browser, single)
    yield visit
    visit.page.close()


def test_the_page_opens_without_errors_and_network_requests(visit: Visit) -> None:
    visit.page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    visit.page.wait_for_timeout(200)
    assert visit.complaints == []
    assert {address.partition(":")[0] for address in visit.requests} <= {"file", "data", "blob"}
    assert visit.shows("Healthy")
    assert visit.shows("Running")


def test_every_chart_is_there_to_be_seen(visit: Visit) -> None:
    charts = visit.page.locator("svg.chart:visible")
    assert charts.count() == 11
    for index in range(charts.count()):
        box = charts.nth(index).locator("path.mean").first.bounding_box()
        assert box is not None
        assert box["width"] > 100


def test_samples_can_be_heard(visit: Visit) -> None:
    players = visit.page.locator("audio")
    assert players.count() == 4
    visit.page.wait_for_function("[...document.querySelectorAll('audio')].every(audio => audio.duration > 2.9)")
    assert players.evaluate_all("all => all.map(audio => audio.error)") == [None] * 4


def test_the_policy_lets_spectrograms_in(visit: Visit) -> None:
    colours = visit.page.evaluate(
        """async () => {
            const picture = new Image();
            picture.src = document.querySelector("image").getAttribute("href");
            await picture.decode();
            return [picture.naturalWidth, picture.naturalHeight];
        }"""
    )
    assert colours == [296, 240]


def test_the_language_can_be_changed(visit: Visit) -> None:
    visit.page.get_by_role("button", name="中文").click()
    assert visit.shows("健康")
    assert not visit.page.get_by_text("Healthy", exact=True).first.is_visible()
    visit.page.get_by_role("button", name="English").click()
    assert visit.shows("Healthy")


def test_pointing_at_a_chart_reads_its_values(visit: Visit) -> None:
    figure = visit.page.locator("figure", has=visit.page.locator("#chart-learning_rate-learning_rate"))
    chart = figure.locator("svg.chart:visible")
    box = chart.bounding_box()
    assert box is not None
    chart.hover(position={"x": box["width"] * (58 + 410 / 2) / 480, "y": box["height"] / 2})  # the middle of the frame
    reading = figure.locator("output").inner_text()
    assert "step 449" in reading or "step 454" in reading
    assert "0.0014" in reading
    assert (chart.locator("path.guide").get_attribute("d") or "").startswith("M26")  # near the middle


def test_the_keyboard_reads_a_chart_too(visit: Visit) -> None:
    figure = visit.page.locator("figure", has=visit.page.locator("#chart-losses-train_loss"))
    figure.locator("svg.chart:visible").focus()
    readings = []
    for _ in range(3):
        visit.page.keyboard.press("ArrowRight")
        readings.append(figure.locator("output").inner_text())
    assert len(set(readings)) == 3
    assert all("training" in reading and "validation" in reading for reading in readings)


def test_the_page_never_scrolls_sideways(browser: Browser, single: Path, several: Path) -> None:
    for path in (single, several):
        visit = Visit(browser, path)
        visit.page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
        for width in (1280, 375):
            visit.page.set_viewport_size({"width": width, "height": 800})
            for language in ("English", "中文"):
                visit.page.get_by_role("button", name=language).click()
                assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.page.close()


def test_several_runs_unfold_one_by_one_and_names_stay_text(browser: Browser, several: Path) -> None:
    visit = Visit(browser, several)
    assert not visit.page.locator("audio").first.is_visible()
    visit.page.locator("section.runs > details > summary").first.click()
    assert visit.page.locator("audio").first.is_visible()
    assert visit.shows("second <b>")
    assert visit.complaints == []
    visit.page.close()
