"""Make the DataLoader that NeMo would make from a `*_ds` node of the configuration."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from nest_ssl.config.schema import DataSettings, LhotseSettings, LoaderSettings, Numerics, read, read_value
from nest_ssl.config.targets import instantiate
from nest_ssl.data.augmentation import SpeakerNoiseAugmentation
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.loading.random_states import generator_of_its_own, seed_of_run
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.paths import entries_of
from nest_ssl.errors import ConfigError, ManifestError

if TYPE_CHECKING:  # other kinds of loaders are imported where they are built: a run needs one kind
    from nest_ssl.data.concat import ConcatDataset, Sampling

log = logging.getLogger(__name__)

_BUCKET_KEYS = ("num_buckets", "bucket_duration_bins", "quadratic_duration")


def read_data_set(config: Mapping[str, Any], key: str) -> DataSettings | LhotseSettings:
    """Return the options of a `*_ds` node; an unknown key or a value that its key cannot have is refused."""
    with_lhotse = read_value(DataSettings, config, "use_lhotse", key)
    return read(LhotseSettings, config, key) if with_lhotse else read(DataSettings, config, key)


def build_dataloader(
    config: Mapping[str, Any], *, key: str, global_rank: int = 0, world_size: int = 1, numerics: Numerics = "exact"
) -> DataLoader[Any]:
    """Return the loader that a plain, resolved `*_ds` node describes; `key` is the node's dotted name, for errors.

    There is no `worker_init_fn`: torch itself seeds `random`, NumPy and torch in every worker from the run's seed,
    and those are the streams that NeMo draws from.
    """
    options = read_data_set(config, key)
    workers = _worker_options(options, numerics)
    if isinstance(options, LhotseSettings):
        from nest_ssl.data.lhotse.loader import build_lhotse_loader

        return build_lhotse_loader(
            *(options, global_rank, world_size, numerics), batch_augmentor=build_augmentor(options), workers=workers
        )
    if options.batch_duration is not None:
        return _duration_loader(options, options.batch_duration, global_rank, world_size, numerics, workers)
    for name in _BUCKET_KEYS:
        if config.get(name) is not None:
            raise ConfigError(f"{key}.{name}: is {config[name]!r}, but only has a meaning with {key}.batch_duration")
    if options.batch_size is None:
        raise options.wrong("batch_size", "a whole number >= 1")
    if options.is_tarred:
        from nest_ssl.data.tarred.loader import build_tarred_loader

        return build_tarred_loader(options, options.batch_size, global_rank, world_size, numerics, workers)
    if options.is_concat:
        dataset: AudioNoiseDataset | ConcatDataset = _concat_dataset(options, global_rank, world_size, numerics)
        shuffle = False  # `concat_shuffle` decides
        items = len(dataset)
    else:
        dataset = build_dataset(options, options.manifest_filepath, build_augmentor(options), numerics)
        shuffle = options.shuffled
        items = math.ceil(len(dataset) / world_size)
    if options.drop_last and items < options.batch_size:
        raise ConfigError(
            f"{key}.batch_size: is {options.batch_size}, but there are {items} utterances and drop_last=true leaves no "
            "batch; use a smaller batch_size, drop_last=false or more data"
        )
    return ResumableLoader(
        dataset,
        batch_size=options.batch_size,
        shuffle=shuffle,
        drop_last=options.drop_last,
        collate_fn=dataset.collate_fn,
        **workers,
    )


def build_dataset(
    options: DataSettings, manifests: str | Sequence, augmentor: BatchAugmentor | None, numerics: Numerics
) -> AudioNoiseDataset:
    """Return the dataset of `manifests`, with the noise and the options of the node."""
    shortest, longest, channel = options.min_duration, options.max_duration, options.channel_selector
    if shortest is not None and longest is not None and shortest > longest:
        raise options.wrong("min_duration", f"at most max_duration, which is {longest}")
    return AudioNoiseDataset(
        manifest_filepath=manifests,
        noise_manifest=options.noise_manifest,
        sample_rate=options.sample_rate,
        batch_augmentor=augmentor,
        min_duration=shortest,
        max_duration=longest,
        min_audio_len_secs=options.min_audio_len_secs,
        pad_audio_mode=options.pad_audio_mode,
        trim=options.trim_silence,
        int_values=options.int_values,
        channel_selector=channel[0] if isinstance(channel, list) else channel,
        unreadable_audio=options.unreadable_audio,
        suspicious_audio=options.suspicious_audio,
        numerics=numerics,
        key=options.node,
    )


def sampling_of(options: DataSettings, count: int) -> Sampling:
    """Return how to sample from `count` datasets."""
    from nest_ssl.data.concat import Sampling

    probabilities = options.concat_sampling_probabilities
    if probabilities is not None and (
        len(probabilities) != count or not math.isclose(sum(probabilities), 1, abs_tol=1e-6)
    ):
        expected = f"{count} numbers >= 0, one a manifest, whose sum is 1"
        raise options.wrong("concat_sampling_probabilities", expected)
    return Sampling(
        technique=options.concat_sampling_technique,
        temperature=options.concat_sampling_temperature,
        scale=options.concat_sampling_scale,
        probabilities=probabilities,
        seed=options.concat_sampling_seed,
    )


def build_augmentor(options: LoaderSettings) -> BatchAugmentor | None:
    """Return what mixes the items of a batch, if the node names it."""
    if options.batch_augmentor is None:
        return None
    key = f"{options.node}.batch_augmentor"
    augmentor = instantiate(options.batch_augmentor, key)
    if not isinstance(augmentor, SpeakerNoiseAugmentation):
        target = options.batch_augmentor["_target_"]
        raise ConfigError(f"{key}._target_: is {target!r}; expected a batch augmentation")
    return augmentor


def _worker_options(options: LoaderSettings, numerics: Numerics) -> dict[str, Any]:
    """Return the options of the DataLoader itself. Pinned memory is used only with a GPU.

    Workers that persist after an epoch save its start, but then their random numbers continue, where NeMo makes and
    seeds new workers for every epoch: `fast` only. Torch's two batches in advance for each worker are enough.

    No checkpoint holds the position within a validation, so a resumed run starts workers that an uninterrupted run
    still has. By default they therefore do not persist in validation; if they do, their seed is not drawn from the
    generator of the training.
    """
    loader_options: dict[str, Any] = {"pin_memory": options.pin_memory and torch.cuda.is_available()}
    if not options.num_workers:
        return loader_options
    by_default = numerics == "fast" and options.trains
    persistent = by_default if options.persistent_workers is None else options.persistent_workers
    loader_options |= {
        "num_workers": options.num_workers,
        "persistent_workers": persistent,
        "prefetch_factor": options.prefetch_factor,
        "multiprocessing_context": options.multiprocessing_context,
    }
    if persistent and not options.trains:
        loader_options["generator"] = generator_of_its_own()
    return loader_options


def _duration_loader(
    options: DataSettings,
    batch_duration: float,
    global_rank: int,
    world_size: int,
    numerics: Numerics,
    workers: Mapping[str, Any],
) -> DataLoader[Any]:
    """Return a loader of batches of at most `batch_duration` seconds, padding included."""
    from nest_ssl.data.loading.buckets import DurationBatches, ItemLists

    for name in ("batch_size", "is_concat", "is_tarred"):
        if getattr(options, name):
            expected = f"nothing beside {options.node}.batch_duration, which makes the batches; set {name}=null"
            raise options.wrong(name, expected)
    dataset = build_dataset(options, options.manifest_filepath, build_augmentor(options), numerics)
    durations = np.maximum(dataset.manifest.durations, dataset.min_audio_len / dataset.sample_rate)
    if np.isnan(durations).any():
        line = dataset.manifest[int(np.isnan(durations).argmax())].line
        raise ManifestError(f"{line}: has no duration, which {options.node}.batch_duration needs")
    try:
        sampler = DurationBatches(
            durations,
            batch_duration=batch_duration,
            num_buckets=options.num_buckets,
            bucket_duration_bins=options.bucket_duration_bins,
            quadratic_duration=options.quadratic_duration,
            shuffle=options.shuffled,
            drop_last=options.drop_last,
            seed=seed_of_run(),
            rank=global_rank,
            num_replicas=world_size,
        )
    except ValueError as error:
        raise ConfigError(f"{options.node}.batch_duration: {error}; raise it or lower max_duration") from None
    log.info(
        "%s: %d batches an epoch of at most %g s, of which %.0f %% is audio and the rest padding",
        *(options.node, len(sampler), batch_duration, 100 * sampler.padding_efficiency()),
    )
    return ResumableLoader(
        ItemLists(dataset), batch_size=None, sampler=sampler, collate_fn=dataset.collate_fn, **workers
    )


def _concat_dataset(options: DataSettings, global_rank: int, world_size: int, numerics: Numerics) -> ConcatDataset:
    """Make one dataset for each entry of `manifest_filepath`; an entry can itself name several manifests."""
    from nest_ssl.data.concat import ConcatDataset

    augmentor = build_augmentor(options)
    datasets = [build_dataset(options, entry, augmentor, numerics) for entry in entries_of(options.manifest_filepath)]
    return ConcatDataset(
        datasets,
        sampling_of(options, len(datasets)),
        shuffle=options.concat_shuffle,
        global_rank=global_rank,
        world_size=world_size,
    )
