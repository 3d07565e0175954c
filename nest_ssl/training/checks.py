"""Checks before the first step, and before anything is written: what would make the run fail or its result useless.

A check raises ConfigError to refuse the run, or yields warnings of one line. It has to be cheap: a manifest of a
million lines is checked in two seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.data.inspection.bandwidth import estimate_narrow_band
from nest_ssl.data.inspection.overlap import find_overlap, without_overlap
from nest_ssl.data.loader import read_data_set
from nest_ssl.data.manifest import Manifest, load_manifest, manifests_in
from nest_ssl.data.paths import expand_paths, is_generated, speech_paths
from nest_ssl.errors import ConfigError, ManifestError
from nest_ssl.model.agreement import check_agreement
from nest_ssl.model.build import check_parts
from nest_ssl.shell import as_typed, hydra_value
from nest_ssl.training.run_length import batches_in_epoch

_log = logging.getLogger(__name__)
_SETS = ("train_ds", "validation_ds")
_WARM_UP_SHARE = 10  # the warm-up that is proposed for a short run: one part in so many
_FILES = 16  # whose bandwidth is measured, some milliseconds each


def check_configuration(cfg: DictConfig, command: Sequence[str]) -> None:
    """Run the checks that need the configuration and the command as it was typed, before the model is built."""
    _warn([line for check in CONFIGURATION_CHECKS for line in check(cfg, command)])


class DataChecks(Callback):
    """Runs the checks that need the data loaders, in every process, before the run's folder is made."""

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _warn([line for check in DATA_CHECKS for line in check(self._cfg, trainer, pl_module)])


@rank_zero_only
def _warn(lines: Sequence[str]) -> None:
    for line in dict.fromkeys(lines):
        _log.warning(line)


def keeps_results(cfg: DictConfig) -> bool:
    """Return whether the run has a folder; it has none without an `exp_manager` node or with `fast_dev_run`."""
    return cfg.get("exp_manager") is not None and not OmegaConf.select(cfg, "trainer.fast_dev_run")


def check_model(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """Check that the parts of the model agree, above all on the number of feature frames for each target."""
    settings: Any = OmegaConf.to_container(cfg.model)
    check_parts(settings)
    yield from check_agreement(settings)


def check_data_sets(cfg: DictConfig, command: Sequence[str]) -> Sequence[str]:
    """Check the options of the data sets, so that a wrong one is found before the model is built."""
    settings: Any = OmegaConf.to_container(cfg.model)
    for name in _SETS:
        if speech_paths(settings.get(name)):
            read_data_set(settings[name], f"model.{name}")
    return ()


def check_generated_data(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """Refuse or warn of the dummy corpus beside the user's own data, which would make the result useless.

    Refuse it where the value is the configuration's own; where the user typed it, it is wanted, and worth a warning.
    """
    nodes = {name: _plain(cfg.model.get(name)) for name in _SETS}
    named = {name: speech_paths(node) for name, node in nodes.items()}
    if not keeps_results(cfg):
        return
    own = {name: [path for path in paths if not is_generated(path)] for name, paths in named.items()}
    for name, other in (_SETS, _SETS[::-1]):
        if named[name] and not own[name] and own[other]:
            yield _generated_speech(name, named[name][0], own[other], command)
    for name, node in nodes.items():
        noise = [path for path in speech_paths({"manifest_filepath": node.get("noise_manifest")}) if is_generated(path)]
        if own[name] and noise:
            yield (
                f"model.{name}.noise_manifest: {noise[0]} is generated noise, mixed into your own speech; give "
                f"noise of your own, or model.{name}.noise_manifest=null for none"
            )


def _generated_speech(name: str, generated: str, own: list[str], command: Sequence[str]) -> str:
    key = f"model.{name}.manifest_filepath"
    spoiled = "val_loss would say nothing of" if name == "validation_ds" else "what it learns would say nothing of"
    line = f"{key}: {generated} is generated sounds, so {spoiled} {own[0]}"
    if any(word.lstrip("+").startswith(f"{key}=") for word in command):
        return line
    if name == "train_ds":
        raise ConfigError(f"{line}; give your own: {as_typed([*command, f'{key}=train.json'])}")
    raise ConfigError(f"{line}; {_held_out(own, command)} ({key}=null trains without validation)")


def _held_out(own: list[str], command: Sequence[str]) -> str:
    """Return how to make a validation set, and the command that uses it."""
    train, validation = (f"model.{name}.manifest_filepath=" for name in _SETS)
    path = Path(own[0])
    if len(own) > 1 or path.suffix not in (".json", ".jsonl"):
        return f"give a part of your own: {as_typed([*command, f'{validation}val.json'])}"
    parts = [str(path.with_suffix(f".{part}{path.suffix}")) for part in ("train", "val")]
    others = [word for word in command if not word.lstrip("+").startswith(train)]
    typed = as_typed([*others, train + hydra_value(parts[:1]), validation + hydra_value(parts[1:])])
    return f"hold out a part of your own: {as_typed(['nest-ssl data split', own[0], '--val', '5%'])}, then: {typed}"


def check_validation(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """Refuse or warn of settings that need `val_loss` in a run without validation."""
    missing = _no_validation(cfg)
    experiment = _plain(cfg.get("exp_manager"))
    if missing is None or not keeps_results(cfg):
        return
    stopping = _plain(experiment.get("early_stopping_callback_params")).get("monitor") or "val_loss"
    if experiment.get("create_early_stopping_callback") and "val" in stopping:
        raise ConfigError(
            f"exp_manager.create_early_stopping_callback: waits for {stopping}, but {missing} leaves no validation; "
            "set it to false"
        )
    checkpoints = _plain(experiment.get("checkpoint_callback_params"))
    monitor = checkpoints.get("monitor") or "val_loss"
    if "val" in monitor and experiment.get("create_checkpoint_callback", True):
        line = f"{missing} leaves no validation: there is no {monitor} and no best checkpoint, only the last one"
        if not checkpoints.get("every_n_train_steps") and not checkpoints.get("train_time_interval"):
            line += (
                ", written when an epoch ends (and more often with, for example, "
                "exp_manager.checkpoint_callback_params.every_n_train_steps=1000)"
            )
        yield line


def _no_validation(cfg: DictConfig) -> str | None:
    """Return the setting that switches validation off; None if there is a validation."""
    node = _plain(cfg.model.get("validation_ds"))
    if not speech_paths(node):
        return "model.validation_ds.manifest_filepath=null" if node else "model.validation_ds=null"
    limit = OmegaConf.select(cfg, "trainer.limit_val_batches")
    return "trainer.limit_val_batches=0" if limit is not None and not limit else None


def check_overlap(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of validation utterances that are also training data: `val_loss` would measure memory."""
    if not trainer.is_global_zero:
        return
    training = _manifests(cfg, "train_ds", model.train_dataloader())
    loaders: Any = model.val_dataloader()
    for loader in loaders if training else ():
        validation = _manifests(cfg, "validation_ds", loader)
        overlap = find_overlap(training, validation) if validation else None
        if overlap is not None:
            files = ([file for manifest in some for file in manifest.files] for some in (training, validation))
            command = f"{without_overlap(*files)} writes manifests without them"
            remedy = "make the tar files of one set without them" if overlap.by_name else command
            yield f"{overlap}: val_loss will be too low; {remedy}"


def check_bandwidth(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of audio whose upper frequencies are empty, such as telephone speech for a model of 16 kHz."""
    if not trainer.is_global_zero or OmegaConf.select(cfg, "model.train_ds.is_tarred"):
        return
    manifests = _manifests(cfg, "train_ds", model.train_dataloader())
    rate = sample_rate_of(OmegaConf.select(cfg, "model"))
    found = estimate_narrow_band(manifests, int(rate), _FILES) if manifests else None
    if found is not None and found.lines > 1:
        yield (
            f"narrow band, an estimate from {found.measured} training files: {found}; "
            "nest-ssl data check with --min-bandwidth names all of them"
        )


def check_length(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of a run that ends within its warm-up or before its first validation."""
    length = _run_length(trainer, batches_in_epoch(model.train_dataloader(), trainer)) if keeps_results(cfg) else None
    if length is None:
        return
    yield from _within_warm_up(length, _plain(cfg.model.get("optim")))
    if model.val_dataloader() and trainer.limit_val_batches:
        yield from _before_validation(length, trainer)


@dataclass(frozen=True)
class _RunLength:
    """How long a run is."""

    steps: int  # of the optimizer
    batches: int
    key: str  # the setting that ends the run
    epoch: int | None  # batches in an epoch; None if unknown


def _run_length(trainer: Trainer, epoch: int | None) -> _RunLength | None:
    """Return the earliest end that is known, with `epoch` batches in an epoch; None if the run has no known end."""
    together = trainer.accumulate_grad_batches
    ends = []
    if trainer.max_steps > 0:
        batches = _batches_of_steps(trainer.max_steps, together, epoch)
        ends.append(_RunLength(trainer.max_steps, batches, "max_steps", epoch))
    if trainer.max_epochs is not None and trainer.max_epochs > 0 and epoch:
        steps = trainer.max_epochs * math.ceil(epoch / together)
        ends.append(_RunLength(steps, trainer.max_epochs * epoch, "max_epochs", epoch))
    return min(ends, key=lambda end: end.steps, default=None)


def _batches_of_steps(steps: int, together: int, epoch: int | None) -> int:
    """Return how many batches these steps take; the last step of an epoch takes the remaining ones."""
    if not epoch:
        return steps * together
    in_epoch = math.ceil(epoch / together)
    return steps // in_epoch * epoch + min(epoch, steps % in_epoch * together)


def _within_warm_up(length: _RunLength, optim: Mapping[str, Any]) -> Iterator[str]:
    schedule = optim.get("sched") or {}
    warm_up, rate = schedule.get("warmup_steps"), optim.get("lr")
    if not isinstance(warm_up, int | float) or warm_up < length.steps:
        return
    shorter = max(1, length.steps // _WARM_UP_SHARE)
    change = f"model.optim.sched.warmup_steps={shorter}"
    if schedule.get("name") == "NoamAnnealing" and isinstance(rate, int | float):
        change += f" model.optim.lr={rate * math.sqrt(shorter / warm_up):.3g}"  # whose peak is lr / sqrt(d_model * it)
    yield (
        f"the run ends after {length.steps} steps (trainer.{length.key}), within the warm-up of {warm_up:g} "
        f"(model.optim.sched.warmup_steps): the learning rate does not reach its peak and the model learns little; "
        f"a run this short learns with {change}"
    )


def _before_validation(length: _RunLength, trainer: Trainer) -> Iterator[str]:
    first = _first_validation(length, trainer)
    if first is None or first <= length.batches:
        return
    change = f"trainer.val_check_interval={max(1, length.batches // 2)}"
    if (trainer.check_val_every_n_epoch or 1) > 1:
        change += " trainer.check_val_every_n_epoch=1"
    yield (
        f"the run ends after {length.batches} batches (trainer.{length.key}), before its first validation, due after "
        f"{first}: there will be no val_loss and no best checkpoint; {change} validates in time"
    )


def _first_validation(length: _RunLength, trainer: Trainer) -> int | None:
    """Return the number of batches before the first validation; None if unknown."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if epochs is None:
        return int(interval)
    if length.epoch is None:
        return None
    within = interval if isinstance(interval, int) else max(1, int(length.epoch * interval))
    return (epochs - 1) * length.epoch + within


def _manifests(cfg: DictConfig, name: str, loader: Any) -> list[Manifest]:
    """Return the manifests of a loader. A lhotse loader keeps none, so those of its configuration are read."""
    found = manifests_in(getattr(loader, "dataset", None))
    node: Any = OmegaConf.to_container(cfg.model[name])
    if found or not node.get("use_lhotse") or node.get("tarred_audio_filepaths"):
        return found
    key = f"model.{name}.manifest_filepath"
    names = expand_paths(speech_paths({"manifest_filepath": node.get("manifest_filepath")}), key)
    with suppress(ManifestError):  # lhotse reports what it cannot read
        return [load_manifest(names, key=key, skip_bad_lines=True)] if names else []
    return []


def _plain(node: Any) -> Mapping[str, Any]:
    """Return a node without OmegaConf's own classes; empty if there is none."""
    plain: Any = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    return plain if isinstance(plain, Mapping) else {}


CONFIGURATION_CHECKS: Sequence[Callable[[DictConfig, Sequence[str]], Iterable[str]]] = (
    check_model,
    check_data_sets,
    check_generated_data,
    check_validation,
)
DATA_CHECKS: Sequence[Callable[[DictConfig, Trainer, LightningModule], Iterable[str]]] = (
    check_overlap,
    check_bandwidth,
    check_length,
)
