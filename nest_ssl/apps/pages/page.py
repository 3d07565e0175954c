"""One HTML page in one file, from templates: it sends no request, and only its own script and style may act.

The template engine is jinja2, which torch brings along; it escapes every value that is not `Markup`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nest_ssl.apps.pages.text import Count, code
from nest_ssl.atomic import atomic_write

_FOLDER = Path(__file__).parent


@cache
def templates(app: Path) -> Environment:
    """Return the templates of an app's folder, which build on the common ones."""
    environment = Environment(
        loader=FileSystemLoader([app / "templates", _FOLDER / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(Count=Count, code=code)
    return environment


def render(app: Path, template: str, **values: Any) -> str:
    """Return a page: the template of an app, with the app's `report.css` and `report.js` after the common ones."""
    style, script = (
        (_FOLDER / f"common.{suffix}").read_text(encoding="utf-8")
        + (app / f"report.{suffix}").read_text(encoding="utf-8")
        for suffix in ("css", "js")
    )
    return (
        templates(app)
        .get_template(template)
        .render(
            **values,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def write_page(page: str, path: Path) -> None:
    """Write the page, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


def _hash(content: str) -> Markup:
    """Return the source of the Content-Security-Policy that allows exactly this content."""
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")
