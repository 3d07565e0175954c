"""Training on tar files, by one process and by two with uneven shards, uninterrupted and resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nest_ssl.apps.datatools.tar_writer import TarOptions, TarredSet, make_tarred_sets
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from tests.differences import differences
from tests.integration.test_distributed import TWO, command, pytestmark, run  # noqa: F401 - the mark is pytest's
from tests.integration.test_resume import result


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=16, val=3, noise=2)


@pytest.fixture(scope="module")
def uneven(corpus: DummyCorpus, tmp_path_factory: pytest.TempPathFactory) -> TarredSet:
    """Four shards of four utterances, of which the manifest lists 1, 4, 4 and 4."""
    (made,) = make_tarred_sets(corpus.train_manifest, tmp_path_factory.mktemp("tarred"), TarOptions(num_shards=4))
    lines = Path(made.manifest).read_text().splitlines(keepends=True)
    Path(made.manifest).write_text("".join(lines[3:]))
    return made


def words(corpus: DummyCorpus, made: TarredSet, *overrides: str) -> list[str]:
    tarred = ["model.train_ds.is_tarred=true", f"model.train_ds.manifest_filepath={made.manifest}"]
    return command(corpus, *tarred, f"+model.train_ds.tarred_audio_filepaths={made.tars}", *overrides)


def trained(folder: Path) -> dict[str, Any]:
    """Return the state without the schedule, which contains the intended length of the run."""
    return {name: value for name, value in result(folder).items() if name != "lr_schedulers"}


def test_two_processes_with_uneven_shards_take_equally_many_steps_and_resume_bit_for_bit(
    corpus: DummyCorpus, uneven: TarredSet, tmp_path: Path
) -> None:
    both = words(corpus, uneven, *TWO, "model.train_ds.drop_last=false", "trainer.val_check_interval=2")
    first, second = run(tmp_path / "whole", [*both, "trainer.max_steps=8"])
    assert len(first["batches"]) == len(second["batches"]) == 8
    in_epoch = Counter(batch["epoch"] for batch in first["batches"])
    assert in_epoch == Counter(batch["epoch"] for batch in second["batches"])
    assert in_epoch[0] == 3  # five utterances in batches of two; the other process has eight utterances
    run(tmp_path / "parts", [*both, "trainer.max_steps=4"])
    run(tmp_path / "parts", [*both, "trainer.max_steps=8"])
    assert differences(trained(tmp_path / "parts"), trained(tmp_path / "whole")) == []


def _listed(paths: list[str]) -> str:
    """Return the paths as a list of buckets for the command line, quoted, so that Hydra keeps backslashes."""
    return "[" + ",".join(f"['{path}']" for path in paths) + "]"


def test_a_run_in_buckets_resumes_bit_for_bit_even_between_epochs(corpus: DummyCorpus, tmp_path: Path) -> None:
    sets = make_tarred_sets(corpus.train_manifest, tmp_path / "buckets", TarOptions(num_shards=2), buckets=2)
    batches = sum(one.utterances for one in sets) // 2
    overrides = [
        "model.train_ds.is_tarred=true",
        f"model.train_ds.manifest_filepath={_listed([one.manifest for one in sets])}",
        f"+model.train_ds.tarred_audio_filepaths={_listed([one.tars for one in sets])}",
        f"trainer.val_check_interval={batches}",
    ]
    alone = command(corpus, *overrides)
    steps = 2 * batches + 2
    run(tmp_path / "whole", [*alone, f"trainer.max_steps={steps}"])
    run(tmp_path / "parts", [*alone, f"trainer.max_steps={batches}"])
    run(tmp_path / "parts", [*alone, f"trainer.max_steps={steps}"])
    assert differences(trained(tmp_path / "parts"), trained(tmp_path / "whole")) == []
