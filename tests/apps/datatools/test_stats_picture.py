from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nest_ssl.apps.datatools.stats import Stats, summarize
from nest_ssl.apps.datatools.stats_picture import draw
from nest_ssl.apps.datatools.stats_reading import Depth, read_columns
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.errors import NestError


def stats_of(manifest: str, depth: Depth = "samples") -> Stats:
    return summarize([manifest], depth, *read_columns([manifest], depth))


@pytest.mark.parametrize(("suffix", "beginning"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_suffix_says_the_format(corpus: DummyCorpus, tmp_path: Path, suffix: str, beginning: bytes) -> None:
    path = tmp_path / f"new folder/picture{suffix}"
    draw(stats_of(str(corpus.train_manifest)), path)
    assert path.read_bytes().startswith(beginning)
    assert list(path.parent.iterdir()) == [path]


def test_what_is_known_has_a_panel_and_what_is_not_has_none(corpus: DummyCorpus, tmp_path: Path) -> None:
    heights = []
    for depth in ("samples", "headers", "manifest"):
        stats = stats_of(str(corpus.train_manifest), depth)  # type: ignore[arg-type]
        draw(stats, tmp_path / "a.png")
        draw(stats, tmp_path / "a.svg")
        text = (tmp_path / "a.svg").read_text()
        shown = [title in text for title in (">Durations<", ">Loudness<", ">Silence<", ">Sample rates<")]
        assert shown == [True, depth == "samples", depth == "samples", depth != "manifest"]
        with Image.open(tmp_path / "a.png") as image:
            heights.append(image.height)
            pixels = np.asarray(image.convert("RGB"))
        edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (edge == 255).all()  # nothing is cut off
    assert heights == sorted(heights, reverse=True)


def test_strange_names_values_and_single_lines_are_drawn(write_manifest: Callable, tmp_path: Path) -> None:
    row = {"audio_filepath": "a.wav", "duration": 2.0, "speaker": "$x_{$ 张 <&>\ud800\n", "lang": "y" * 90}
    before = dict(matplotlib.rcParams)
    draw(stats_of(write_manifest([row], "$1 & more.json"), "manifest"), tmp_path / "a.png")
    draw(stats_of(write_manifest([{"audio_filepath": "a.wav"}]), "manifest"), tmp_path / "b.png")  # no duration at all
    assert dict(matplotlib.rcParams) == before


def test_what_cannot_be_drawn_to_is_an_error_and_leaves_nothing(write_manifest: Callable, tmp_path: Path) -> None:
    stats = stats_of(write_manifest([{"audio_filepath": "a.wav", "duration": 2.0}]), "manifest")
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.iterdir())
    for name in ("a.jpeg", "a", "folder.png", "manifest.json/a.png"):
        with pytest.raises(NestError):
            draw(stats, tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
