"""What the two implementations are trained on side by side: each variant is its changes to the shipped configuration.

A change is `key=value`, or `~key` to remove a key. `{dummy}` and `{mixed}` stand for the folders of the two corpora.
What NeMo 3.0.0 itself cannot run is not here: `vggnet`, `causal_downsampling`, `post_conv` masking, the quantizer's
cosine distance, `pad_to: 0`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "nest_fast-conformer.yaml"
SEED = 1234
AGAIN = "@again"  # ends the name under which the first variant is recorded once more, after all others
CORPUS = (
    "model.train_ds.manifest_filepath={dummy}/train_manifest.json",
    "model.train_ds.noise_manifest={dummy}/noise_manifest.json",
    "model.validation_ds.manifest_filepath={dummy}/val_manifest.json",
    "model.validation_ds.noise_manifest={dummy}/noise_manifest.json",
    "model.train_ds.batch_size=2",
    "model.train_ds.num_workers=0",
    "model.validation_ds.batch_size=2",
    "model.validation_ds.num_workers=0",
)
# The stock warm-up of 25,000 steps would leave the weights almost where they began
MOVING_WEIGHTS = ("model.optim.lr=0.5", "model.optim.sched.warmup_steps=8")
SHORT = ("model.train_ds.max_duration=5", "model.train_ds.min_duration=2", "model.masking.mask_prob=0.03")
SHRUNK = ("model.encoder.n_layers=3", "model.encoder.d_model=96", "model.encoder.n_heads=4")
TINY = (
    *SHORT,
    *MOVING_WEIGHTS,
    "model.encoder.n_layers=2",
    "model.encoder.d_model=32",
    "model.encoder.n_heads=4",
    "model.encoder.subsampling_conv_channels=16",
    "model.num_classes=128",
)
MIXED = (
    "model.train_ds.manifest_filepath={mixed}/train_manifest.json",
    "model.train_ds.noise_manifest={mixed}/noise_manifest.json",
    "model.train_ds.channel_selector=average",
    "model.train_ds.min_duration=0.1",
    "model.train_ds.max_duration=20",
    "model.masking.mask_prob=0.1",
)


@dataclass(frozen=True)
class Variant:
    """One short training run: the changes that make it, and how long it lasts."""

    changes: tuple[str, ...]
    steps: int = 2

    def overrides(self, dummy: Path, mixed: Path) -> list[str]:
        """All changes to the configuration file, the corpora put in; later ones win."""
        return [
            change.replace("{dummy}", dummy.as_posix()).replace("{mixed}", mixed.as_posix())
            for change in (*CORPUS, *self.changes)
        ]


def tiny(*changes: str, steps: int = 2) -> Variant:
    """A variant of a model so small that its run takes about a second."""
    return Variant((*TINY, *changes), steps)


def _encoder(**options: object) -> Variant:
    return tiny(*(f"model.encoder.{name}={value}" for name, value in options.items()))


def _features(**options: object) -> Variant:
    return tiny(*(f"model.preprocessor.{name}={value}" for name, value in options.items()))


def _augmentor(**options: object) -> Variant:
    return tiny(*(f"model.train_ds.batch_augmentor.{name}={value}" for name, value in options.items()), steps=3)


def _concat(technique: str, *changes: str) -> Variant:
    """Two manifests sampled from; without an augmentor, because NeMo drops it here."""
    return tiny(
        *MIXED,
        "model.train_ds.manifest_filepath=[{mixed}/train_manifest.json,{mixed}/more_manifest.json]",
        "model.train_ds.is_concat=true",
        "~model.train_ds.batch_augmentor",
        f"model.train_ds.concat_sampling_technique={technique}",
        "model.train_ds.concat_sampling_seed=3",
        *changes,
        steps=4,
    )


def _reduced(reduction: str, position: int, factor: int = 2) -> Variant:
    """Time reduced further in the encoder: targets and loss must combine as many more feature frames."""
    return tiny(
        f"model.encoder.reduction={reduction}",
        f"model.encoder.reduction_position={position}",
        f"model.encoder.reduction_factor={factor}",
        f"model.quantizer.combine_time_steps={8 * factor}",
        f"model.loss.combine_time_steps={8 * factor}",
        f"model.preprocessor.pad_to={8 * factor}",
        "model.masking.mask_prob=0.06",
    )


def _optimizer(name: str, **options: object) -> Variant:
    """An optimiser by itself: no schedule, none of AdamW's options."""
    return tiny(
        "model.train_ds.noise_manifest=null",
        "~model.optim",
        f"model.optim.name={name}",
        "model.optim.lr=0.01",
        *(f"model.optim.{option}={value}" for option, value in options.items()),
        steps=3,
    )


def _schedule(name: str, **options: object) -> Variant:
    """A schedule over a run of six steps, which AdamW takes."""
    return tiny(
        "model.train_ds.noise_manifest=null",
        "~model.optim.sched",
        f"model.optim.sched.name={name}",
        "model.optim.lr=0.01",
        *(f"model.optim.sched.{option}={value}" for option, value in options.items()),
        steps=6,
    )


WHOLE_MODELS = {
    "shrunk": Variant((*SHRUNK, *MOVING_WEIGHTS), steps=12),
    "shrunk_2_workers": Variant((*SHRUNK, *MOVING_WEIGHTS, "model.train_ds.num_workers=2"), steps=12),
    "large": Variant((*SHORT, *MOVING_WEIGHTS)),
    "small": Variant(
        (
            *SHORT,
            *MOVING_WEIGHTS,
            "model.encoder.n_layers=16",
            "model.encoder.d_model=176",
            "model.encoder.n_heads=4",
        )
    ),
    # clips of about a second: most batches have no masked frame, where NeMo's loss is NaN and ours 0
    "no_masked_frames": Variant(
        (*TINY, "model.masking.mask_prob=0.004", "model.train_ds.min_duration=0.5", "model.train_ds.max_duration=3"),
        steps=8,
    ),
}

ENCODER = {
    "striding": _encoder(subsampling="striding"),
    "striding_2": _encoder(subsampling="striding", subsampling_factor=2),
    "dw_striding_4": _encoder(subsampling_factor=4),
    "dw_striding_16": _encoder(subsampling_factor=16),
    "no_subsampling": _encoder(subsampling_factor=1),
    "stacking": _encoder(subsampling="stacking"),
    "stacking_norm": _encoder(subsampling="stacking_norm"),
    "conv_chunking": _encoder(subsampling_conv_chunking_factor=2),
    "abs_pos": _encoder(self_attention_model="abs_pos"),
    "abs_pos_unscaled": _encoder(self_attention_model="abs_pos", xscaling="false"),
    "context_16_8": _encoder(att_context_size="[16,8]"),
    "context_of_two": tiny(
        "model.encoder.att_context_size=[[16,8],[8,0]]", "model.encoder.att_context_probs=[0.5,0.5]", steps=4
    ),
    "chunked_limited": _encoder(att_context_style="chunked_limited", att_context_size="[16,7]"),
    "chunked_limited_all_left": _encoder(att_context_style="chunked_limited", att_context_size="[-1,7]"),
    "layer_norm": _encoder(conv_norm_type="layer_norm"),
    "group_norm": _encoder(conv_norm_type="group_norm4"),
    "instance_norm": _encoder(conv_norm_type="instance_norm"),
    "conv_causal": _encoder(conv_context_size="causal"),
    "conv_context_5_3": _encoder(conv_context_size="[5,3]"),
    "tied_biases": _encoder(untie_biases="false"),
    "no_bias": _encoder(use_bias="false"),
    "no_xscaling": _encoder(xscaling="false"),
    "feat_out": tiny("model.encoder.feat_out=48", "model.decoder.feat_in=48"),
    "feed_forward_2": _encoder(ff_expansion_factor=2),
    "kernel_5": _encoder(conv_kernel_size=5),
    "reduction_pooling_first": _reduced("pooling", 0),
    "reduction_pooling_last": _reduced("pooling", -1),
    "reduction_pooling_4": _reduced("pooling", 0, factor=4),
    "reduction_striding_first": _reduced("striding", 0),
    "reduction_striding_last": _reduced("striding", -1),
    "stochastic_depth_linear": tiny(
        "model.encoder.n_layers=4", "model.encoder.stochastic_depth_drop_prob=0.5", steps=4
    ),
    "stochastic_depth_uniform": tiny(
        "model.encoder.n_layers=4",
        "model.encoder.stochastic_depth_drop_prob=0.5",
        "model.encoder.stochastic_depth_mode=uniform",
        steps=4,
    ),
    "dropout_emb": _encoder(dropout_emb=0.1),
    "dropout_pre_encoder_0": _encoder(dropout_pre_encoder=0.0),
    "dropout_att_0": _encoder(dropout_att=0.0),
    "dropout_0": _encoder(dropout=0.0, dropout_pre_encoder=0.0, dropout_att=0.0),
    "sdpa": _encoder(use_pytorch_sdpa="true"),
    "sdpa_abs_pos": _encoder(use_pytorch_sdpa="true", self_attention_model="abs_pos"),
}

TARGETS = {
    "three_books": tiny("model.num_books=3"),
    "squeeze_single": tiny("model.squeeze_single=true"),
    "mask_without_overlap": tiny("model.masking.allow_overlap=false", "model.masking.mask_prob=0.4"),
    "mask_trainable": tiny("model.masking.freeze=false"),
    "mask_value": tiny("model.masking.mask_value=0.3"),
    "quantizer_trainable": tiny("model.quantizer.freeze=false"),
    "mask_threshold": tiny("model.loss.mask_threshold=0.4"),
    "decoder_without_bias": tiny("model.decoder.use_bias=false"),
}

DATA = {
    "speaker_noise": tiny(
        "~model.train_ds.batch_augmentor",
        "model.train_ds.batch_augmentor={_target_: "
        "nemo.collections.asr.modules.ssl_modules.SpeakerNoiseAugmentation, prob: 0.8, noise_ratio: 0.5, "
        "min_mix_rate: 0.2, max_mix_rate: 0.7}",
        steps=4,
    ),
    "no_noise_manifest": tiny("model.train_ds.noise_manifest=null", steps=3),
    "no_augmentor": tiny("~model.train_ds.batch_augmentor", steps=3),
    "segments_and_speakers": Variant(
        (
            *TINY,
            "model.train_ds.batch_size=4",
            *(
                f"model.train_ds.batch_augmentor.{option}"
                for option in (
                    "prob=0.9",
                    "min_mix_rate=0.3",
                    "max_mix_rate=0.8",
                    "max_num_segments=3",
                    "max_num_speakers=3",
                )
            ),
        ),
        steps=3,
    ),
    "speech_only_mixing": _augmentor(prob=1.0, noise_ratio=0.0),
    "trim_silence": tiny(*MIXED, "model.train_ds.trim_silence=true", steps=3),
    "silent_noise": tiny("model.train_ds.noise_manifest={mixed}/silent_manifest.json"),
    "mixed_formats": tiny(*MIXED, steps=8),
    "manifests_by_comma": tiny(
        *MIXED, "model.train_ds.manifest_filepath='{mixed}/train_manifest.json,{mixed}/more_manifest.json'", steps=3
    ),
    "concat_temperature": _concat("temperature"),
    "concat_round_robin": _concat("round-robin"),
    "concat_random": _concat("random", "model.train_ds.concat_sampling_probabilities=[0.3,0.7]"),
    "last_batch_kept": tiny(*MIXED, "model.train_ds.drop_last=false", "model.train_ds.batch_size=3", steps=8),
}

FEATURES = {
    "normalize_all_features": _features(normalize="all_features"),
    "normalize_none": _features(normalize="null"),
    "hamming": _features(window="hamming"),
    "pad_to_8": _features(pad_to=8),
    "pad_to_32": _features(pad_to=32),
    "exact_pad": _features(exact_pad="true"),
    "n_fft_1024": _features(n_fft=1024),
    "features_64": _features(features=64),
    "no_log": _features(log="false"),
    "mag_power_1": _features(mag_power=1.0),
    "log_clamp": _features(log_zero_guard_type="clamp"),
    "highfreq_7600": _features(highfreq=7600),
    "no_dither": _features(dither=0.0),
    "no_preemphasis": _features(preemph="null"),
    "lowfreq_50": _features(lowfreq=50),
    "window_20_ms": _features(window_size=0.02, n_fft="null"),
    "frame_splicing": tiny(
        "model.preprocessor.frame_splicing=2",
        *(f"model.{part}.feat_in=160" for part in ("masking", "quantizer", "encoder")),
    ),
}

OPTIMIZERS = {
    "adam": _optimizer("adam", betas="[0.8,0.95]", eps=1e-6, amsgrad="true"),
    "sgd": _optimizer("sgd", momentum=0.9, weight_decay=0.01, nesterov="true"),
    "adadelta": _optimizer("adadelta"),
    "adamax": _optimizer("adamax"),
    "adagrad": _optimizer("adagrad"),
    "rmsprop": _optimizer("rmsprop", alpha=0.9),
    "rprop": _optimizer("rprop"),
    "optimizer_by_target": tiny(
        "~model.optim", "model.optim._target_=torch.optim.AdamW", "model.optim.lr=0.01", steps=3
    ),
    "parameter_groups": tiny("model.optim_param_groups={encoder: {lr: 0.02}, decoder: {weight_decay: 0.1}}", steps=3),
}

SCHEDULES = {
    "noam_warmup_ratio": tiny("model.optim.sched.warmup_steps=null", "model.optim.sched.warmup_ratio=0.5", steps=4),
    "noam_hold": _schedule("NoamHoldAnnealing", warmup_steps=2, hold_steps=2, decay_rate=0.6, min_lr=1e-4),
    "cosine": _schedule("CosineAnnealing", warmup_steps=2, min_lr=1e-3),
    "cosine_constant": _schedule("CosineAnnealing", warmup_steps=2, constant_steps=2, min_lr=1e-3),
    "warmup": _schedule("WarmupPolicy", warmup_steps=3),
    "warmup_hold": _schedule("WarmupHoldPolicy", warmup_steps=2, hold_steps=2, min_lr=1e-4),
    "warmup_hold_ratio": _schedule("WarmupHoldPolicy", warmup_ratio=0.3, hold_ratio=0.3),
    "warmup_annealing": _schedule("WarmupAnnealing", warmup_ratio=0.3),
    "warmup_hold_linear": _schedule("WarmupHoldAnnealLinear", warmup_steps=2, hold_steps=1, min_lr=1e-4),
    "warmup_hold_root": _schedule("WarmupHoldAnnealOneMinusSquareRoot", warmup_steps=2, hold_steps=1, min_lr=1e-4),
    "square": _schedule("SquareAnnealing", warmup_steps=2),
    "square_root": _schedule("SquareRootAnnealing", warmup_steps=2),
    "inverse_square_root": _schedule("InverseSquareRootAnnealing", warmup_steps=2),
    "polynomial": _schedule("PolynomialDecayAnnealing", warmup_steps=2, power=2.0, min_lr=1e-4),
    "polynomial_hold": _schedule("PolynomialHoldDecayAnnealing", warmup_steps=2, hold_steps=1, power=2.0),
    "step": _schedule("StepLR", step_size=2, gamma=0.5),
    "exponential": _schedule("ExponentialLR", gamma=0.5),
    "cyclic": _schedule("CyclicLR", base_lr=1e-3, max_lr=1e-2, step_size_up=2, cycle_momentum="false"),
}

TRAINING = {
    "accumulate_and_clip": tiny("trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=0.5", steps=3),
    "two_validation_sets": tiny(
        "model.validation_ds.manifest_filepath=[{dummy}/val_manifest.json,{dummy}/train_manifest.json]",
        "model.validation_ds.min_duration=4",
        "model.masking.mask_prob=0.05",
        "trainer.limit_val_batches=2",
        "trainer.val_check_interval=2",
        steps=4,
    ),
}

VARIANTS: dict[str, Variant] = {
    **WHOLE_MODELS,
    **ENCODER,
    **TARGETS,
    **DATA,
    **FEATURES,
    **OPTIMIZERS,
    **SCHEDULES,
    **TRAINING,
}
