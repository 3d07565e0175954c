"""Which keys of a configuration take effect when a run is continued from a checkpoint.

An allow-list: keys may change if every start rebuilds from the configuration what they describe. All other keys belong
to what the checkpoint contains (weights, optimizer, schedule, random generators); a change there would be recorded but
have no effect, so it is refused.
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

IN_EFFECT = (
    *("name", "output_dir", "save_steps", "save_layers", "save_max_gb", "init_strict"),
    "exp_manager.*",
    "trainer.*",  # rebuilt; continuation.py checks what a longer run means for the schedule
    *("model.train_ds.*", "model.validation_ds.*", "model.test_ds.*"),  # loaders are rebuilt
    *("model.numerics", "model.batch_norm_over_padding", "model.compile"),
    *("model.encoder.dropout*", "model.encoder.stochastic_depth_*"),
    *("model.masking.block_size", "model.masking.mask_prob", "model.masking.allow_overlap"),
    *("model.loss.mask_threshold", "model.preprocessor.dither"),
    "model.spec_augment.*",  # never applied
)
# NeMo's own entries; keys of the schedule, which is compared itself; and keys that only find the checkpoint
_NOT_COMPARED = (
    *("model.target", "model.nemo_version", "model.optim.sched.max_steps", "model.optim.sched.t_*"),
    *("exp_manager.resume_*", "exp_manager.files_to_copy"),
)
# Keys of the training data that change neither utterances nor order, so the position in the epoch stays valid
_POSITION_STAYS = {
    *("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context"),
    *("noise_manifest", "unreadable_audio", "suspicious_audio", "channel_selector", "sample_rate"),
    *("use_start_end_token", "labels", "name", "val_dl_idx", "defer_setup"),
}
_POSITION_STAYS_OF_MANIFESTS = {  # whose utterances are compared one by one
    *("manifest_filepath", "min_duration", "max_duration", "shard_manifests", "batch_size"),
    *("trim_silence", "int_values", "pad_audio_mode"),
}
_TRAIN_DS = "model.train_ds."
OTHER_MODEL = "holds another model"
_REASONS = {  # prefix of a key -> why it has no effect
    "model.optim": "brings its own optimizer and schedule",
    "model": OTHER_MODEL,
    "seed": "brings the states of all random generators",
    "init_from_": "brings its own weights",
}


@dataclass(frozen=True)
class KeyChange:
    """A key whose value changed since the checkpoint was written."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {shown(self.old)} -> {shown(self.new)}"

    @property
    def takes_effect(self) -> bool:
        if self.key.startswith("init_from_") and self.new is None:  # the checkpoint's weights include it
            return True
        return any(fnmatchcase(self.key, pattern) for pattern in IN_EFFECT)

    @property
    def reason(self) -> str:
        """Say, with the checkpoint as the subject, why the change cannot take effect."""
        found = (reason for prefix, reason in _REASONS.items() if self.key.startswith(prefix))
        return next(found, "brings its own value")


def compare_configurations(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[KeyChange]:
    """Return every key whose value differs; a missing key has its default."""
    flat_old, flat_new = dict(_leaves(old)), dict(_leaves(new))
    changes = []
    for key in dict.fromkeys((*flat_new, *flat_old)):
        before = flat_old[key] if key in flat_old else _default(key, old)
        after = flat_new[key] if key in flat_new else _default(key, new)
        if not _is_same(key, before, after) and not any(fnmatchcase(key, pattern) for pattern in _NOT_COMPARED):
            changes.append(KeyChange(key, before, after))
    return changes


def another_order(changes: Sequence[KeyChange], train_ds: Mapping[str, Any]) -> bool:
    """Return whether one of these changes alters the batches of the training data or their order."""
    stays = set(_POSITION_STAYS)
    if not any(train_ds.get(name) for name in ("use_lhotse", "is_tarred", "is_concat", "batch_duration")):
        stays |= _POSITION_STAYS_OF_MANIFESTS
    names = [change.key.removeprefix(_TRAIN_DS) for change in changes if change.key.startswith(_TRAIN_DS)]
    return any(name not in stays and not name.startswith("batch_augmentor") for name in names)


def shown(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its full key."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _default(key: str, config: Mapping[str, Any]) -> Any:
    """Return the default of a key that a configuration does not have; None if unknown."""
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
        except ConfigError:  # an unknown class
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
