"""The model in Lightning's trainer, on a corpus of a few seconds."""

import json
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.errors import ConfigError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import manifests_of, small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=6, val=2, noise=2)


def fit(corpus, *overrides, steps=2, **trainer_options):
    pl.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="cpu", max_steps=steps, num_sanity_val_steps=0, **quiet, **trainer_options)
    model = EncDecDenoiseMaskedTokenPredModel(
        cfg=small_config(CONFIG, [*manifests_of(corpus), *overrides]).model, trainer=trainer
    )
    trainer.fit(model)
    return model, trainer


def test_losses_and_learning_rate_are_logged(corpus):
    _, trainer = fit(corpus, val_check_interval=2)
    assert set(trainer.callback_metrics) == {"train_loss", "learning_rate", "val_loss"}
    assert all(value.isfinite() for value in trainer.callback_metrics.values())


def test_batches_without_masked_frames_are_counted_and_not_averaged(corpus, caplog):
    model, trainer = fit(corpus, "model.masking.mask_prob=0.0", val_check_interval=2)
    assert model.batches_without_masks == 3  # two training batches, one validation batch
    assert "train_loss" not in trainer.callback_metrics
    assert "val_loss" not in trainer.callback_metrics
    assert "no masked frame" in caplog.text


def test_each_of_several_validation_sets_has_its_own_loss(corpus):
    manifests = f"model.validation_ds.manifest_filepath=[{corpus.train_manifest},{corpus.val_manifest}]"
    _, trainer = fit(corpus, manifests, "model.validation_ds.val_dl_idx=1", val_check_interval=2)
    metrics = trainer.callback_metrics
    assert {"train_val_loss", "val_val_loss"} < set(metrics)
    assert metrics["val_loss"] == metrics["val_val_loss"] != metrics["train_val_loss"]


def test_unreadable_audio_is_replaced_and_counted(corpus, tmp_path):
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for row in rows:
        row["audio_filepath"] = str(corpus.train_manifest.parent / row["audio_filepath"])
    rows[0]["audio_filepath"] = str(tmp_path / "gone.wav")
    manifest = tmp_path / "train.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, _ = fit(corpus, f"model.train_ds.manifest_filepath={manifest}", steps=3)
    assert model.skipped_audio == 1


def test_only_trainable_weights_change(corpus):
    model, _ = fit(corpus)
    torch.manual_seed(0)
    pl.seed_everything(0, verbose=False)
    fresh = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG).model)
    moved = {
        name
        for (name, now), before in zip(model.named_parameters(), fresh.parameters(), strict=True)
        if not torch.equal(now, before)
    }
    assert moved == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.optim=null", "model.optim: missing"),
        ("model.train_ds=null", "model.train_ds: missing"),
        ("model.train_ds.manifest_filepath=nowhere.json", "nowhere.json"),
    ],
)
def test_settings_that_training_needs_are_required(corpus, override, message):
    with pytest.raises(Exception, match=message) as caught:
        fit(corpus, override)
    assert isinstance(caught.value, ConfigError) or "manifest" in str(caught.value)
