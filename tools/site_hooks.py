"""A hook of MkDocs: change the pages of docs/ before they become pages of the site."""

from __future__ import annotations

import re
from typing import Any

_OTHER_LANGUAGE = re.compile(
    r"(?m)^(?P<before>.*?)\s*(?:(?:中文|English)[：:]\s*)?\[[^\]]*\]\((?P<page>\w+)(?:\.zh)?\.md\)$"
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Remove the link to the same page in the other language, because every page of the site has a language switch."""

    def without_link(found: re.Match[str]) -> str:
        return found["before"] if found["page"] == _name(page.file.src_uri) else found[0]

    return _OTHER_LANGUAGE.sub(without_link, markdown, count=1)


def _name(path: str) -> str:
    return path.split(".", 1)[0]
