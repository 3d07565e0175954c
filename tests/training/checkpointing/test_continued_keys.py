from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.training.checkpointing.continued_keys import KeyChange, another_order, compare_configurations

CONFIG = Path(__file__).parents[3] / "config"


def config(*overrides: str) -> dict[str, Any]:
    cfg = load_config(CommandLine(CONFIG, "nest_fast-conformer", list(overrides)))
    return OmegaConf.to_container(cfg)  # type: ignore[return-value]


def changes(*overrides: str) -> dict[str, bool]:
    """Return, for each changed key, whether the change takes effect."""
    return {change.key: change.takes_effect for change in compare_configurations(config(), config(*overrides))}


def test_equal_configurations_have_no_change() -> None:
    assert changes() == {}


@pytest.mark.parametrize(
    "override",
    [
        *("trainer.max_steps=7", "trainer.devices=2", "model.train_ds.num_workers=3", "model.numerics=fast"),
        *("model.validation_ds.batch_size=9", "exp_manager.log_samples=false", "model.encoder.dropout_att=0.3"),
        *("model.train_ds.batch_augmentor.prob=0.1", "model.masking.mask_prob=0.02", "trainer.precision=bf16-mixed"),
    ],
)
def test_changes_of_parts_that_are_built_again_take_effect(override: str) -> None:
    assert changes(override) == {override.partition("=")[0]: True}


@pytest.mark.parametrize(
    "override",
    [
        *("model.optim.lr=1.0", "model.optim.betas=[0.9,0.99]", "model.optim.sched.warmup_steps=3", "seed=3"),
        *("model.encoder.n_heads=4", "model.encoder.att_context_size=[8,8]", "model.quantizer.dist_fn=cosine"),
        *("model.preprocessor.window=hamming", "model.mask_position=post_conv", "model.masking.freeze=false"),
    ],
)
def test_changes_of_values_in_the_checkpoint_have_no_effect(override: str) -> None:
    assert changes(override) == {override.partition("=")[0]: False}


def test_an_explicit_default_is_not_a_change() -> None:
    assert changes("model.numerics=exact", "model.encoder.att_context_probs=null", "trainer.deterministic=null") == {}


def test_another_name_of_the_same_class_is_not_a_change() -> None:
    assert changes("model.encoder._target_=nest_ssl.model.conformer.encoder.ConformerEncoder") == {}


def test_references_in_nemos_checkpoints_are_not_compared() -> None:
    old = copy.deepcopy(config())
    old["model"]["train_ds"]["sample_rate"] = old["model"]["decoder"]["feat_in"] = "${model.sample_rate}"
    old["model"]["nemo_version"] = "3.0.0"
    assert compare_configurations(old, config()) == []


def test_an_unknown_key_is_refused() -> None:
    assert not KeyChange("model.invented", None, 1).takes_effect


@pytest.mark.parametrize(
    ("override", "restarts"),
    [
        *(("model.train_ds.batch_size=3", False), ("model.train_ds.num_workers=2", False)),
        *(("model.train_ds.manifest_filepath=x.json", False), ("model.train_ds.batch_augmentor.prob=0.2", False)),
        *(("model.train_ds.shuffle=false", True), ("model.train_ds.drop_last=false", True)),
        *(("model.train_ds.batch_duration=30", True), ("model.validation_ds.shuffle=true", False)),
    ],
)
def test_an_epoch_restarts_if_batches_are_made_in_another_way(override: str, restarts: bool) -> None:
    new = config(override)
    assert another_order(compare_configurations(config(), new), new["model"]["train_ds"]) is restarts
