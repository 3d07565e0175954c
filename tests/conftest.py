"""What tests of several parts share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


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
