"""Variants of what goes into the model: files, noise, mixtures, features."""

from __future__ import annotations

from tests.parity.bases import Variant, mixed, tiny


def _augmentor(*changes: str, **options: object) -> Variant:
    return tiny(
        *changes, *(f"model.train_ds.batch_augmentor.{name}={value}" for name, value in options.items()), steps=3
    )


def _concat(technique: str, *changes: str) -> Variant:
    """Two manifests sampled from; without an augmentor, because NeMo drops it here."""
    return mixed(
        "model.train_ds.manifest_filepath=[{mixed}/train_manifest.json,{mixed}/more_manifest.json]",
        "model.train_ds.is_concat=true",
        "~model.train_ds.batch_augmentor",
        f"model.train_ds.concat_sampling_technique={technique}",
        "model.train_ds.concat_sampling_seed=3",
        *changes,
        steps=4,
    )


def _features(**options: object) -> Variant:
    return tiny(*(f"model.preprocessor.{name}={value}" for name, value in options.items()))


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
