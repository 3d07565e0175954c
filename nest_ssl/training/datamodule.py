"""The data loaders of a run, as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from nest_ssl.config.schema import DATA_SETS, LhotseSettings, Numerics, read_value
from nest_ssl.data.loading.random_states import seed_process
from nest_ssl.data.paths import speech_paths
from nest_ssl.errors import ConfigError


class NestDataModule(pl.LightningDataModule):
    """Makes the loaders that the `train_ds` and `validation_ds` nodes of a `model` node describe."""

    def __init__(self, settings: Mapping[str, Any], numerics: Numerics = "exact") -> None:
        super().__init__()
        self.settings = settings
        self.numerics = numerics
        self.train_loader: DataLoader | None = None
        self.validation_loaders: list[DataLoader] = []
        self.validation_names: list[str] = []  # NeMo's prefixes for the metrics of several sets

    def setup(self, stage: str) -> None:
        """Lightning's hook, in every process once its rank is known: make the loaders."""
        if stage == "fit":
            self.setup_training_data(self._node("train_ds"))
        if stage in ("fit", "validate") and speech_paths(self.settings.get("validation_ds")):
            self.setup_validation_data(self._node("validation_ds"))

    def setup_training_data(self, config: Mapping[str, Any]) -> None:
        """Train on the data of this `train_ds` node."""
        self.train_loader = self._loader({"shuffle": True, **config}, "model.train_ds")

    def setup_validation_data(self, config: Mapping[str, Any]) -> None:
        """Validate on the data of this `validation_ds` node; a list of manifests makes as many sets."""
        manifests = config.get("manifest_filepath")
        several = manifests if isinstance(manifests, list) else [manifests]
        self.validation_names = [_metric_prefix(manifest) for manifest in several]
        self.validation_loaders = [
            self._loader({"shuffle": False, **config, "manifest_filepath": manifest}, "model.validation_ds")
            for manifest in several
        ]

    def train_dataloader(self) -> DataLoader | None:
        return self.train_loader

    def val_dataloader(self) -> list[DataLoader]:
        return self.validation_loaders

    def _node(self, name: str) -> dict[str, Any]:
        config = self.settings.get(name)
        if not config:
            raise ConfigError(f"model.{name}: missing; give model.{name}.manifest_filepath=<manifest>")
        return config

    def _loader(self, config: dict[str, Any], key: str) -> DataLoader:
        from nest_ssl.data.loader import build_dataloader  # not needed where a model is restored to be used

        if config.get("sample_rate") is None and "sample_rate" in self.settings:
            config["sample_rate"] = self.settings["sample_rate"]
        return build_dataloader(
            config,
            key=key,
            global_rank=self.trainer.global_rank if self.trainer is not None else 0,
            world_size=self.trainer.world_size if self.trainer is not None else 1,
            numerics=self.numerics,
        )


def seed_for_lhotse(settings: Mapping[str, Any]) -> None:
    """Seed the process as NeMo does when it makes a loader of lhotse's, before it draws the model's weights."""
    for name in DATA_SETS:
        config = settings.get(name) or {}
        if config.get("use_lhotse") and not config.get("defer_setup"):
            seed_process(read_value(LhotseSettings, config, "seed", f"model.{name}"))


def _metric_prefix(manifest: Any) -> str:
    """`data/dev-clean_manifest.json` -> `dev_clean_`: NeMo's prefix for the metrics of one of several sets."""
    name = Path(str(manifest)).stem.replace("-", "_").replace("manifest", "").replace("dataset", "")
    return name if name.endswith("_") else name + "_"
