"""Variants of the input of the model: files, noise, mixtures, features."""

from __future__ import annotations

from tests.parity.bases import Variant, mixed, tiny


def _augmentor(*changes: str, **options: object) -> Variant:
    return tiny(
        *changes, *(f"model.train_ds.batch_augmentor.{name}={value}" for name, value in options.items()), steps=3
    )


def _concat(technique: str, *changes: str) -> Variant:
    """Return a variant that samples from two manifests; without an augmentor, because NeMo does not use it here."""
    return mixed(
        "model.train_ds.manifest_filepath=[{mixed}/train_manifest.json,{mixed}/more_manifest.json]",
        "model.train_ds.is_concat=true",
        "~model.train_ds.batch_augmentor",
        f"model.train_ds.concat_sampling_technique={technique}",
        "model.train_ds.concat_sampling_seed=3",
        *changes,
        steps=4,
    )


def _tarred(*changes: str, steps: int = 8) -> Variant:
    """Return a variant with a tarred set without shuffling, which NeMo would seed by the time of day."""
    return tiny(
        "model.train_ds.is_tarred=true",
        "model.train_ds.shuffle=false",
        "model.train_ds.manifest_filepath={dummy}/tarred/tarred_audio_manifest.json",
        "model.train_ds.tarred_audio_filepaths={dummy}/tarred/audio__OP_0..3_CL_.tar",
        *changes,
        steps=steps,
    )


def _tarred_buckets(*changes: str, steps: int = 14) -> Variant:
    folders = [f"{{dummy}}/buckets/bucket{number}" for number in (1, 2)]
    manifests = ",".join(f"[{folder}/tarred_audio_manifest.json]" for folder in folders)
    tars = ",".join(f"[{folder}/audio__OP_0..1_CL_.tar]" for folder in folders)
    return _tarred(
        f"model.train_ds.manifest_filepath=[{manifests}]",
        f"model.train_ds.tarred_audio_filepaths=[{tars}]",
        *changes,
        steps=steps,
    )


def _features(**options: object) -> Variant:
    return tiny(*(f"model.preprocessor.{name}={value}" for name, value in options.items()))


def _lhotse(*changes: str, base: str = "tiny", steps: int = 5) -> Variant:
    """Return a variant with batches by seconds from buckets, whose order depends on the seed (not NeMo's default)."""
    by_seed = (
        "use_lhotse=true",
        "batch_size=null",
        "batch_duration=12",
        "use_bucketing=true",
        "num_buckets=3",
        "concurrent_bucketing=false",
        "shard_seed=randomized",
        "seed=5",
    )
    return Variant(base, (*(f"model.train_ds.{change}" for change in by_seed), *changes), steps)


# Without workers, NeMo takes `randomized` from the state of Python's generator at the start of a pass
_BY_NUMBER = "model.train_ds.shard_seed=3"
_MIXED_FILES = ("model.train_ds.channel_selector=0", "model.train_ds.bucket_buffer_size=8")
_SHAR = (
    *_MIXED_FILES,
    "model.train_ds.manifest_filepath=null",
    "model.train_ds.shar_path={mixed}/shar",
    "trainer.limit_train_batches=1000",  # without it, NeMo requests the length of the stream
)

DATA = {
    "no_noise": tiny("model.train_ds.noise_manifest=null", steps=3),
    "no_augmentor": tiny("~model.train_ds.batch_augmentor", steps=3),
    "no_noise_no_augmentor": tiny("model.train_ds.noise_manifest=null", "~model.train_ds.batch_augmentor", steps=3),
    "silent_noise": tiny("model.train_ds.noise_manifest={mixed}/silent_manifest.json"),
    "noise_of_two_manifests": tiny(
        "model.train_ds.noise_manifest='{dummy}/noise_manifest.json,{mixed}/noise_manifest.json'", steps=3
    ),
    "noise_always": _augmentor(prob=1.0, noise_ratio=1.0, min_r_noise=0.0, max_r_noise=0.0),
    "speakers_always": _augmentor(prob=1.0, noise_ratio=0.0, min_r_speech=-10.0, max_r_speech=10.0),
    "mix_whole_clip": _augmentor(prob=1.0, min_mix_rate=1.0, max_mix_rate=1.0),
    "mix_no_part": _augmentor(prob=1.0, min_mix_rate=0.0, max_mix_rate=0.0),
    "segments_and_speakers": _augmentor(
        "model.train_ds.batch_size=4",
        prob=0.9,
        min_mix_rate=0.3,
        max_mix_rate=0.8,
        max_num_segments=3,
        max_num_speakers=3,
    ),
    "many_segments_and_speakers": _augmentor(
        "model.train_ds.batch_size=6",
        prob=1.0,
        min_mix_rate=0.2,
        max_mix_rate=0.9,
        min_num_segments=3,
        max_num_segments=8,
        min_num_speakers=2,
        max_num_speakers=5,
    ),
    "speaker_noise": _augmentor(
        "~model.train_ds.batch_augmentor",
        _target_="nemo.collections.asr.modules.ssl_modules.SpeakerNoiseAugmentation",
        prob=0.8,
        noise_ratio=0.5,
        min_mix_rate=0.2,
        max_mix_rate=0.7,
    ),
    "batch_of_one": tiny("model.train_ds.batch_size=1", "model.masking.mask_prob=0.06", steps=3),
    "no_shuffle": tiny("model.train_ds.shuffle=false", steps=3),
    "two_workers": tiny("model.train_ds.num_workers=2", steps=12),
    "mixed_formats": mixed(steps=8),
    "trim_silence": mixed("model.train_ds.trim_silence=true"),
    "first_channel": mixed("model.train_ds.channel_selector=0"),
    "int_values": mixed("model.train_ds.int_values=true"),
    "sample_rate_8000": mixed("model.sample_rate=8000", "model.preprocessor.n_fft=256"),
    "last_batch_kept": mixed("model.train_ds.drop_last=false", "model.train_ds.batch_size=3", steps=8),
    "manifests_by_comma": mixed(
        "model.train_ds.manifest_filepath='{mixed}/train_manifest.json,{mixed}/more_manifest.json'"
    ),
    "concat_temperature": _concat("temperature"),
    "concat_temperature_5": _concat("temperature", "model.train_ds.concat_sampling_temperature=5"),
    "concat_scale_2": _concat("temperature", "model.train_ds.concat_sampling_scale=2"),
    "concat_no_shuffle": _concat("temperature", "model.train_ds.concat_shuffle=false"),
    "concat_round_robin": _concat("round-robin"),
    "concat_random": _concat("random", "model.train_ds.concat_sampling_probabilities=[0.3,0.7]"),
    "tarred": _tarred(),
    "tarred_two_workers": _tarred("model.train_ds.num_workers=2"),
    "tarred_last_batch_kept": _tarred(
        "model.train_ds.num_workers=2", "model.train_ds.drop_last=false", "model.train_ds.batch_size=3"
    ),
    "tarred_braces_and_replicated": _tarred(
        "model.train_ds.tarred_audio_filepaths={dummy}/tarred/audio_{0..3}.tar",
        "model.train_ds.tarred_shard_strategy=replicate",
    ),
    "tarred_list": _tarred(
        "model.train_ds.tarred_audio_filepaths=[{dummy}/tarred/audio_2.tar,{dummy}/tarred/audio_0.tar]"
    ),
    # with one shard for each worker there is nothing to shuffle, so NeMo is reproducible
    "tarred_shuffled": _tarred(
        "model.train_ds.shuffle=true",
        "model.train_ds.num_workers=2",
        "model.train_ds.tarred_audio_filepaths={dummy}/tarred/audio__OP_1..2_CL_.tar",
    ),
    "tarred_buckets": _tarred_buckets(),
    "tarred_buckets_weighted": _tarred_buckets(
        "model.train_ds.bucketing_weights=[1,2]", "model.train_ds.bucketing_strategy=fully_randomized"
    ),
    "tarred_buckets_two_workers": _tarred_buckets("model.train_ds.num_workers=2"),
    "tarred_buckets_in_order": _tarred_buckets("model.train_ds.bucketing_strategy=fixed_order", steps=8),
    "tarred_concat": _tarred_buckets(
        "model.train_ds.is_concat=true",
        "model.train_ds.concat_sampling_technique=temperature",
        "model.train_ds.concat_sampling_seed=3",
    ),
    "tarred_validation": _tarred(
        "model.validation_ds.is_tarred=true",
        "model.validation_ds.manifest_filepath={dummy}/tarred/tarred_audio_manifest.json",
        "model.validation_ds.tarred_audio_filepaths={dummy}/tarred/audio__OP_0..3_CL_.tar",
        "trainer.limit_val_batches=2",
        "trainer.val_check_interval=3",
        steps=4,
    ),
}

LHOTSE = {
    "lhotse_buckets": _lhotse(steps=12),
    "lhotse_buckets_two_workers": _lhotse("model.train_ds.num_workers=2", steps=12),
    "lhotse_without_noise": _lhotse("model.train_ds.noise_manifest=null", "~model.train_ds.batch_augmentor"),
    "lhotse_estimated_buckets": _lhotse("model.train_ds.max_duration=null", "model.train_ds.drop_last=false"),
    "lhotse_bins_quadratic": _lhotse(
        "model.train_ds.use_bucketing=false",
        "model.train_ds.bucket_duration_bins=[2.5,3.5]",
        "model.train_ds.quadratic_duration=10",
        "model.train_ds.shard_seed=7",
    ),
    "lhotse_by_number": _lhotse(
        "model.train_ds.use_bucketing=false",
        "model.train_ds.batch_duration=null",
        "model.train_ds.batch_size=3",
        "model.train_ds.shuffle_buffer_size=5",
    ),
    "lhotse_mixed_formats": _lhotse(
        *_MIXED_FILES, "model.train_ds.manifest_filepath={mixed}/lhotse_manifest.json", base="tiny-mixed"
    ),
    "lhotse_sharded_manifest": _lhotse(
        "model.train_ds.manifest_filepath={mixed}/part__OP_0..2_CL_.json", *_MIXED_FILES, base="tiny-mixed", steps=8
    ),
    "lhotse_mixture": _lhotse(
        "model.train_ds.manifest_filepath=[{mixed}/part_0.json,{mixed}/part_2.json]",
        *_MIXED_FILES,
        base="tiny-mixed",
        steps=8,
    ),
    "lhotse_cut_set": _lhotse(
        "model.train_ds.cuts_path={mixed}/cuts.jsonl.gz", *_MIXED_FILES, _BY_NUMBER, base="tiny-mixed", steps=8
    ),
    "lhotse_shar": _lhotse(*_SHAR, _BY_NUMBER, base="tiny-mixed", steps=12),
    "lhotse_shar_two_workers": _lhotse(*_SHAR, "model.train_ds.num_workers=2", base="tiny-mixed", steps=12),
    "lhotse_shar_without_buckets": _lhotse(
        *_SHAR,
        "model.train_ds.use_bucketing=false",
        "model.train_ds.shuffle_buffer_size=4",
        _BY_NUMBER,
        base="tiny-mixed",
    ),
    "lhotse_shar_mixture": _lhotse(
        *_SHAR, "model.train_ds.shar_path=[[{mixed}/shar,0.3],{mixed}/more_shar]", base="tiny-mixed", steps=8
    ),
    "lhotse_epochs_by_limit": _lhotse(*_SHAR, _BY_NUMBER, "trainer.limit_train_batches=3", base="tiny-mixed", steps=8),
    "lhotse_validation": _lhotse(
        "trainer.limit_val_batches=2",
        "trainer.val_check_interval=2",
        "model.validation_ds.use_lhotse=true",
        "model.validation_ds.min_duration=4",
        "model.masking.mask_prob=0.05",
        steps=4,
    ),
}

FEATURES = {
    "normalize_all_features": _features(normalize="all_features"),
    "normalize_none": _features(normalize="null"),
    "hamming": _features(window="hamming"),
    "blackman": _features(window="blackman"),
    "bartlett": _features(window="bartlett"),
    "window_20_ms": _features(window_size=0.02, n_fft="null"),
    "window_in_samples": _features(window_size="null", n_window_size=300, window_stride="null", n_window_stride=200),
    "n_fft_1024": _features(n_fft=1024),
    "exact_pad": _features(exact_pad="true"),
    "pad_to_8": _features(pad_to=8),
    "pad_to_32": _features(pad_to=32),
    "pad_value": _features(pad_value=-1.5),
    "features_64": _features(features=64),
    "features_128": _features(features=128),
    "lowfreq_50": _features(lowfreq=50),
    "highfreq_7600": _features(highfreq=7600),
    "mel_norm_none": _features(mel_norm="null"),
    "mag_power_1": _features(mag_power=1.0),
    "no_log": _features(log="false"),
    "log_clamp": _features(log_zero_guard_type="clamp"),
    "log_guard_tiny": _features(log_zero_guard_value="tiny"),
    "log_guard_eps": _features(log_zero_guard_value="eps", log_zero_guard_type="clamp"),
    "no_dither": _features(dither=0.0),
    "strong_dither": _features(dither=0.01),
    "no_preemphasis": _features(preemph="null"),
    "preemphasis_90": _features(preemph=0.9),
    "flags_of_old_archives": _features(stft_conv="true", stft_exact_pad="true", use_torchaudio="true"),
    "frame_splicing": tiny(
        "model.preprocessor.frame_splicing=2",
        *(f"model.{part}.feat_in=160" for part in ("masking", "quantizer", "encoder")),
    ),
}
