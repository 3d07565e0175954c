"""Arguments that all commands of these tests share."""

from __future__ import annotations

SMALL = [  # a model that trains in seconds
    "model.encoder.n_layers=1",
    "model.encoder.d_model=32",
    "model.encoder.n_heads=2",
    "model.encoder.subsampling_conv_channels=8",
    "model.num_classes=32",
    "model.masking.mask_prob=0.05",
    "model.optim.sched.warmup_steps=10",
    "model.optim.lr=0.1",
]
