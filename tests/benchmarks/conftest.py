"""A corpus of a few generated clips, made once, and jobs with a model so small that a step takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import corpus as corpus_module
from benchmarks.corpus import Corpus, load_corpus, write_manifest
from benchmarks.job import Job
from benchmarks.plan import FAST, Measurement, Side, overrides_for
from benchmarks.run import CONFIG

TINY = (
    "model.num_classes=64",
    "model.encoder.n_layers=2",
    "model.encoder.d_model=32",
    "model.encoder.subsampling_conv_channels=16",
    "model.masking.mask_prob=0.1",
)
MakeJob = Callable[..., Job]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module.debian_speech, "is_installed", lambda: False)
        for name, value in {
            "GENERATED": 24,
            "LONG_CLIPS": 4,
            "PROMPT_LIMIT": 4.0,
            "LONGEST": 8.0,
            "TAPE": 30.0,
        }.items():
            patch.setattr(corpus_module, name, value)
        return load_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def make_job(corpus: Corpus, tmp_path: Path) -> MakeJob:
    """Return a function that turns a measurement into the job of a side."""

    def make(measurement: Measurement, side: Side = FAST) -> Job:
        measurement = replace(measurement, batch_size=2, overrides=TINY)
        manifest = tmp_path / "train.json"
        write_manifest(manifest, measurement.choose(corpus, 0))
        return Job(
            kind=measurement.kind,
            config=str(CONFIG),
            size="small",
            overrides=overrides_for(measurement, side, manifest, corpus.noise_manifest, workers=0),
            steps=measurement.steps,
            seed=1,
            stages=measurement.stages,
            matrix_peak=measurement.matrix_peak,
        )

    return make
