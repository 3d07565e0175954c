"""One HTML page in one file: no request leaves it, and only its own script and style, named by their hashes, count."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from nest_ssl.apps.pages.text import escaped
from nest_ssl.atomic import atomic_write

_FOLDER = Path(__file__).parent


def html_page(*, title: str, heading: object, body: Iterable[str], assets: Path, media: Sequence[str] = ()) -> str:
    """The whole page. `assets` holds the `report.css` and `report.js` of its kind, which go on where the common end.

    `media` names what the policy lets `data:` addresses be: `img`, `media`.
    """
    style, script = (
        "".join((folder / f"{name}.{suffix}").read_text(encoding="utf-8") for folder, name in _parts(assets))
        for suffix in ("css", "js")
    )
    allowed = "".join(f" {kind}-src data:;" for kind in media)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};{allowed} "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n{_header(heading)}\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def write_page(page: str, path: Path) -> None:
    """Write the page, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


def table(style: str, columns: Sequence[object], rows: str) -> str:
    """With its own scroll bar, so that the page has none across."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        f'<div class="scroll"><table class="{style}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def folded(title: object, content: str) -> str:
    """Shown on request."""
    return f"<details><summary><h3>{title}</h3></summary>{content}</details>"


def _parts(assets: Path) -> tuple[tuple[Path, str], tuple[Path, str]]:
    return (_FOLDER, "common"), (assets, "report")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _header(heading: object) -> str:
    return (
        f"<header><p>{heading}</p>"
        f'<div class="languages" role="group" aria-label="Language / 语言">'
        '<button type="button" data-language="en" lang="en-GB">English</button>'
        '<button type="button" data-language="zh" lang="zh-CN">中文</button></div></header>'
    )
