"""From a `*_ds` node of the configuration to the DataLoader that NeMo would make of it."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from nest_ssl.config.numerics import Numerics
from nest_ssl.config.targets import instantiate
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.augmentation import SpeakerNoiseAugmentation
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.checks import CheckedNode
from nest_ssl.data.concat import SAMPLING_TECHNIQUES, ConcatDataset
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.lhotse.configured import build_lhotse_loader
from nest_ssl.data.loading.buckets import DurationBatches, ItemLists
from nest_ssl.data.loading.random_states import generator_of_its_own, seed_of_run
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.paths import split_paths
from nest_ssl.data.tarred.loader import build_tarred_loader
from nest_ssl.errors import ConfigError, ManifestError, nearest

log = logging.getLogger(__name__)

_USED_KEYS = {
    *("manifest_filepath", "noise_manifest", "sample_rate", "min_duration", "max_duration"),
    *("trim_silence", "int_values", "channel_selector", "min_audio_len_secs", "pad_audio_mode"),
    *("unreadable_audio", "suspicious_audio"),
    *("batch_size", "shuffle", "drop_last", "batch_augmentor"),
    *("batch_duration", "num_buckets", "bucket_duration_bins", "quadratic_duration"),
    *("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context"),
    *("is_concat", "concat_sampling_technique", "concat_sampling_temperature", "concat_sampling_scale"),
    *("concat_sampling_probabilities", "concat_sampling_seed", "concat_shuffle", "use_lhotse"),
    *("is_tarred", "tarred_audio_filepaths", "tarred_shard_strategy", "shuffle_n"),
    *("bucketing_strategy", "bucketing_batch_size", "bucketing_weights"),
}
# NeMo's files have these; without transcripts or deferred set-up they change nothing, and a path says itself whether
# manifests are sharded
_UNUSED_KEYS = {
    *("use_start_end_token", "labels", "defer_setup", "val_dl_idx", "name", "shard_manifests"),
}
UNSUPPORTED_KEYS = {
    "use_dali": "use a plain JSON-lines manifest",
    "augmentor": "use `batch_augmentor`",
}
_BUCKET_KEYS = ("num_buckets", "bucket_duration_bins", "quadratic_duration")
DATASET_KEYS = frozenset(_USED_KEYS | _UNUSED_KEYS | UNSUPPORTED_KEYS.keys())


def build_dataloader(
    config: Mapping[str, Any], *, key: str, global_rank: int = 0, world_size: int = 1, numerics: Numerics = "exact"
) -> DataLoader[Any]:
    """The loader that a plain, resolved `*_ds` node describes; `key` is the node's dotted name, for the errors.

    There is no `worker_init_fn`: torch itself seeds `random`, NumPy and torch in every worker from the run's seed,
    and those are the streams that NeMo draws from.
    """
    node = CheckedNode(config, key)
    options = _loader_options(node, numerics)
    if node.flag("use_lhotse", default=False):
        return build_lhotse_loader(
            *(node, global_rank, world_size, numerics), batch_augmentor=_batch_augmentor(node), options=options
        )
    _refuse_keys(config, key)
    if node.config.get("batch_duration") is not None:
        return _duration_loader(node, global_rank, world_size, numerics, options)
    if node.flag("is_tarred", default=False):
        augmentor = _batch_augmentor(node)
        return build_tarred_loader(
            node,
            make=lambda manifests: _dataset(node, manifests, augmentor, numerics),
            concat_options=lambda count: _concat_options(node, count),
            options=options,
            global_rank=global_rank,
            world_size=world_size,
        )
    batch_size = node.whole("batch_size", least=1)
    shuffle = node.flag("shuffle", default=key.endswith("train_ds"))
    drop_last = node.flag("drop_last", default=False)
    if node.flag("is_concat", default=False):
        dataset: AudioNoiseDataset | ConcatDataset = _concat_dataset(node, global_rank, world_size, numerics)
        shuffle = False  # `concat_shuffle` decides
        items = len(dataset)
    else:
        dataset = _dataset(node, node.paths("manifest_filepath"), _batch_augmentor(node), numerics)
        items = math.ceil(len(dataset) / world_size)
    if drop_last and items < batch_size:
        raise ConfigError(
            f"{key}.batch_size: is {batch_size}, but there are {items} utterances and drop_last=true leaves no batch; "
            "use a smaller batch_size, drop_last=false or more data"
        )
    return ResumableLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        collate_fn=dataset.collate_fn,
        **options,
    )


def _loader_options(node: CheckedNode, numerics: Numerics) -> dict[str, Any]:
    """How batches come to the training, where the node does not say: pinned if there is a GPU to copy them to.

    Workers that live on after an epoch save its start, but their random numbers then go on too, where NeMo's workers
    are made and seeded anew: `fast` only. Torch's two batches in advance for each worker are enough.

    Where validation stands is in no checkpoint, so a resumed run makes workers that an uninterrupted one still has:
    by default they do not live on there, and if they do, their seed is not drawn from the generator of the training.
    """
    options: dict[str, Any] = {"pin_memory": node.flag("pin_memory", default=True) and torch.cuda.is_available()}
    num_workers = node.whole("num_workers", least=0, default=0)
    persistent = node.flag("persistent_workers", default=numerics == "fast")
    if not node.trains:
        persistent = persistent and node.config.get("persistent_workers") is not None
    prefetch_factor = node.whole("prefetch_factor", least=1, default=None)
    start_method = node.choice("multiprocessing_context", multiprocessing.get_all_start_methods(), default=None)
    if num_workers:
        options |= {
            "num_workers": num_workers,
            "persistent_workers": persistent,
            "prefetch_factor": prefetch_factor,
            "multiprocessing_context": start_method,
        }
    if num_workers and persistent and not node.trains:
        options["generator"] = generator_of_its_own()
    return options


def _duration_loader(
    node: CheckedNode, global_rank: int, world_size: int, numerics: Numerics, options: Mapping[str, Any]
) -> DataLoader[Any]:
    """Batches of at most `batch_duration` seconds, padding included."""
    for name in ("batch_size", "is_concat", "is_tarred"):
        if node.config.get(name):
            expected = f"nothing beside {node.key}.batch_duration, which makes the batches; set {name}=null"
            raise node.wrong(name, expected)
    dataset = _dataset(node, node.paths("manifest_filepath"), _batch_augmentor(node), numerics)
    durations = np.maximum(dataset.manifest.durations, dataset.min_audio_len / dataset.sample_rate)
    if np.isnan(durations).any():
        line = dataset.manifest[int(np.isnan(durations).argmax())].line
        raise ManifestError(f"{line}: has no duration, which {node.key}.batch_duration needs")
    try:
        sampler = DurationBatches(
            durations,
            batch_duration=node.number("batch_duration", default=None),
            num_buckets=node.whole("num_buckets", least=1, default=30),
            bucket_duration_bins=node.bins("bucket_duration_bins"),
            quadratic_duration=node.number("quadratic_duration", default=None),
            shuffle=node.flag("shuffle", default=node.key.endswith("train_ds")),
            drop_last=node.flag("drop_last", default=False),
            seed=seed_of_run(),
            rank=global_rank,
            num_replicas=world_size,
        )
    except ValueError as error:
        raise ConfigError(f"{node.key}.batch_duration: {error}; raise it or lower max_duration") from None
    log.info(
        "%s: %d batches an epoch of at most %g s, of which %.0f %% is audio and the rest padding",
        *(node.key, len(sampler), node.config["batch_duration"], 100 * sampler.padding_efficiency()),
    )
    return ResumableLoader(
        ItemLists(dataset), batch_size=None, sampler=sampler, collate_fn=dataset.collate_fn, **options
    )


def _refuse_keys(config: Mapping[str, Any], key: str) -> None:
    for name, value in config.items():
        if name not in DATASET_KEYS:
            raise ConfigError(f"{key}.{name}: no such option{nearest(name, DATASET_KEYS)}")
        if name in UNSUPPORTED_KEYS and value:
            raise ConfigError(f"{key}.{name}: not supported in this version; {UNSUPPORTED_KEYS[name]}")
        if name in _BUCKET_KEYS and value is not None and config.get("batch_duration") is None:
            raise ConfigError(f"{key}.{name}: is {value!r}, but only has a meaning with {key}.batch_duration")


def _dataset(
    node: CheckedNode, manifests: list[str], augmentor: BatchAugmentor | None, numerics: Numerics
) -> AudioNoiseDataset:
    min_duration = node.number("min_duration", default=None, above=-math.inf)
    max_duration = node.number("max_duration", default=None)
    if min_duration is not None and max_duration is not None and min_duration > max_duration:
        raise node.wrong("min_duration", f"at most max_duration, which is {max_duration}")
    return AudioNoiseDataset(
        manifest_filepath=manifests,
        noise_manifest=None if node.config.get("noise_manifest") is None else node.paths("noise_manifest"),
        sample_rate=node.whole("sample_rate", least=1),
        batch_augmentor=augmentor,
        min_duration=min_duration,
        max_duration=max_duration,
        min_audio_len_secs=node.number("min_audio_len_secs", default=1.0),
        pad_audio_mode=node.choice("pad_audio_mode", ("repeat", "zero"), default="repeat"),
        trim=node.flag("trim_silence", default=False),
        int_values=node.flag("int_values", default=False),
        channel_selector=_channel_selector(node),
        unreadable_audio=node.choice("unreadable_audio", ("skip", "stop"), default="skip"),
        suspicious_audio=node.choice("suspicious_audio", ("use", "skip", "stop"), default="use"),
        numerics=numerics,
        key=node.key,
    )


def _concat_dataset(node: CheckedNode, global_rank: int, world_size: int, numerics: Numerics) -> ConcatDataset:
    """One dataset for each entry of `manifest_filepath`; an entry may itself name several manifests."""
    node.paths("manifest_filepath")
    entries = node.config["manifest_filepath"]
    if isinstance(entries, str):
        entries = split_paths(entries)
    elif len(entries) == 1 and not isinstance(entries[0], str):  # how NeMo's configurations list a validation set
        entries = entries[0]
    augmentor = _batch_augmentor(node)
    datasets = [_dataset(node, split_paths(entry), augmentor, numerics) for entry in entries]
    return ConcatDataset(
        datasets,
        **_concat_options(node, len(datasets)),
        shuffle=node.flag("concat_shuffle", default=True),
        global_rank=global_rank,
        world_size=world_size,
    )


def _concat_options(node: CheckedNode, count: int) -> dict[str, Any]:
    """How to sample from so many sets."""
    return {
        "sampling_technique": node.choice("concat_sampling_technique", SAMPLING_TECHNIQUES, default="round-robin"),
        "sampling_temperature": node.number("concat_sampling_temperature", default=5),
        "sampling_scale": node.number("concat_sampling_scale", default=1),
        "sampling_probabilities": _probabilities(node, count),
        "seed": node.whole("concat_sampling_seed", least=0, default=None),
    }


def _probabilities(node: CheckedNode, count: int) -> list[float] | None:
    values = node.config.get("concat_sampling_probabilities")
    if values is None:
        return None
    numbers = isinstance(values, list) and all(type(value) in (int, float) and value >= 0 for value in values)
    if not numbers or len(values) != count or not math.isclose(sum(values), 1, abs_tol=1e-6):
        raise node.wrong("concat_sampling_probabilities", f"{count} numbers >= 0, one a manifest, whose sum is 1")
    return values


def _batch_augmentor(node: CheckedNode) -> BatchAugmentor | None:
    config = node.config.get("batch_augmentor")
    if config is None:
        return None
    key = f"{node.key}.batch_augmentor"
    if not isinstance(config, Mapping):
        raise node.wrong("batch_augmentor", "a node with `_target_`, or null")
    augmentor = instantiate(config, key)
    if not isinstance(augmentor, SpeakerNoiseAugmentation):
        raise ConfigError(f"{key}._target_: is {config['_target_']!r}; expected a batch augmentation")
    return augmentor


def _channel_selector(node: CheckedNode) -> ChannelSelector:
    value = node.config.get("channel_selector")
    channel = value[0] if isinstance(value, list) and len(value) == 1 else value
    if value is not None and channel != "average" and type(channel) is not int:
        raise node.wrong("channel_selector", "a channel number from 0 on, `average`, or null for files of one channel")
    return channel
