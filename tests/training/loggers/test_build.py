"""Tags in TensorBoard form groups, and each tag can be mapped back to the name of its metric."""

from __future__ import annotations

import pytest
import torch

from nest_ssl.training.callbacks.monitor import codebook_metrics
from nest_ssl.training.loggers.build import name_of, tag_of

BOOKS = list(codebook_metrics(*torch.ones(3, 12, 4)))  # twelve codebooks
NAMES = [
    *("train_loss", "val_loss", "learning_rate", "epoch", "train_step_timing in s", "dev_clean_val_loss"),
    *("train_accuracy", "masked_share", "gradient_norm", "weight_norm", "val_accuracy", "val_masked_share"),
    *("skipped_audio", "batches_without_masks", "nonfinite_steps"),
    *("audio_seconds_per_second", "data_wait_share", "padding_efficiency"),
    *BOOKS,
]


@pytest.mark.parametrize("name", NAMES)
def test_a_tag_is_mapped_back_to_its_name_and_an_old_tag_is_its_own_name(name: str) -> None:
    assert name_of(tag_of(name)) == name
    assert name_of(name) == name


def test_there_are_four_groups_and_nemos_names_are_unchanged() -> None:
    tags = {name: tag_of(name) for name in NAMES}
    assert {tag.partition("/")[0] for tag in tags.values() if "/" in tag} == {"train", "val", "codebook", "speed"}
    assert [name for name, tag in tags.items() if name == tag] == NAMES[:6]
    assert len(set(tags.values())) == len(NAMES)
    assert tag_of("codebook_11/target_coverage") == "codebook/target_coverage_11"
