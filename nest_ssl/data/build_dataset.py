"""Make the dataset that a `*_ds` node describes, and the parts that several of its loaders share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nest_ssl.config.schema import DataSettings, LoaderSettings, Numerics
from nest_ssl.config.targets import instantiate
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.augmentation import SpeakerNoiseAugmentation
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.errors import ConfigError


def build_dataset(
    options: DataSettings, manifests: str | Sequence, augmentor: BatchAugmentor | None, numerics: Numerics
) -> AudioNoiseDataset:
    """Return the dataset of `manifests`, with the noise and the options of the node."""
    shortest, longest = options.min_duration, options.max_duration
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
        channel_selector=_channel_selector(options.channel_selector),
        unreadable_audio=options.unreadable_audio,
        suspicious_audio=options.suspicious_audio,
        numerics=numerics,
        key=options.node,
    )


def sampling_options(options: DataSettings, count: int) -> dict[str, Any]:
    """Return how to sample from `count` datasets."""
    probabilities = options.concat_sampling_probabilities
    if probabilities is not None and (
        len(probabilities) != count or not math.isclose(sum(probabilities), 1, abs_tol=1e-6)
    ):
        expected = f"{count} numbers >= 0, one a manifest, whose sum is 1"
        raise options.wrong("concat_sampling_probabilities", expected)
    return {
        "sampling_technique": options.concat_sampling_technique,
        "sampling_temperature": options.concat_sampling_temperature,
        "sampling_scale": options.concat_sampling_scale,
        "sampling_probabilities": probabilities,
        "seed": options.concat_sampling_seed,
    }


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


def _channel_selector(value: Any) -> ChannelSelector:
    return value[0] if isinstance(value, list) else value
