"""The bases of the variants: the shipped configuration on small corpora, at full size or reduced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# A change is `key=value`, `~key` to remove a key, or `+size=name` for a file of config/size. `{dummy}` and `{mixed}`
# are replaced by the folders of the two corpora.
CORPUS = (
    "model.train_ds.manifest_filepath={dummy}/train_manifest.json",
    "model.train_ds.noise_manifest={dummy}/noise_manifest.json",
    "model.validation_ds.manifest_filepath={dummy}/val_manifest.json",
    "model.validation_ds.noise_manifest={dummy}/noise_manifest.json",
    "model.train_ds.batch_size=2",
    "model.train_ds.num_workers=0",
    "model.validation_ds.batch_size=2",
    "model.validation_ds.num_workers=0",
)
# With the stock warm-up of 25,000 steps, the weights would hardly change
MOVING_WEIGHTS = ("model.optim.lr=0.5", "model.optim.sched.warmup_steps=8")
SHORT_CLIPS = ("model.train_ds.max_duration=5", "model.train_ds.min_duration=2", "model.masking.mask_prob=0.03")
SHRUNK = (
    *MOVING_WEIGHTS,
    "model.encoder.n_layers=3",
    "model.encoder.d_model=96",
    "model.encoder.n_heads=4",
)
TINY = (
    *SHORT_CLIPS,
    *MOVING_WEIGHTS,
    "model.encoder.n_layers=2",
    "model.encoder.d_model=32",
    "model.encoder.n_heads=4",
    "model.encoder.subsampling_conv_channels=16",
    "model.num_classes=128",
)
MIXED = (
    "model.train_ds.manifest_filepath={mixed}/train_manifest.json",
    "model.train_ds.noise_manifest={mixed}/noise_manifest.json",
    "model.train_ds.channel_selector=average",
    "model.train_ds.min_duration=0.1",
    "model.train_ds.max_duration=20",
    "model.masking.mask_prob=0.1",
)
BASES: dict[str, tuple[str, ...]] = {
    "whole": (*SHORT_CLIPS, *MOVING_WEIGHTS),
    "shrunk": SHRUNK,
    "tiny": TINY,
    "tiny-mixed": (*TINY, *MIXED),
}


@dataclass(frozen=True)
class Variant:
    """One short training run: its base, its changes to it, and its number of steps."""

    base: str
    changes: tuple[str, ...] = ()
    steps: int = 2
    resumed_after: int | None = None  # after so many steps, a new trainer and model continue from a checkpoint

    def overrides(self, dummy: Path, mixed: Path) -> list[str]:
        """Return all changes to the configuration file, with the paths of the corpora; later ones win."""
        return [
            change.replace("{dummy}", dummy.as_posix()).replace("{mixed}", mixed.as_posix())
            for change in (*CORPUS, *BASES[self.base], *self.changes)
        ]


def tiny(*changes: str, steps: int = 2) -> Variant:
    """Return a variant with a model so small that its run takes about a second."""
    return Variant("tiny", changes, steps)


def mixed(*changes: str, steps: int = 3) -> Variant:
    """Return the same variant on files with many sample rates, bit depths and channel counts."""
    return Variant("tiny-mixed", changes, steps)
