"""Which keys of a configuration take effect when a run is continued from a checkpoint.

An allow-list: what is built anew from the configuration at every start may change. Everything else belongs to what the
checkpoint holds (weights, optimiser, schedule, random generators), which wins over the configuration: such a change
would be recorded and not used, so it is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from lightning.pytorch import Trainer

from nest_ssl.config.targets import resolve
from nest_ssl.errors import ConfigError
from nest_ssl.model.build import MODEL_DEFAULTS, PARTS

# The trainer is made anew; what a longer run means for a schedule is checked where the schedule is (continuation.py).
_TRAINER = (
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "sync_batchnorm", "use_distributed_sampler"),
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "accumulate_grad_batches"),
    *("gradient_clip_val", "gradient_clip_algorithm", "deterministic", "benchmark", "inference_mode"),
    *("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches"),
    *("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps", "logger"),
    *("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "enable_autolog_hparams", "profiler"),
    *("detect_anomaly", "barebones", "reload_dataloaders_every_n_epochs", "default_root_dir", "model_registry"),
)
IN_EFFECT = (
    *("name", "output_dir", "save_steps", "save_layers", "save_half", "save_max_gb", "init_strict"),
    "exp_manager.*",
    *(f"trainer.{name}" for name in _TRAINER),
    *("model.train_ds.*", "model.validation_ds.*", "model.test_ds.*"),  # loaders are made anew
    *("model.numerics", "model.batch_norm_over_padding", "model.compile"),
    *("model.encoder.dropout*", "model.encoder.stochastic_depth_*"),
    *("model.masking.block_size", "model.masking.mask_prob", "model.masking.allow_overlap"),
    *("model.loss.mask_threshold", "model.preprocessor.dither"),
    "model.spec_augment.*",  # never applied
)
# Written by NeMo into what it saves; where the checkpoint was looked for; what the schedule itself is compared for
_NOT_COMPARED = (
    *("model.target", "model.nemo_version", "model.optim.sched.max_steps", "model.optim.sched.t_*"),
    *("exp_manager.resume_*", "exp_manager.files_to_copy"),
)
# Of the training data: neither the utterances nor their order depend on these, so the place in the epoch stays valid.
_PLACE_STAYS = {
    *("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context"),
    *("noise_manifest", "unreadable_audio", "suspicious_audio", "channel_selector", "sample_rate"),
    *("use_start_end_token", "labels", "name", "val_dl_idx", "defer_setup"),
}
_PLACE_STAYS_OF_MANIFESTS = {  # whose utterances are compared one by one
    *("manifest_filepath", "min_duration", "max_duration", "shard_manifests", "batch_size"),
    *("trim_silence", "int_values", "pad_audio_mode"),
}
_TRAIN_DS = "model.train_ds."
_DEEPEST = 20  # nodes within nodes; a checkpoint of somebody else's may hold anything
OTHER_MODEL = "holds another model"
_REASONS = {  # prefix of a key -> why the checkpoint lets it have no effect
    "model.optim": "brings its own optimiser and schedule",
    "model": OTHER_MODEL,
    "seed": "brings the states of all random generators",
    "init_from_": "brings its own weights",
}


@dataclass(frozen=True)
class KeyChange:
    """A key that has another value than when the checkpoint was written."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {shown(self.old)} -> {shown(self.new)}"

    @property
    def takes_effect(self) -> bool:
        if self.key.startswith("init_from_") and self.new is None:  # the checkpoint's weights came from there
            return True
        return any(fnmatchcase(self.key, pattern) for pattern in IN_EFFECT)

    @property
    def reason(self) -> str:
        """What the checkpoint does because of which the change cannot take effect."""
        found = (reason for prefix, reason in _REASONS.items() if self.key.startswith(prefix))
        return next(found, "brings its own value")


def compare_configurations(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[KeyChange]:
    """Every key whose value differs; a key that is missing has its default."""
    flat_old, flat_new = _flat(old), _flat(new)
    changes = []
    for key in dict.fromkeys((*flat_new, *flat_old)):
        before = flat_old[key] if key in flat_old else _default(key, old)
        after = flat_new[key] if key in flat_new else _default(key, new)
        if not _is_same(key, before, after) and not any(fnmatchcase(key, pattern) for pattern in _NOT_COMPARED):
            changes.append(KeyChange(key, before, after))
    return changes


def another_order(changes: Sequence[KeyChange], train_ds: Mapping[str, Any]) -> bool:
    """Whether one of these keys makes batches of the training data in another way than before."""
    stays = set(_PLACE_STAYS)
    if not any(train_ds.get(name) for name in ("use_lhotse", "is_tarred", "is_concat", "batch_duration")):
        stays |= _PLACE_STAYS_OF_MANIFESTS
    names = [change.key.removeprefix(_TRAIN_DS) for change in changes if change.key.startswith(_TRAIN_DS)]
    return any(name not in stays and not name.startswith("batch_augmentor") for name in names)


def shown(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_leaves(node, prefix))


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value and prefix.count(".") < _DEEPEST:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _default(key: str, config: Mapping[str, Any]) -> Any:
    """What a key means that a configuration does not have; None where nobody says."""
    node, _, name = key.rpartition(".")
    if node == "model":
        return MODEL_DEFAULTS.get(name)
    if node == "trainer":
        return _signature_default(Trainer, name)
    part = node.removeprefix("model.")
    model = config.get("model")
    described = model.get(part) if isinstance(model, Mapping) and part in PARTS else None
    if isinstance(described, Mapping) and name != "_target_":
        try:
            return _signature_default(resolve(described.get("_target_"), node), name)
        except ConfigError:  # a class of somebody else's
            return None
    return None


def _signature_default(function: type, name: str) -> Any:
    parameter = inspect.signature(function).parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _is_same(key: str, old: Any, new: Any) -> bool:
    if key.endswith("._target_") and old != new:
        try:
            return resolve(old, key) is resolve(new, key)
        except ConfigError:
            return False
    if isinstance(old, str) and "${" in old:  # NeMo stores references as they are written
        return True
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(_is_same(key, *pair) for pair in zip(old, new, strict=True))
    return old == new or (old in (None, {}, []) and new in (None, {}, []))
