"""Fixtures and settings that tests of several parts share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nest_ssl.threads import sleep_soon

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sleep_soon()  # several processes share the cores; before a test imports torch
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

# no deadline, because the machine may be busy; a failure is printed with the code that repeats it
settings.register_profile("nest_ssl", deadline=None, print_blob=True)
settings.load_profile("nest_ssl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests, the longest first, so that parallel processes end at the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_elsewhere.py", item.path not in slow))


@pytest.fixture
def our_messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what nest_ssl has logged so far; those of other libraries may appear only once in a process."""
    return lambda: [record.getMessage() for record in caplog.records if record.name.split(".")[0] == "nest_ssl"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of this machine; without one, the test is skipped, or fails if NEST_REQUIRE_BROWSER is set."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        message = f"the report's browser test needs playwright and one of {', '.join(_BROWSERS)}"
        pytest.fail(message) if os.environ.get("NEST_REQUIRE_BROWSER") else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_QUIET), headless=True)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small, untrained model."""
    import torch  # takes seconds, so tests without a model do not import it

    from nest_ssl.config.command_line import preset_folder
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
    from nest_ssl.testing import small_config

    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("model") / "model.nemo"
    EncDecDenoiseMaskedTokenPredModel(cfg=small_config(preset_folder() / "nest_fast-conformer.yaml").model).save_to(
        file
    )
    return file
