"""The metrics of a run, with a small model on a corpus of a few seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.model import MaskedPrediction
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import manifests_of, small_config
from nest_ssl.training.callbacks.monitor import Score, TrainingMonitor
from nest_ssl.training.callbacks.samples import ValidationSamples
from tests.differences import differences
from tests.model.fast.conftest import NOTHING_RANDOM, build, default_type, make_batch

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=6, val=3, noise=2)


def train(
    corpus: DummyCorpus, callbacks: list[Callback], *overrides: str, ckpt: Path | None = None, **options: Any
) -> tuple[EncDecDenoiseMaskedTokenPredModel, pl.Trainer]:
    pl.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    steps = {"max_steps": 3, "log_every_n_steps": 1, "val_check_interval": 3, "num_sanity_val_steps": 1}
    trainer = pl.Trainer(accelerator="cpu", callbacks=callbacks, **{**steps, **quiet, **options})
    model = EncDecDenoiseMaskedTokenPredModel(
        cfg=small_config(CONFIG, [*manifests_of(corpus), *overrides]).model, trainer=trainer
    )
    trainer.fit(model, ckpt_path=ckpt)
    return model, trainer


class Predictions(Callback):
    """Keeps the predictions of the model in training and in validation."""

    def __init__(self) -> None:
        self.training: list[MaskedPrediction] = []
        self.validation: list[MaskedPrediction] = []

    def on_before_backward(self, trainer: pl.Trainer, pl_module: Any, loss: torch.Tensor) -> None:
        self.training.append(pl_module.prediction)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.validation.append(pl_module.prediction)


def naive_scores(predictions: list[MaskedPrediction]) -> tuple[float, float, set[int], set[int]]:
    """Return accuracy, masked share, target codes and predicted codes, computed frame by frame."""
    hits, frames, targets, predicted = [], 0, set(), set()
    for prediction in predictions:
        frames += int(prediction.lengths.sum())
        placed = prediction.in_place(prediction.tokens), prediction.in_place(prediction.predicted())
        for row, column in prediction.scored.nonzero().tolist():
            asked, said = (int(tokens[row, column, 0]) for tokens in placed)
            hits.append(asked == said)
            targets.add(asked)
            predicted.add(said)
    return sum(hits) / len(hits), len(hits) / frames, targets, predicted


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_metrics_equal_those_of_a_plain_loop_over_frames(numerics: str, corpus: DummyCorpus) -> None:
    seen = Predictions()
    model, trainer = train(corpus, [TrainingMonitor(), seen], f"model.numerics={numerics}")
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    accuracy, share, *_ = naive_scores(seen.training[-1:])
    assert metrics["train_accuracy"] == pytest.approx(accuracy)
    assert metrics["masked_share"] == pytest.approx(share)
    accuracy, share, targets, predicted = naive_scores(seen.validation)
    assert metrics["val_accuracy"] == pytest.approx(accuracy)
    assert metrics["val_masked_share"] == pytest.approx(share)
    assert metrics["codebook_0/target_coverage"] == pytest.approx(len(targets) / 64)
    assert metrics["codebook_0/predicted_coverage"] == pytest.approx(len(predicted) / 64)
    ever = naive_scores([*seen.training, *seen.validation])[2]
    assert metrics["codebook_0/target_cumulative_coverage"] == pytest.approx(len(ever) / 64)
    weights = [value.detach().double().flatten() for value in model.parameters() if value.requires_grad]
    assert metrics["weight_norm"] == pytest.approx(float(torch.cat(weights).norm()), rel=1e-5)
    assert metrics["gradient_norm"] > 0


def test_the_gradient_norm_is_the_one_before_clipping(corpus: DummyCorpus) -> None:
    _, trainer = train(corpus, [TrainingMonitor()], gradient_clip_val=1e-3)
    assert trainer.callback_metrics["gradient_norm"] > 0.1


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}])
def test_the_monitor_changes_no_bit_of_training(options: dict[str, int], corpus: DummyCorpus, tmp_path: Path) -> None:
    def outcome(*callbacks: Callback) -> dict[str, Any]:
        model, trainer = train(corpus, list(callbacks), val_check_interval=1, **options)
        return {
            "weights": model.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict()["state"],
            "random": torch.get_rng_state(),
            "val_loss": float(trainer.callback_metrics["val_loss"]),
        }

    assert differences(outcome(), outcome(TrainingMonitor(), ValidationSamples(tmp_path))) == []


def test_steps_that_are_not_logged_compute_no_predictions(corpus: DummyCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(MaskedPrediction, "predicted", lambda self: asked.append(1) or self.tokens)
    train(corpus, [TrainingMonitor()], log_every_n_steps=3, limit_val_batches=0)
    assert len(asked) == 1


def test_codes_counted_before_a_checkpoint_still_count_after_it(corpus: DummyCorpus, tmp_path: Path) -> None:
    first = TrainingMonitor()
    _, trainer = train(corpus, [first])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second, seen = TrainingMonitor(), Predictions()
    train(corpus, [second, seen], ckpt=tmp_path / "last.ckpt", max_steps=4, limit_val_batches=0)
    before, after = first.state_dict()["codes_seen"], second.state_dict()["codes_seen"]
    assert (after >= before).all()
    assert int(after.sum() - before.sum()) == int(seen.training[-1].scored.sum())


def test_a_checkpoint_with_other_codebooks_can_be_loaded(corpus: DummyCorpus) -> None:
    monitor = TrainingMonitor()
    monitor.load_state_dict({"codes_seen": torch.ones(3, 7, dtype=torch.int64)})
    train(corpus, [monitor], limit_val_batches=0)
    assert monitor.state_dict()["codes_seen"].shape == (1, 64)


def test_skipped_audio_and_batches_without_masks_are_logged(corpus: DummyCorpus, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for row in rows:
        row["audio_filepath"] = str(corpus.train_manifest.parent / row["audio_filepath"])
    rows[0]["audio_filepath"] = str(tmp_path / "gone.wav")
    manifest = tmp_path / "train.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"model.train_ds.manifest_filepath={manifest}"
    _, trainer = train(corpus, [TrainingMonitor()], data, "model.masking.mask_prob=0.0", limit_val_batches=0)
    metrics = trainer.callback_metrics
    assert metrics["skipped_audio"] == 1
    assert metrics["batches_without_masks"] == 3
    assert metrics["masked_share"] == 0
    assert "train_accuracy" not in metrics


@pytest.mark.parametrize("overrides", [[], ["model.num_books=2"], ["model.squeeze_single=true"]])
def test_exact_and_fast_have_the_same_metrics(overrides: list[str]) -> None:
    batch = make_batch((40000, 61234, 8000, 30001))
    scores, placed = [], []
    for numerics in ("exact", "fast"):
        model = build(numerics, [*NOTHING_RANDOM, *overrides]).double()
        for name in ("audio", "noise", "noisy_audio"):
            setattr(batch, name, getattr(batch, name).double())
        torch.manual_seed(1)
        with default_type(torch.float64), torch.no_grad():
            prediction = model.predict_masked(batch)
        scores.append([int(value) for value in vars(Score.of(prediction, prediction.predicted())).values()])
        placed.append([prediction.in_place(tokens) for tokens in (prediction.tokens, prediction.predicted())])
        scored = prediction.scored
    assert scores[0] == scores[1]
    assert 0 < scores[0][2] < scores[0][3]
    for exact, fast in zip(*placed, strict=True):
        assert torch.equal(exact[scored], fast[scored])
