"""Errors that a user can correct: each message is one line and says what is wrong, where, and what to do.

A command exits with 0 if it is done, 1 for a result (problems found, a difference), 2 if it failed, 130 or 143 if it
was interrupted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FAILED = 2  # exit codes
INTERRUPTED = 130  # what shells report for Ctrl-C


class NestError(Exception):
    """Base of all errors caused by the user's input; commands print them without a traceback."""


class ConfigError(NestError):
    """A configuration key or value that cannot be used; the message starts with the key."""


class ManifestError(NestError):
    """A manifest or one of its lines that cannot be used; the message starts with `file:line`."""


class AudioError(NestError):
    """An audio file that cannot be read or used; the message starts with its path, `kind` is of `data/problems.py`."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


class ShardError(NestError):
    """A tar file of a data set that is missing or damaged; the message starts with its path."""


class CheckpointError(NestError):
    """A checkpoint or archive that is damaged, unsafe or does not fit the model."""


# names that other tools and papers use -> our key
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "learningrate", "max_lr", "peak_lr"), "lr"),
    **dict.fromkeys(("epoch", "epochs", "num_epochs", "n_epochs", "num_train_epochs"), "max_epochs"),
    **dict.fromkeys(("step", "steps", "num_steps", "max_iters", "iterations", "max_updates", "updates"), "max_steps"),
    **dict.fromkeys(("batch", "bs", "batchsize", "per_device_train_batch_size", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("max_tokens", "max_batch_duration", "batch_seconds"), "batch_duration"),
    **dict.fromkeys(("gpu", "gpus", "num_gpus", "n_gpus", "n_gpu", "world_size", "nproc_per_node"), "devices"),
    **dict.fromkeys(("node", "nodes", "nnodes", "n_nodes"), "num_nodes"),
    **dict.fromkeys(("device", "cuda"), "accelerator"),
    **dict.fromkeys(("worker", "workers", "n_workers", "num_loader_workers", "dataloader_num_workers"), "num_workers"),
    **dict.fromkeys(("warmup", "warm_up", "warmup_updates", "num_warmup_steps"), "warmup_steps"),
    **dict.fromkeys(("wd", "decay"), "weight_decay"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "schedule"), "sched"),
    **dict.fromkeys(("optimizer", "optimiser", "opt"), "optim"),
    **dict.fromkeys(("grad_clip", "clip_grad", "clip_norm", "max_grad_norm", "gradient_clip"), "gradient_clip_val"),
    **dict.fromkeys(
        ("accumulate", "grad_accum", "accum_grad", "update_freq", "gradient_accumulation_steps"),
        "accumulate_grad_batches",
    ),
    **dict.fromkeys(("fp16", "bf16", "amp", "dtype"), "precision"),
    **dict.fromkeys(("val_interval", "eval_interval", "eval_steps", "valid_interval"), "val_check_interval"),
    **dict.fromkeys(("log_interval", "log_every", "logging_steps"), "log_every_n_steps"),
    **dict.fromkeys(("layers", "num_layers", "num_hidden_layers", "depth"), "n_layers"),
    **dict.fromkeys(("heads", "num_heads", "attention_heads", "num_attention_heads"), "n_heads"),
    **dict.fromkeys(("hidden_size", "embed_dim", "width", "dim"), "d_model"),
    **dict.fromkeys(("kernel_size", "kernel"), "conv_kernel_size"),
    **dict.fromkeys(("codebook_size", "num_codes", "vocab_size"), "num_classes"),
    **dict.fromkeys(("codebooks", "num_codebooks", "books"), "num_books"),
    **dict.fromkeys(("mask_ratio", "mask_probability", "mask_rate"), "mask_prob"),
    **dict.fromkeys(("manifest", "train_manifest", "data", "dataset", "manifest_path"), "manifest_filepath"),
    **dict.fromkeys(("noise", "noise_path"), "noise_manifest"),
    **dict.fromkeys(("exp", "log_dir", "logdir", "save_dir", "experiment_dir"), "exp_dir"),
    **dict.fromkeys(("resume", "ckpt", "checkpoint", "ckpt_path", "resume_from"), "resume_from_checkpoint"),
    **dict.fromkeys(("wandb", "use_wandb"), "create_wandb_logger"),
    **dict.fromkeys(("tensorboard", "use_tensorboard"), "create_tensorboard_logger"),
    **dict.fromkeys(("pretrained", "init_from", "init_checkpoint"), "init_from_nemo_model"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the key that a synonym stands for or the closest known word, else nothing."""
    known = list(known)
    synonym = SYNONYMS.get(word.lower())
    match = [synonym] if synonym in known else difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""


def refuse_unknown(names: Iterable[object], known: Iterable[str], node: str, owner: str = "", more: str = "") -> None:
    """Raise ConfigError for the first name that is not known, with the nearest one that is.

    `node` is the key above the names, empty at the top level; `owner` is the class that takes the options, and `more`
    is said after `no such option`.
    """
    known = list(known)
    for name in map(str, names):
        if name not in known:
            key = f"{node}.{one_line(name)}" if node else one_line(name)
            has = f"{owner} has " if owner else ""
            raise ConfigError(f"{key}: {has}no such option{more}{nearest(name, known)}")


def one_line(text: object, most: int = 200) -> str:
    """Return foreign text, such as an exception or a value from a file, as one line of bounded length."""
    line = " ".join(str(text).split()) or type(text).__name__
    return line if len(line) <= most else f"{line[:most]}..."
