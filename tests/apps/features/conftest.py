"""A small model file and some audio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"


@pytest.fixture
def audio(tmp_path: Path) -> list[str]:
    """Four files of 0.5 to 2 s, two of them with the same name in two folders."""
    generator = np.random.default_rng(0)
    paths = [tmp_path / "audio" / name for name in ("a/x.wav", "b/x.wav", "b/x.flac", "y.wav")]
    for number, path in enumerate(paths, start=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, generator.normal(0, 0.1, 8000 * number), 16000)
    return [str(path) for path in paths]
