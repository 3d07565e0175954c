"""Checks of a complete configuration before a run starts (preflight.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.dummy import is_generated
from nest_ssl.data.sources import sources
from nest_ssl.errors import ConfigError
from nest_ssl.model.agreement import check_agreement
from nest_ssl.model.build import check_parts
from nest_ssl.model.frame_rate import check_frame_rate
from nest_ssl.shell import as_typed, hydra_value

_SETS = ("train_ds", "validation_ds")


def check_model(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """The parts of the model agree, above all on how many feature frames make a target."""
    settings: Any = OmegaConf.to_container(cfg.model)
    check_parts(settings)
    check_frame_rate(settings)
    yield from check_agreement(settings)


def check_generated_data(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """The dummy corpus is for trying things out: beside somebody's own data it would spoil the result.

    Where the configuration's own value was left in one of the two sets, the run is refused; where it was typed, it is
    wanted, and worth a warning.
    """
    nodes = {name: _plain(cfg.model.get(name)) for name in _SETS}
    named = {name: sources(node) for name, node in nodes.items()}
    if not keeps_results(cfg):
        return
    own = {name: [path for path in paths if not is_generated(path)] for name, paths in named.items()}
    for name, other in (_SETS, _SETS[::-1]):
        if named[name] and not own[name] and own[other]:
            yield _generated_speech(name, named[name][0], own[other], command)
    for name, node in nodes.items():
        noise = [path for path in sources({"manifest_filepath": node.get("noise_manifest")}) if is_generated(path)]
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
    """How to come by a validation set, and the command that uses it."""
    train, validation = (f"model.{name}.manifest_filepath=" for name in _SETS)
    path = Path(own[0])
    if len(own) > 1 or path.suffix not in (".json", ".jsonl"):
        return f"give a part of your own: {as_typed([*command, f'{validation}val.json'])}"
    parts = [str(path.with_suffix(f".{part}{path.suffix}")) for part in ("train", "val")]
    others = [word for word in command if not word.lstrip("+").startswith(train)]
    typed = as_typed([*others, train + hydra_value(parts[:1]), validation + hydra_value(parts[1:])])
    return f"hold out a part of your own: {as_typed(['nest-ssl data split', own[0], '--val', '5%'])}, then: {typed}"


def check_validation(cfg: DictConfig, command: Sequence[str]) -> Iterator[str]:
    """Without validation there is no `val_loss`, and nothing that needs it."""
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


def keeps_results(cfg: DictConfig) -> bool:
    """Whether checkpoints and curves will be left of the run; a recording or a trial leaves none."""
    return cfg.get("exp_manager") is not None and not OmegaConf.select(cfg, "trainer.fast_dev_run")


def _no_validation(cfg: DictConfig) -> str | None:
    """The setting without which there would be a validation; None if there is one."""
    node = _plain(cfg.model.get("validation_ds"))
    if not sources(node):
        return "model.validation_ds.manifest_filepath=null" if node else "model.validation_ds=null"
    limit = OmegaConf.select(cfg, "trainer.limit_val_batches")
    return "trainer.limit_val_batches=0" if limit is not None and not limit else None


def _plain(node: Any) -> Mapping[str, Any]:
    """A node without OmegaConf's own classes; empty if there is none."""
    plain: Any = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    return plain if isinstance(plain, Mapping) else {}
