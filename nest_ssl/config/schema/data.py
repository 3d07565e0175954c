"""The `*_ds` nodes: where utterances come from, how they become batches, and which processes load them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nest_ssl.config.schema.kinds import (
    AUGMENTOR,
    CHANNEL,
    COUNTS,
    CUT_SET,
    EDGES,
    MANIFESTS,
    PROBABILITIES,
    SHAR,
    SHARD_SEED,
    START_METHOD,
    TAR_FILES,
    WEIGHTED_PATHS,
    either,
    number,
    whole,
)
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
    val_dl_idx: int = setting(0, at_least=0)  # read by the module that trains

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


_UNSET = RefusedKey(off=(None,))
_SWITCH = RefusedKey(off=(None, False))


@dataclass(frozen=True, kw_only=True)
class LhotseSettings(LoaderSettings):
    """A data set that lhotse reads."""

    WITH: ClassVar[str] = " with use_lhotse"
    # options of functions whose switch is off, of text, which pre-training does not read, and of a GPU's memory
    IDLE: ClassVar[tuple[str, ...]] = (
        *("noise_snr", "noise_mix_prob", "rir_path", "rir_prob", "pad_direction", "truncate_offset_type"),
        *("concatenate_gap_seconds", "concatenate_duration_factor", "concatenate_merge_supervisions", "db_norm"),
        *("cut_into_windows_hop", "keep_excessive_supervisions", "lowpass_frequencies_interval", "lowpass_prob"),
        *("compression_prob", "compression_level_interval", "compression_codecs", "compression_codec_weights"),
        *("compression_enable_for_custom_fields", "clipping_gain_db", "clipping_normalize", "clipping_oversampling"),
        *("clipping_prob_hard", "clipping_prob", "sampler_fusion", "sampler_weights", "bucketing_2d_strict_mode"),
        *("pretokenize", "audio_locator_tag", "token_equivalent_duration", "batch_tokens", "quadratic_factor"),
        *("cut_text_into_windows_tokens", "min_tps", "max_tps", "min_tokens", "max_tokens", "measure_total_length"),
        *("min_tpt", "max_tpt", "text_field", "lang_field", "cuda_expandable_segments"),
        *("use_start_end_token", "labels", "name", "is_tarred", "shuffle_n", "tarred_shard_strategy"),
        *("bucketing_strategy", "bucketing_batch_size", "bucketing_weights", "concat_sampling_technique"),
        *("concat_sampling_temperature", "concat_sampling_scale", "concat_sampling_probabilities"),
        *("concat_sampling_seed", "concat_shuffle", "min_audio_len_secs", "pad_audio_mode"),
    )
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {
        **dict.fromkeys(("input_cfg", "bucket_batch_size", "max_open_streams", "reweight_temperature"), _UNSET),
        **dict.fromkeys(("prompt_format", "noise_path", "extra_fields", "slice_length", "truncate_duration"), _UNSET),
        **dict.fromkeys(("cut_into_windows_duration", "pad_min_duration", "augmentor"), _UNSET),
        **dict.fromkeys(("multi_config", "use_multimodal_sampling", "metadata_only", "perturb_speed"), _SWITCH),
        **dict.fromkeys(("skip_missing_manifest_entries", "tarred_random_access", "concatenate_samples"), _SWITCH),
        **dict.fromkeys(("rir_enabled", "lowpass_enabled", "compression_enabled", "clipping_enabled"), _SWITCH),
        **dict.fromkeys(("force_map_dataset", "force_iterable_dataset"), _SWITCH),
        **dict.fromkeys(("trim_silence", "int_values", "use_dali"), _SWITCH),
        "tarred_audio_filepaths": RefusedKey("use the tar files without lhotse, or convert them to Shar", (None,)),
        "concurrent_bucketing": RefusedKey(
            "a thread that fills the buckets makes other batches in every run", (None, False)
        ),
        "is_concat": RefusedKey("a list of manifests is mixed, as [[path, weight], ...]", (None, False)),
        "keep": RefusedKey(off=(None, "pass")),
        "max_cer": RefusedKey(off=(None, math.inf)),
        "min_context_speaker_similarity": RefusedKey(off=(None, -1)),
    }

    manifest_filepath: Any = setting(None, kind=WEIGHTED_PATHS)
    cuts_path: str | None = setting(None, kind=CUT_SET)
    shar_path: Any = setting(None, kind=SHAR)
    sample_rate: int = setting(16000, at_least=1)
    min_duration: float = setting(-1, above=-math.inf)
    max_duration: float | None = setting(None, kind=number(above=0, infinite=True))
    channel_selector: int | None = setting(None, at_least=0)

    shuffle: bool = False
    shuffle_buffer_size: int = setting(10000, at_least=0)
    use_bucketing: bool = False
    num_buckets: int = setting(30, at_least=2)
    bucket_buffer_size: int = setting(10000, at_least=1)
    num_cuts_for_bins_estimate: int = setting(10000, at_least=1)
    force_finite: bool = False

    seed: int = setting(0, at_least=0)
    shard_seed: int | str = setting("trng", kind=SHARD_SEED)
    defer_setup: bool = False
