"""docs/architecture.md names files and folders that exist, and every subpackage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_READING_PATH = r"(?s)<!-- reading path: begin -->.*<!-- reading path: end -->"  # generated: test_reading_path.py
PAGE = re.sub(_READING_PATH, "", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
_FILE = re.compile(r"\w[\w/]*\.(?:py|md|yaml)\b")


def drawn() -> Iterator[tuple[Path, str]]:
    """Yield each path of the tree in the first code block, with the words that explain it."""
    folders: list[Path] = [ROOT]
    for line in re.findall(r"(?ms)^```\n(.*?)^```", PAGE)[0].splitlines():
        name, _, words = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = folders[: depth + 1]
        folders.append(folders[-1] / name)
        yield folders[-1], words


TREE = list(drawn())


@pytest.mark.parametrize(("path", "words"), TREE, ids=lambda value: getattr(value, "name", None))
def test_the_tree_is_that_of_the_repository(path: Path, words: str) -> None:
    assert path.is_file() or path.is_dir()
    for file in _FILE.findall(words):
        assert (path / file).is_file() or (ROOT / file).is_file(), file


def test_the_tree_names_every_subpackage() -> None:
    package = ROOT / "nest_ssl"
    folders = {path.parent for path in [*package.glob("*/__init__.py"), *package.glob("apps/*/__init__.py")]}
    assert folders <= {path for path, _ in TREE}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:nest_ssl|tests|tools|config|docs)/[^`\s]+)`", PAGE))))
def test_a_file_that_the_text_names_exists(name: str) -> None:
    assert (ROOT / name).exists()
