"""Telephone speech in a set for 16 kHz is named by whoever looks at it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.inspection.bandwidth import estimate_narrow_band
from nest_ssl.data.manifest import load_manifest


@pytest.fixture
def mixed(corpus: DummyCorpus, tmp_path: Path) -> str:
    """Twelve utterances: every third was upsampled from 8 kHz, and one is of 8 kHz still."""
    rows = []
    for number, line in enumerate(corpus.train_manifest.read_text().splitlines()):
        row = json.loads(line)
        samples, rate = soundfile.read(corpus.train_manifest.parent / row["audio_filepath"])
        if number % 3 == 0:
            samples = soxr.resample(soxr.resample(samples, rate, 8000), 8000, rate)
        if number == 1:
            samples, rate = soxr.resample(samples, rate, 8000), 8000
        soundfile.write(tmp_path / f"{number}.wav", samples, rate)
        rows.append({"audio_filepath": f"{number}.wav", "duration": len(samples) / rate})
    manifest = tmp_path / "mixed.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(manifest)


def test_a_sample_of_files_is_the_same_each_time_and_touches_no_random_numbers(mixed: str) -> None:
    manifest = load_manifest([mixed])
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    found = estimate_narrow_band([manifest, manifest], 16000, 8)
    assert found == estimate_narrow_band([manifest, manifest], 16000, 8)
    assert found.measured == 8
    assert 0 < found.lines < 8
    assert estimate_narrow_band([manifest], 16000, 100).lines == 5
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002


def test_what_cannot_be_read_is_left_to_others(mixed: str, write_manifest: Callable[..., str]) -> None:
    (Path(mixed).parent / "0.wav").write_text("no audio")
    (Path(mixed).parent / "3.wav").unlink()
    found = estimate_narrow_band([load_manifest([mixed])], 16000, 100)
    assert (found.measured, found.lines) == (10, 3)
