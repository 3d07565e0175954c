"""The documentation builds, its links and spelling are correct, and both languages have the same content."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

from tools.site_hooks import on_page_markdown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENGLISH_ONLY = {"architecture", "api", "benchmarks"}  # for engineers, or mostly numbers
GENERATED = {"configuration", "parity"}  # by commands that have tests of their own
PAGES = sorted(path.stem for path in DOCS.glob("*.md") if not path.name.endswith(".zh.md"))
TRANSLATED = [(DOCS / f"{page}.md", DOCS / f"{page}.zh.md") for page in PAGES if page not in ENGLISH_ONLY]
TRANSLATED.append((ROOT / "README.md", ROOT / "README.zh.md"))
BY_HAND = [(english, chinese) for english, chinese in TRANSLATED if english.stem not in GENERATED]


class Page(HTMLParser):
    """The links of a page, and the anchors that other pages can link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_link_of_the_site_has_a_target(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == 2 * len(PAGES)
    assert list(_dead_links(pages, site)) == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:)?//")
    assert [path for path in site.rglob("*.html") if loaded.search(path.read_text(encoding="utf-8"))] == []


def _dead_links(pages: dict[Path, Page], site: Path) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc or not address.path.strip("."):
                continue
            start = site if address.path.startswith("/") else path.parent  # the language switch of the first pages
            target = Path(os.path.normpath(start / unquote(address.path).lstrip("/")))
            target = target / "index.html" if target.is_dir() else target
            anchored = target in pages and unquote(address.fragment) in pages[target].anchors
            if not target.is_file() or (target in pages and not anchored):
                yield f"{path.relative_to(site)}: {link}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "README.zh.md", *DOCS.glob("*.md")], ids=lambda p: p.name)
def test_links_also_work_in_the_repository(page: Path) -> None:
    assert [link for link in _links(page) if not (page.parent / link).exists()] == []


def _links(page: Path) -> list[str]:
    """Return the files that a page links to or shows, as written in the page."""
    return re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_the_navigation_contains_every_page(page: str) -> None:
    assert re.search(rf": {page}\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_words_are_spelt_correctly() -> None:
    places = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "nest_ssl", "config", "tools", "start.py"]
    done = subprocess.run([sys.executable, "-m", "codespell_lib", *places], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED, ids=lambda path: path.name)
def test_both_languages_have_the_same_sections_and_commands(english: Path, chinese: Path) -> None:
    assert _sections(english) == _sections(chinese)
    assert _commands(english) == _commands(chinese)


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED, ids=lambda path: path.name)
def test_both_languages_have_the_same_tables(english: Path, chinese: Path) -> None:
    assert _tables(english) == _tables(chinese)


@pytest.mark.parametrize(("english", "chinese"), BY_HAND, ids=lambda path: path.name)
def test_both_languages_name_the_same_keys_files_and_options(english: Path, chinese: Path) -> None:
    assert _code_spans(english) ^ _code_spans(chinese) == set()


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED, ids=lambda path: path.name)
def test_a_chinese_page_links_to_chinese_pages_and_pictures(english: Path, chinese: Path) -> None:
    targets = [(chinese.parent / link).resolve() for link in _links(chinese)]
    astray = [target for target in targets if target.with_suffix(f".zh{target.suffix}").exists()]
    assert [target for target in astray if target != english] == []


@pytest.mark.parametrize(("english", "chinese"), BY_HAND, ids=lambda path: path.name)
def test_a_page_links_to_itself_in_the_other_language(english: Path, chinese: Path) -> None:
    for page, other in ((english, chinese), (chinese, english)):
        assert other.name in _links(page)
        if page.parent == DOCS:  # the site has a language switch instead
            shown = on_page_markdown(
                page.read_text(encoding="utf-8"), SimpleNamespace(file=SimpleNamespace(src_uri=page.name))
            )
            assert f"({other.name})" not in shown


def _sections(page: Path) -> list[int]:
    """Return the levels of the headings, in order."""
    return [len(marks) for marks in re.findall(r"(?m)^(#+) ", _prose(page))]


def _prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))


def _tables(page: Path) -> list[list[int]]:
    """Return the number of cells in each row of each table, in order."""
    tables = re.findall(r"(?m)(?:^ *\|.*\|\n?)+", _prose(page))
    return [[len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()] for table in tables]


def _code_spans(page: Path) -> set[str]:
    """Return all inline code: names and values, which are not translated."""
    spans = re.findall(r"(`+)(.+?)\1(?!`)", _prose(page), re.DOTALL)
    return {" ".join(span.split()) for _, span in spans}


def _commands(page: Path) -> list[str]:
    """Return the lines of all code blocks, without comments, which are translated."""
    blocks = re.findall(r"(?ms)^ *```(?:bash|powershell|python)\n(.*?)^ *```", page.read_text(encoding="utf-8"))
    return [re.sub(r"\s+#.*|^#.*", "", line).strip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", ["troubleshooting.md", "troubleshooting.zh.md"])
def test_the_messages_that_are_explained_exist(page: str) -> None:
    sources = " ".join(
        path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.py"), *ROOT.glob("nest_ssl/**/*.py")]
    )
    sources = re.sub(r'"\s+f?"', "", sources)  # string literals that continue on the next line
    explained = _explained(DOCS / page)
    assert len(explained) > 12
    assert [message for message in explained if not all(part in sources for part in _fixed_parts(message))] == []


def _explained(page: Path) -> list[str]:
    """Return the messages of nest_ssl in the first column of the page's tables."""
    rows = re.findall(r"(?m)^\| `([^`|]+)` \|", page.read_text(encoding="utf-8"))
    return [row for row in rows if not row.startswith(("RuntimeError", "precision=", "accelerator="))]


def _fixed_parts(message: str) -> list[str]:
    """Return the parts of a message that do not depend on names, numbers and values."""
    parts = re.split(r"'y'|\.\.\.|\bN\b|\d+(?=\s)|(?<=Python )3.10|\(|\)|\?", message)
    return [part.strip() for part in parts if part.strip()]
