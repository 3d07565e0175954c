"""The pictures of the docs are drawn by the parts that train."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_picture_of_the_docs_can_be_drawn_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "draw_concepts.py"), "--output", str(tmp_path)], check=True)
    shown = set(re.findall(r"\(pictures/(\w+\.png)\)", (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")))
    assert {path.name for path in tmp_path.iterdir()} == shown
    for name in shown:
        with Image.open(tmp_path / name) as drawn, Image.open(ROOT / "docs" / "pictures" / name) as kept:
            assert drawn.width > 600
            assert abs(drawn.width - kept.width) < 40  # fonts differ a little between versions
            assert len(drawn.convert("RGB").getcolors(1 << 24) or ()) > 20
