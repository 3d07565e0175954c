"""The logs of a run: metrics and pictures in TensorBoard, W&B and MLflow, samples, metrics of two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.training.run import main
from tests.integration.conftest import SMALL
from tests.integration.test_distributed import EQUAL_HALVES, TWO, command, run, utterances_of_one_length
from tests.waiting import PATIENCE

Train = Callable[..., Path]
CONFIG = Path(__file__).parents[2] / "config"
WHILE_TRAINING = {
    *("train_loss", "train/accuracy", "train/masked_share", "train/gradient_norm", "train/weight_norm"),
    *("learning_rate", "epoch", "train_step_timing in s"),
    *("speed/audio_seconds_per_second", "speed/data_wait_share", "speed/padding_efficiency"),
}
AT_VALIDATION = {"val_loss", "val/accuracy", "val/masked_share"}
OF_BOOKS = {
    *("target_coverage", "target_perplexity", "target_cumulative_coverage"),
    *("predicted_coverage", "predicted_perplexity"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=8, val=2, noise=2)


@pytest.fixture
def train(corpus: DummyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Return a function that trains shortly in this process and returns the folder of the run."""
    monkeypatch.chdir(tmp_path)

    def train(*overrides: str) -> Path:
        data = [
            f"model.train_ds.manifest_filepath={corpus.train_manifest}",
            f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        ]
        schedule = ["seed=1", "trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.log_every_n_steps=2"]
        assert main([*SMALL, *data, *schedule, "exp_manager.explicit_log_dir=run", *overrides], CONFIG) == 0
        return tmp_path / "run"

    return train


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def scalars(folder: Path) -> dict[str, list[float]]:
    found = events(folder)
    return {tag: [event.value for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.parametrize("extra", [[], ["model.numerics=fast"]], ids=["exact", "fast"])
def test_a_run_logs_every_metric_pictures_and_samples(train: Train, extra: list[str]) -> None:
    folder = train("model.num_books=2", *extra)
    found = scalars(folder)
    often = WHILE_TRAINING - {"epoch"}
    assert {name: len(found[name]) for name in often} == dict.fromkeys(often, 2)
    names = {f"codebook/{name}_{book}" for book in (0, 1) for name in OF_BOOKS}
    assert set(found) == WHILE_TRAINING | AT_VALIDATION | names
    for name in names:
        lowest, highest = (1, 32) if "perplexity" in name else (0, 1)
        assert all(lowest - 1e-6 <= value <= highest + 1e-6 for value in found[name]), name
    pictures = events(folder)
    assert set(pictures.Tags()["images"]) == {"validation_sample_0", "validation_sample_1"}
    assert [picture.step for picture in pictures.Images("validation_sample_0")] == [2, 4]
    assert sorted(path.name for path in (folder / "samples").iterdir()) == ["step-000000002.npz", "step-000000004.npz"]
    with np.load(folder / "samples" / "step-000000004.npz") as file:
        assert file["step"] == 4
        assert file["targets_0"].shape == (*file["scored_0"].shape, 2)


def test_samples_can_be_switched_off(train: Train) -> None:
    folder = train("exp_manager.log_samples=false")
    assert not (folder / "samples").exists()
    assert events(folder).Tags()["images"] == []
    assert "val/accuracy" in scalars(folder)


@pytest.mark.slow
def test_wandb_gets_the_metrics_without_a_network(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name in (
        "WANDB__SERVICE_WAIT",
        "WANDB_INIT_TIMEOUT",
    ):  # time limits for the start of the process that writes: 30 and 90 s
        monkeypatch.setenv(name, str(PATIENCE))
    offline = "exp_manager.wandb_logger_kwargs={name: a, project: b, offline: true}"
    folder = train("exp_manager.create_wandb_logger=true", offline)
    wandb.teardown()  # as at the end of a process: waits for the process that writes
    (record,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content = record.read_bytes()
    for name in ("train/accuracy", "train/gradient_norm", "codebook/target_perplexity_0", "validation_sample_0"):
        assert name.encode() in content, name
    assert len(list(folder.glob("wandb/offline-run-*/files/media/images/*.png"))) == 4


@pytest.mark.slow
def test_mlflow_gets_metrics_and_pictures_in_the_folder_of_the_run(train: Train) -> None:
    mlflow = pytest.importorskip("mlflow")
    folder = train("exp_manager.create_mlflow_logger=true")
    client = mlflow.MlflowClient(f"file:{folder / 'mlruns'}")
    (experiment,) = client.search_experiments(filter_string="name = 'SSL-NEST-FastConformer'")
    (entry,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(entry.info.run_id, "val/accuracy")
    assert [metric.value for metric in history] == pytest.approx(scalars(folder)["val/accuracy"])
    pictures = client.list_artifacts(entry.info.run_id, "validation_sample_0")
    assert [Path(picture.path).name for picture in pictures] == ["step-000000002.png", "step-000000004.png"]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_report_the_same_as_one_with_the_whole_batch(tmp_path: Path) -> None:
    corpus = utterances_of_one_length(tmp_path / "corpus", 8)
    often = ["trainer.max_steps=2", "trainer.log_every_n_steps=1", "trainer.val_check_interval=2"]
    often += ["model.validation_ds.batch_augmentor=null"]
    run(tmp_path / "two", command(corpus, *EQUAL_HALVES, *often, *TWO, "model.train_ds.batch_size=4"))
    run(tmp_path / "one", command(corpus, *EQUAL_HALVES, *often, "model.train_ds.batch_size=8"))
    ours, theirs = (scalars(next((tmp_path / name).rglob("events.out*")).parent) for name in ("two", "one"))
    assert set(ours) == set(theirs)
    for name in {*theirs} - {"speed/audio_seconds_per_second", "speed/data_wait_share", "train_step_timing in s"}:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name


SLOW_SECOND = """
import os, sys, time
from pathlib import Path
import nest_ssl.data.dataset as dataset
from nest_ssl.training.run import main
load = dataset.AudioNoiseDataset.__getitem__
loaded = time.monotonic()
def slow(self, index):
    global loaded
    if os.environ.get("LOCAL_RANK") == "1":
        time.sleep(0.1 + 2 * (time.monotonic() - loaded))  # twice as long as the step, however long that takes
    item = load(self, index)
    loaded = time.monotonic()
    return item
dataset.AudioNoiseDataset.__getitem__ = slow
sys.exit(main(sys.argv[2:], config_dir=Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_the_wait_of_one_process_counts_for_all(tmp_path: Path) -> None:
    """The first process waits in its steps for the second one, whose data is slow; this must not count as computing."""
    corpus = utterances_of_one_length(tmp_path / "corpus", 16)
    script = tmp_path / "slow.py"
    script.write_text(SLOW_SECOND, encoding="utf-8")
    _, *overrides = command(corpus, *EQUAL_HALVES, *TWO, "trainer.max_steps=8", "trainer.log_every_n_steps=4")
    run(tmp_path / "two", [str(script), str(CONFIG), *overrides])
    found = scalars(next((tmp_path / "two").rglob("events.out*")).parent)
    assert found["speed/data_wait_share"][-1] > 0.3
    assert "compute is the bottleneck" not in (tmp_path / "two" / "log.txt").read_text(encoding="utf-8")
