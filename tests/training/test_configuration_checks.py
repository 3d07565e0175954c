"""Checks of the training and validation data of a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.data.paths import is_generated
from nest_ssl.errors import ConfigError
from nest_ssl.testing import small_config
from nest_ssl.training.checks import check_generated_data, check_validation
from nest_ssl.training.run import main

CONFIG = Path(__file__).resolve().parents[2] / "config"
VALIDATION = "model.validation_ds.manifest_filepath"
SMALL = [
    *("model.encoder.n_layers=1", "model.encoder.d_model=16", "model.encoder.n_heads=2", "model.num_classes=32"),
    *("model.encoder.subsampling_conv_channels=8", "model.masking.mask_prob=0.05", "trainer.max_steps=2"),
]


def _own(folder: Path, corpus: DummyCorpus, name: str) -> Path:
    """Write a manifest that cannot be distinguished from a user's own."""
    entries = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for entry in entries:
        entry["audio_filepath"] = str(corpus.train_manifest.parent / entry["audio_filepath"])
    manifest = folder / name
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return manifest


def _generated_data(*typed: str, config: str = "nest_fast-conformer") -> list[str]:
    cfg = small_config(CONFIG / f"{config}.yaml", typed)
    return list(check_generated_data(cfg, ["train.py", *typed]))


def test_own_training_data_with_generated_validation_data_is_refused_with_a_working_command() -> None:
    with pytest.raises(ConfigError) as refusal:
        _generated_data("model.train_ds.manifest_filepath=mine.json", "trainer.max_steps=9")
    assert str(refusal.value) == (
        f"{VALIDATION}: data/dummy_ssl/val_manifest.json is generated sounds, so val_loss would say nothing of "
        "mine.json; hold out a part of your own: nest-ssl data split mine.json --val 5%, then: python train.py "
        f"trainer.max_steps=9 model.train_ds.manifest_filepath=mine.train.json {VALIDATION}=mine.val.json "
        f"({VALIDATION}=null trains without validation)"
    )


def test_own_validation_data_with_generated_training_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train_ds\.manifest_filepath: .* generated sounds, .* of mine\.json; give"):
        _generated_data(f"{VALIDATION}=mine.json")


@pytest.mark.parametrize(
    "train", ["=a.json,b.json", "=[[a.json,b.json]]", "=null model.train_ds.shar_path=cuts", "=data/own/train.json"]
)
def test_every_way_to_name_own_data_is_recognised(train: str) -> None:
    with pytest.raises(ConfigError, match="generated sounds"):
        _generated_data(*f"model.train_ds.manifest_filepath{train}".split())


@pytest.mark.parametrize(
    "typed",
    [
        "",
        f"{VALIDATION}=data/dummy_ssl/val_manifest.json",
        f"model.train_ds.manifest_filepath=nest_ssl_project/data/dummy_ssl/train_manifest.json {VALIDATION}=null",
        f"model.train_ds.manifest_filepath=mine.json {VALIDATION}=null",
        f"model.train_ds.manifest_filepath=mine.json {VALIDATION}=held_out.json",
        "model.train_ds.manifest_filepath=mine.json exp_manager=null",  # a run for a recording, which keeps no result
    ],
)
def test_only_generated_data_only_own_data_and_no_validation_are_accepted(typed: str) -> None:
    assert _generated_data(*typed.split()) == []


def test_explicit_generated_validation_data_gives_a_warning() -> None:
    typed = f"model.train_ds.manifest_filepath=mine.json {VALIDATION}=data/dummy_ssl/val_manifest.json"
    (line,) = _generated_data(*typed.split())
    assert line.endswith("is generated sounds, so val_loss would say nothing of mine.json")


@pytest.mark.parametrize("name", ["train_ds", "validation_ds"])
def test_generated_noise_in_own_speech_gives_a_warning(name: str) -> None:
    speech = ["model.train_ds.manifest_filepath=mine.json", f"{VALIDATION}=held_out.json"]
    (line,) = _generated_data(*speech, f"model.{name}.noise_manifest=data/dummy_ssl/noise_manifest.json")
    assert line.startswith(f"model.{name}.noise_manifest: data/dummy_ssl/noise_manifest.json is generated noise")
    assert line.endswith(f"model.{name}.noise_manifest=null for none")


def test_a_dummy_corpus_is_recognised_by_its_marker_in_any_folder(tmp_path: Path) -> None:
    corpus = make_dummy_corpus(tmp_path / "elsewhere", train=1, val=1, noise=1)
    assert all(is_generated(str(manifest)) for manifest in vars(corpus).values())
    assert not is_generated(str(_own(tmp_path / "elsewhere", corpus, "own.json")))


@pytest.mark.parametrize("typed", ["model.validation_ds=null", f"{VALIDATION}=null", "trainer.limit_val_batches=0"])
def test_a_run_without_validation_warns_once_and_has_no_best_checkpoint(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = make_dummy_corpus(tmp_path / "data" / "dummy_ssl", train=4, val=2, noise=1)
    assert corpus.train_manifest.is_file()
    assert main([*SMALL, typed], config_dir=CONFIG) == 0
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if "best checkpoint" in line]
    assert said.startswith(f"warning: {typed} leaves no validation: there is no val_loss and no best checkpoint")
    checkpoints = tmp_path / "nest_experiments" / "SSL-NEST-FastConformer" / "checkpoints"
    assert [path.suffix for path in sorted(checkpoints.iterdir())] == [".ckpt", ".nemo"]
    assert len(list(checkpoints.glob("*-last.ckpt"))) == 1


def test_early_stopping_without_validation_is_refused() -> None:
    cfg = small_config(
        CONFIG / "nest_fast-conformer.yaml",
        ["trainer.limit_val_batches=0", "exp_manager.create_early_stopping_callback=true"],
    )
    with pytest.raises(ConfigError, match=r"waits for val_loss, but trainer\.limit_val_batches=0 leaves no validation"):
        list(check_validation(cfg, []))
