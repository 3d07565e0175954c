"""The pictures of the docs can be drawn again, by the modules that train."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Drawn:
    """The folder of new pictures, and the output of the command."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    folder = tmp_path_factory.mktemp("pictures")
    command = [sys.executable, str(ROOT / "tools" / "draw_concepts.py"), "--output", str(folder)]
    return Drawn(
        folder, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".zh"], ids=["english", "chinese"])
def test_every_picture_of_the_docs_can_be_drawn_again(drawn: Drawn, suffix: str) -> None:
    if suffix and "no font here has Chinese characters" in drawn.said:
        pytest.skip("no font here has Chinese characters")
    page = (ROOT / "docs" / f"concepts{suffix}.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/([\w.]+\.png)\)", page))
    assert {path.name for path in drawn.folder.iterdir() if path.name.endswith(".zh.png") == bool(suffix)} == shown
    for name in shown:
        with Image.open(drawn.folder / name) as new, Image.open(ROOT / "docs" / "pictures" / name) as kept:
            assert new.width > 600
            assert abs(new.width - kept.width) < 40  # fonts differ a little between versions
            assert len(new.convert("RGB").getcolors(1 << 24) or ()) > 20
