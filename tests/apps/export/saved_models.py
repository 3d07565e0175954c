"""Model files to export."""

from __future__ import annotations

from pathlib import Path

import torch

from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"


def small_model(*overrides: str) -> EncDecDenoiseMaskedTokenPredModel:
    """Return a model of one layer with random weights, in eval mode."""
    torch.manual_seed(0)
    smaller = ["model.encoder.n_layers=1", "model.encoder.pos_emb_max_len=400"]  # the check then needs no long audio
    config = small_config(CONFIG, [*smaller, *overrides])
    return EncDecDenoiseMaskedTokenPredModel(cfg=config.model).eval()


def checkpoint_of(model: EncDecDenoiseMaskedTokenPredModel, path: Path) -> Path:
    """Return the part of a Lightning checkpoint that the model card reads."""
    callbacks = {"RunCheckpoint": {"monitor": "val_loss", "current_score": torch.tensor(3.25)}, "Other": {"count": 1}}
    content = {"state_dict": model.state_dict(), "hyper_parameters": {"cfg": model.settings}}
    torch.save({**content, "global_step": 1200, "epoch": 6, "callbacks": callbacks}, path)
    return path
