"""What tests of several parts share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

# a busy machine may take its time for an example; what fails is printed with what repeats it
settings.register_profile("nest_ssl", deadline=None, print_blob=True)
settings.load_profile("nest_ssl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, the longest first: processes that share the tests end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_elsewhere.py", item.path not in slow))


@pytest.fixture
def our_messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What nest_ssl has logged so far; other libraries log as they please, sometimes only once in a process."""
    return lambda: [record.getMessage() for record in caplog.records if record.name.split(".")[0] == "nest_ssl"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of this machine; a test without one is skipped unless NEST_REQUIRE_BROWSER asks for it."""
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
    """A small model that has learnt nothing."""
    import torch  # takes seconds, which tests without a model need not wait for

    from nest_ssl.config.presets import preset_folder
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
    from nest_ssl.testing import small_config

    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("model") / "model.nemo"
    EncDecDenoiseMaskedTokenPredModel(cfg=small_config(preset_folder() / "nest_fast-conformer.yaml").model).save_to(
        file
    )
    return file
