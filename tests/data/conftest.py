from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    """A corpus with a few utterances of a few seconds, and one noise of each kind."""
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=12, val=4, noise=5, seed=3)


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[..., str]:
    """Write rows as a manifest in the test's folder; return its path."""

    def write(rows: list[dict], name: str = "manifest.json") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def write_audio(tmp_path: Path) -> Callable[..., dict]:
    """Write samples as a file in the test's folder; return its manifest line."""

    def write(name: str, samples: np.ndarray, rate: int = 16000, subtype: str = "DOUBLE") -> dict:
        soundfile.write(tmp_path / name, samples, rate, subtype=subtype)
        return {"audio_filepath": name, "duration": len(samples) / rate}

    return write
