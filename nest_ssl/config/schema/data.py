"""The `*_ds` nodes: where utterances come from, how they become batches, and which processes load them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nest_ssl.config.schema.data_kinds import (
    AUGMENTOR,
    CHANNEL,
    COUNTS,
    EDGES,
    MANIFESTS,
    PROBABILITIES,
    START_METHOD,
    TAR_FILES,
)
from nest_ssl.config.schema.kinds import either, whole
from nest_ssl.config.schema.node import Node, RefusedKey, setting, wrong
from nest_ssl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(Node):
    """The keys that every data set has, however it is read."""

    node: str  # its dotted name, such as model.train_ds
    use_lhotse: bool = False
    noise_manifest: Any = setting(None, kind=MANIFESTS)
    batch_augmentor: Mapping[str, Any] | None = setting(None, kind=AUGMENTOR)
    unreadable_audio: Literal["skip", "stop"] = "skip"
    suspicious_audio: Literal["use", "skip", "stop"] = "use"
    val_dl_idx: int = setting(0, at_least=0)  # read by the data module

    batch_size: int | None = setting(None, at_least=1)
    batch_duration: float | None = setting(None, above=0)
    bucket_duration_bins: list[float] | None = setting(None, kind=EDGES)
    quadratic_duration: float | None = setting(None, above=0)
    drop_last: bool = False

    num_workers: int = setting(0, at_least=0)
    pin_memory: bool = True
    persistent_workers: bool | None = None
    prefetch_factor: int | None = setting(None, at_least=1)
    multiprocessing_context: str | None = setting(None, kind=START_METHOD)

    @property
    def trains(self) -> bool:
        """Whether this is training data, and not validation data."""
        return self.node.endswith("train_ds")

    def wrong(self, name: str, expected: str) -> ConfigError:
        """Return the error for a value that does not fit the other keys."""
        return wrong(self.node, name, getattr(self, name), expected)


@dataclass(frozen=True, kw_only=True)
class DataSettings(LoaderSettings):
    """A data set of manifests, whose audio is in files of its own or in tar files."""

    # of transcripts, of NeMo's set-up; paths show whether manifests are sharded
    IDLE: ClassVar[tuple[str, ...]] = ("use_start_end_token", "labels", "defer_setup", "name", "shard_manifests")
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {
        "use_dali": RefusedKey("use a plain JSON-lines manifest"),
        "augmentor": RefusedKey("use `batch_augmentor`"),
    }

    manifest_filepath: Any = setting(kind=MANIFESTS)
    sample_rate: int = setting(at_least=1)
    min_duration: float | None = setting(None, above=-math.inf)
    max_duration: float | None = setting(None, above=0)
    min_audio_len_secs: float = setting(1.0, above=0)
    pad_audio_mode: Literal["repeat", "zero"] = "repeat"
    trim_silence: bool = False
    int_values: bool = False
    channel_selector: Any = setting(None, kind=CHANNEL)

    shuffle: bool | None = None
    num_buckets: int = setting(30, at_least=1)

    is_concat: bool = False
    concat_sampling_technique: Literal["temperature", "random", "round-robin"] = "round-robin"
    concat_sampling_temperature: float = setting(5, above=0)
    concat_sampling_scale: float = setting(1, above=0)
    concat_sampling_probabilities: list[float] | None = setting(None, kind=PROBABILITIES)
    concat_sampling_seed: int | None = setting(None, at_least=0)
    concat_shuffle: bool = True

    is_tarred: bool = False
    tarred_audio_filepaths: Any = setting(None, kind=TAR_FILES)
    tarred_shard_strategy: Literal["scatter", "replicate"] = "scatter"
    shuffle_n: int | None = setting(None, at_least=0)
    bucketing_strategy: Literal["fixed_order", "synced_randomized", "fully_randomized"] = "synced_randomized"
    bucketing_batch_size: int | list[int] | None = setting(None, kind=either([whole(1), COUNTS]))
    bucketing_weights: list[int] | None = setting(None, kind=COUNTS)

    @property
    def shuffled(self) -> bool:
        """`shuffle`; by default, training data is shuffled and validation data is not."""
        return self.trains if self.shuffle is None else self.shuffle
