"""A `*_ds` node with `use_lhotse: true`: the keys of NeMo's lhotse configuration, with its defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nest_ssl.config.schema.data import LoaderSettings
from nest_ssl.config.schema.data_kinds import CUT_SET, SHAR, SHARD_SEED, WEIGHTED_PATHS
from nest_ssl.config.schema.kinds import number
from nest_ssl.config.schema.node import RefusedKey, setting

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
