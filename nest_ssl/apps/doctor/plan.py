"""A configuration as a run on this machine would take it: adjusted, with its data opened, and what is wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader

from nest_ssl.apps.doctor.finding import Finding
from nest_ssl.apps.doctor.machine_facts import Facts
from nest_ssl.config.machine import FSDP, GLOO_DDP, Adjustment, adjust, apply, device_count
from nest_ssl.config.settings import CheckpointSettings
from nest_ssl.data import build_dataloader
from nest_ssl.data.manifest import Manifest, manifests_in
from nest_ssl.data.sources import sources
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.model.size import check_size, part_bytes
from nest_ssl.training.checks import check_model
from nest_ssl.training.experiment import DEFAULT_FOLDER, plan_experiment

_DUMMY = "data/dummy_ssl"
_MOST_FILES = 64  # of a manifest, to look at
_TRAINED = ("encoder", "decoder")
_MOMENTS = 2  # of Adam, each as large as the weights


@dataclass(frozen=True)
class RunPlan:
    """What a run would be; `problems` are the errors with which it would end before its first step."""

    cfg: DictConfig
    adjustments: tuple[Adjustment, ...]
    gpu: bool
    processes: int
    folder: Path  # of the run's files
    weight_bytes: int
    checkpoint_bytes: int  # on the disk at most, all together
    manifests: tuple[Manifest, ...]
    problems: tuple[Finding, ...]

    @property
    def train_ds(self) -> dict[str, Any]:
        node = self.cfg.model.get("train_ds")
        return OmegaConf.to_container(node) if node else {}  # type: ignore[return-value]

    @property
    def model_is_usable(self) -> bool:
        return not any(finding.name == "model" for finding in self.problems)

    @property
    def data_is_usable(self) -> bool:
        return not any(finding.name == "data" for finding in self.problems)

    def durations(self) -> np.ndarray:
        """Seconds of every utterance that would be trained on, as far as manifests say."""
        least = self.train_ds.get("min_audio_len_secs") or 1.0
        known = [manifest.durations[~np.isnan(manifest.durations)] for manifest in self.manifests]
        return np.maximum(np.concatenate([*known, np.empty(0)]), least)

    def files(self) -> list[str]:
        """Some audio files from all over the manifests; those in tar files are left out."""
        if self.train_ds.get("is_tarred"):
            return []
        names = []
        for manifest in self.manifests:
            for index in np.linspace(0, len(manifest) - 1, num=min(_MOST_FILES, len(manifest)), dtype=int):
                file = manifest[int(index)].audio_file
                names.extend([file] if isinstance(file, str) else file)
        return list(dict.fromkeys(names))


def make_plan(cfg: DictConfig, facts: Facts) -> RunPlan:
    """Go through all that a run does before its first step, except what takes long or writes."""
    adjustments = adjust(cfg, facts.machine)
    apply(cfg, adjustments)
    settings: dict[str, Any] = OmegaConf.to_container(cfg.model)  # type: ignore[assignment]
    problems: list[Finding] = []
    folder, checkpoints = Path(DEFAULT_FOLDER), CheckpointSettings()
    with _noted(problems, "run"):
        _check_trainer(cfg)
        if cfg.get("exp_manager") is not None:
            experiment = plan_experiment(OmegaConf.to_container(cfg.exp_manager), cfg.get("trainer") or {})  # type: ignore[arg-type]
            folder, checkpoints = experiment.folder, experiment.settings.checkpoint_callback_params
    with _noted(problems, "model"):
        check_size(settings, "model", facts.memory, "this machine has")
        if not settings.get("optim"):
            raise ConfigError("model.optim: missing; give at least model.optim.name and model.optim.lr")
        list(check_model(cfg, ()))
    loader = _open(settings, "train_ds", problems)
    if sources(settings.get("validation_ds")):
        _open(settings, "validation_ds", problems)
    parts = (name for name in _TRAINED if isinstance(settings.get(name), dict))
    weights = sum(part_bytes(name, settings[name]) for name in parts)
    gpu = bool(facts.gpus) and str(OmegaConf.select(cfg, "trainer.accelerator") or "auto") != "cpu"
    return RunPlan(
        cfg=cfg,
        adjustments=tuple(adjustments),
        gpu=gpu,
        processes=device_count(OmegaConf.select(cfg, "trainer.devices"), len(facts.gpus) if gpu else 1),
        folder=folder.absolute(),
        weight_bytes=weights,
        checkpoint_bytes=_checkpoint_bytes(weights, checkpoints),
        manifests=tuple(manifests_in(loader.dataset)) if loader is not None else (),
        problems=tuple(problems),
    )


def load_train(settings: dict[str, Any], **changes: Any) -> DataLoader[Any]:
    """The loader of `train_ds` with some options changed."""
    config = {"shuffle": True, **settings["train_ds"], **changes}
    config["sample_rate"] = config.get("sample_rate") or settings.get("sample_rate")
    return build_dataloader(config, key="model.train_ds", numerics=settings.get("numerics") or "exact")


@contextlib.contextmanager
def _noted(problems: list[Finding], name: str) -> Iterator[None]:
    """What ends a run becomes a finding, in the run's own words."""
    try:
        yield
    except NestError as error:
        problems.append(Finding(name, "problem", str(error)))


def _open(settings: dict[str, Any], name: str, problems: list[Finding]) -> DataLoader[Any] | None:
    """The loader of a data set, or None and the reason among the problems."""
    node = settings.get(name)
    with _noted(problems, "data"):
        if not node:
            raise ConfigError(f"model.{name}: missing; give model.{name}.manifest_filepath=<manifest>")
        if name == "train_ds":
            return load_train(settings)
        first = node.get("manifest_filepath")
        manifests = first if isinstance(first, list) else [first]
        for manifest in manifests:
            rate = node.get("sample_rate") or settings.get("sample_rate")
            build_dataloader({**node, "manifest_filepath": manifest, "sample_rate": rate}, key=f"model.{name}")
        return None
    if _DUMMY in problems[-1].found:
        advice = "nest-ssl data make-dummy makes this corpus, or give your own: model.train_ds.manifest_filepath=..."
        problems[-1] = replace(problems[-1], advice=advice)
    return None


def _check_trainer(cfg: DictConfig) -> None:
    """Let Lightning judge the trainer's arguments; it only looks at them."""
    arguments: dict[str, Any] = OmegaConf.to_container(cfg.get("trainer") or OmegaConf.create())  # type: ignore
    if arguments.get("strategy") in (None, FSDP, GLOO_DDP):  # made by the run itself
        arguments["strategy"] = "auto"
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    try:
        pl.Trainer(**{**arguments, **quiet})
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from error


def _checkpoint_bytes(weights: int, checkpoints: CheckpointSettings) -> int:
    """The best ones, the last, one being written and an archive; weights and moments in each but the last."""
    kept = max(0, checkpoints.save_top_k) + 2
    return kept * (1 + _MOMENTS) * weights + 2 * weights
