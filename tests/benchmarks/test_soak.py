from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import Sample, growth, soak
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.testing import manifests_of

EPOCHS = 5  # the smallest number that `growth` accepts


def samples(megabytes: list[float], files: int = 20) -> list[Sample]:
    return [Sample(minute, value, files, 3) for minute, value in enumerate(megabytes)]


def test_memory_that_goes_up_and_down_has_not_grown() -> None:
    assert growth(samples([300, 500, 600, 601, 598, 603, 600, 599, 602, 601])) == []


def test_growing_memory_and_a_single_open_file_are_found() -> None:
    assert growth(samples([600.0 + 5 * minute for minute in range(20)])) == ["megabytes grew from 655 to 690"]
    leaking = [Sample(minute, 600, 20 + minute // 5, 3) for minute in range(20)]
    assert growth(leaking) == ["open_files grew from 22 to 23"]


def test_a_too_short_run_is_reported() -> None:
    assert "too few epochs" in growth(samples([1, 2]))[0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks into /proc")
def test_every_epoch_of_training_ends_with_the_same_files_and_processes(tmp_path: Path) -> None:
    corpus = make_dummy_corpus(tmp_path / "corpus", train=12, val=4, noise=2)
    noise = f"model.validation_ds.noise_manifest={corpus.noise_manifest}"
    samples = soak(tmp_path, [*manifests_of(corpus), noise, f"trainer.max_epochs={EPOCHS}"])
    assert len(samples) == EPOCHS
    assert len({(sample.open_files, sample.processes) for sample in samples}) == 1
    # memory needs more epochs to become constant
    assert not [line for line in growth(samples) if "megabytes" not in line]
