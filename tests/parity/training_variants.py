"""Variants of training: optimizers, schedules, accumulation, validation, resuming, precision."""

from __future__ import annotations

from tests.parity.bases import Variant, tiny


def _optimizer(name: str, **options: object) -> Variant:
    """Return a variant of an optimizer without a schedule and without AdamW's options."""
    return tiny(
        "model.train_ds.noise_manifest=null",
        "~model.optim",
        f"model.optim.name={name}",
        "model.optim.lr=0.01",
        *(f"model.optim.{option}={value}" for option, value in options.items()),
        steps=3,
    )


def _schedule(name: str, **options: object) -> Variant:
    """Return a variant of AdamW with a schedule over six steps."""
    return tiny(
        "model.train_ds.noise_manifest=null",
        "~model.optim.sched",
        f"model.optim.sched.name={name}",
        "model.optim.lr=0.01",
        *(f"model.optim.sched.{option}={value}" for option, value in options.items()),
        steps=6,
    )


OPTIMIZERS = {
    "adamw": _optimizer("adamw", betas="[0.8,0.95]", eps=1e-6, weight_decay=0.1, amsgrad="true"),
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
    "noam_floor": tiny("model.optim.sched.warmup_steps=2", "model.optim.sched.min_lr=0.05", steps=4),
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

VALIDATION = ("trainer.limit_val_batches=2", "trainer.val_check_interval=2", "model.validation_ds.min_duration=4")

TRAINING = {
    "accumulate": tiny("trainer.accumulate_grad_batches=3", steps=2),
    "clip": tiny("trainer.gradient_clip_val=0.1", steps=3),
    "clip_values": tiny("trainer.gradient_clip_val=0.01", "trainer.gradient_clip_algorithm=value", steps=3),
    "accumulate_and_clip": tiny("trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=0.5", steps=3),
    "validation": tiny(*VALIDATION, "model.masking.mask_prob=0.05", steps=4),
    "validation_without_noise": tiny(
        *VALIDATION,
        "model.validation_ds.noise_manifest=null",
        "~model.validation_ds.batch_augmentor",
        "model.masking.mask_prob=0.05",
        steps=4,
    ),
    "two_validation_sets": tiny(
        *VALIDATION,
        "model.validation_ds.manifest_filepath=[{dummy}/val_manifest.json,{dummy}/train_manifest.json]",
        "model.masking.mask_prob=0.05",
        steps=4,
    ),
    "resume": Variant("tiny", steps=8, resumed_after=4),
    "resume_shrunk": Variant("shrunk", steps=8, resumed_after=4),
    # not stopped right after a validation: Lightning 2.4, the latest version that NeMo supports, would repeat it
    "resume_accumulate_clip_validate": Variant(
        "tiny",
        (
            *VALIDATION,
            "trainer.val_check_interval=3",
            "model.masking.mask_prob=0.05",
            "trainer.accumulate_grad_batches=2",
            "trainer.gradient_clip_val=0.5",
        ),
        steps=5,
        resumed_after=2,
    ),
    "resume_two_workers": Variant("tiny", ("model.train_ds.num_workers=2",), steps=6, resumed_after=3),
    "resume_cosine": Variant("tiny", _schedule("CosineAnnealing", warmup_steps=2).changes, steps=6, resumed_after=3),
}

PRECISION = {
    "double": tiny("trainer.precision=64", steps=6),
    "double_shrunk": Variant("shrunk", ("trainer.precision=64",), steps=3),
    "double_validation": tiny("trainer.precision=64", *VALIDATION, "model.masking.mask_prob=0.05", steps=4),
    "double_striding_abs_pos": tiny(
        "trainer.precision=64", "model.encoder.subsampling=striding", "model.encoder.self_attention_model=abs_pos"
    ),
    "double_sdpa": tiny("trainer.precision=64", "model.encoder.use_pytorch_sdpa=true"),
    "double_without_overlap": tiny(
        "trainer.precision=64", "model.masking.allow_overlap=false", "model.masking.mask_prob=0.4"
    ),
    "double_resume": Variant("tiny", ("trainer.precision=64",), steps=4, resumed_after=2),
    "bf16_mixed": tiny("trainer.precision=bf16-mixed", steps=6),
    "bf16_mixed_shrunk": Variant("shrunk", ("trainer.precision=bf16-mixed",), steps=3),
    "bf16_mixed_abs_pos": tiny("trainer.precision=bf16-mixed", "model.encoder.self_attention_model=abs_pos"),
    "bf16_mixed_sdpa": tiny("trainer.precision=bf16-mixed", "model.encoder.use_pytorch_sdpa=true"),
}
