"""Pages in a real browser, as a reader sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Visit:
    """A newly opened page, with its console messages and its requests."""

    def __init__(self, browser: Browser, report: Path, **options: Any) -> None:
        self.page: Page = browser.new_page(**{"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options})
        self.page.set_default_timeout(1000 * PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())

    def shows(self, text: str) -> bool:
        return self.page.get_by_text(text).first.is_visible()
