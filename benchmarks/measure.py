"""The measurements, made with the real model classes and Lightning's Trainer of either implementation."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig, OmegaConf

from benchmarks.flops import training_flops
from benchmarks.job import WARM_UP, Job
from benchmarks.stages import StageTimes
from nest_ssl.memory import peak_bytes

SAMPLE_RATE = 16000
TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": -1,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}
QUIET: dict[str, Any] = {"limit_val_batches": 0, "enable_checkpointing": False}


class FirstStepReached(Exception):
    """Raised to end a run that measures only the time until its first step."""


class StepTimes(pl.Callback):
    """Records the audio of each step, the time of the step, and the time of loading its data."""

    def __init__(self, started: float, stop_at_first: bool = False) -> None:
        self.started = started
        self.stop_at_first = stop_at_first
        self.first_step_seconds: float | None = None
        self.steps: list[dict[str, float]] = []
        self.durations: list[list[float]] = []
        self._began = self._ended = time.perf_counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.first_step_seconds is None:
            self.first_step_seconds = time.time() - self.started
            if self.stop_at_first:
                raise FirstStepReached
        self._began = time.perf_counter()
        self.durations.append((batch.audio_len / SAMPLE_RATE).tolist())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = time.perf_counter()
        step = {"waited": self._began - self._ended, "seconds": now - self._began}
        padded = batch.audio.shape[0] * batch.audio.shape[1] / SAMPLE_RATE
        self.steps.append({**step, "real": sum(self.durations[-1]), "padded": padded, "loss": float(outputs["loss"])})
        self._ended = time.perf_counter()


def train(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure some training steps: seconds of audio (without padding) per second, memory, and shares of the time."""
    cfg = _compose(job)
    times = StepTimes(started)
    stages = [StageTimes(WARM_UP)] if job.stages else []
    pl.seed_everything(job.seed, verbose=False)
    precision = str(cfg.trainer.get("precision", 32))
    multiplied = torch.bfloat16 if precision.startswith("bf16") else torch.float32
    arguments: dict[str, Any] = {**TRAINER, **QUIET, "precision": precision, "max_steps": WARM_UP + job.steps}
    trainer = pl.Trainer(**arguments, callbacks=[times, *stages])
    model = _model_class(implementation)(cfg=cfg.model, trainer=trainer)
    peaks = [matrix_peak(multiplied)] if job.matrix_peak else []
    trainer.fit(model)
    peaks += [matrix_peak(multiplied)] if job.matrix_peak else []
    timed = times.steps[WARM_UP:]
    waited = sum(step["waited"] for step in timed)
    seconds = waited + sum(step["seconds"] for step in timed)
    real = sum(step["real"] for step in timed)
    settings: dict[str, Any] = OmegaConf.to_container(cfg.model, resolve=True)  # type: ignore[assignment]
    flops = sum(training_flops(settings, batch) for batch in times.durations[WARM_UP:]) / seconds
    peak = max(peaks, default=None)
    return {
        "rate": real / seconds,
        "waiting_share": waited / seconds,
        "padding_efficiency": real / sum(step["padded"] for step in timed),
        "flops_per_second": flops,
        "matrix_peak": peak,
        "peak_share": flops / peak if peak else None,
        "stages": stages[0].seconds_per_step() if stages else None,
        "first_step_seconds": times.first_step_seconds,
        "peak_gigabytes": peak_bytes() / 1e9,
        "steps": timed,
    }


def first_step(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure the seconds from the start of the process to the first training step."""
    times = StepTimes(started, stop_at_first=True)
    cfg = _compose(job)
    pl.seed_everything(job.seed, verbose=False)
    trainer = pl.Trainer(**TRAINER, **QUIET, max_steps=1, callbacks=[times])
    model = _model_class(implementation)(cfg=cfg.model, trainer=trainer)
    with contextlib.suppress(FirstStepReached):
        trainer.fit(model)
    return {"first_step_seconds": times.first_step_seconds}


def data(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure the items per second of the data loader alone, over whole epochs."""
    loader = _with_training_data(implementation, job).train_dataloader()
    next(iter(loader))
    items, began = 0, time.perf_counter()
    while time.perf_counter() - began < job.steps:
        items += sum(len(batch.audio) for batch in loader)
    return {"items_per_second": items / (time.perf_counter() - began)}


def save(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure the seconds of saving in a run with a validation at every step: best, last and `.nemo`."""
    cfg = _compose(job)
    with tempfile.TemporaryDirectory() as folder:
        cfg.exp_manager.update({"exp_dir": folder, "create_tensorboard_logger": False})
        pl.seed_everything(job.seed, verbose=False)
        arguments = {**TRAINER, "max_steps": job.steps, "limit_val_batches": 1, "val_check_interval": 1}
        trainer = _checkpointing_trainer(implementation, cfg, arguments)
        callback = trainer.checkpoint_callback
        assert isinstance(callback, ModelCheckpoint)
        spent = _time_of(callback, "on_train_batch_end", "on_train_epoch_end", "on_validation_end", "on_train_end")
        trainer.fit(_model_class(implementation)(cfg=cfg.model, trainer=trainer))
        files = sorted(path.suffix for path in Path(folder).rglob("*.*") if path.suffix in (".ckpt", ".nemo"))
    if files != [".ckpt", ".ckpt", ".nemo"]:
        raise RuntimeError(f"the run left {files}; expected the best, the last and a .nemo archive")
    return {"saving_seconds": sum(spent)}


def ablation(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure the seconds of a step of `fast`, and without each of its parts."""
    from benchmarks.ablation import seconds_of_steps  # imports nest_ssl, which NeMo's environment does not have

    model = _with_training_data(implementation, job)
    batches = list(model.train_dataloader())[WARM_UP:]
    seconds = seconds_of_steps(model, batches, rounds=job.steps)
    return {"seconds": seconds.pop(None), "without": seconds}


def watching(implementation: str, job: Job, started: float) -> dict[str, Any]:
    """Measure the time that watching adds to steps and validations, in one thread: waiting threads take time."""
    from benchmarks.watching import costs, run_watched  # imports nest_ssl

    torch.set_num_threads(1)
    pl.seed_everything(job.seed, verbose=False)
    watchers = run_watched(_compose(job), job.steps)
    return costs(watchers.steps, watchers.validations)


KINDS: dict[str, Callable[[str, Job, float], dict[str, Any]]] = {
    "train": train,
    "first_step": first_step,
    "data": data,
    "save": save,
    "ablation": ablation,
    "watching": watching,
}


def matrix_peak(dtype: torch.dtype, size: int = 2048, products: int = 12) -> float:
    """Measure the floating-point operations per second of large products, with the fastest library that torch has.

    For float32, `mm` uses MKL where torch has it, and a convolution with a kernel of one pixel uses oneDNN.
    """
    left, right = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
    image, kernel = left.t().reshape(1, size, size, 1), right.reshape(size, size, 1, 1)
    ways = (lambda: torch.mm(left, right), lambda: torch.nn.functional.conv2d(image, kernel))
    return max(2 * size**3 / _seconds(way, products) for way in ways)


def _seconds(call: Callable[[], object], times: int) -> float:
    """Return the mean seconds of a call, after one that is not counted."""
    call()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def _compose(job: Job) -> DictConfig:
    config = Path(job.config)
    parts = [OmegaConf.load(config), OmegaConf.load(config.parent / "size" / f"{job.size}.yaml")]
    return OmegaConf.merge(*parts, OmegaConf.from_dotlist(list(job.overrides)))  # type: ignore[return-value]


def _with_training_data(implementation: str, job: Job) -> Any:
    """Return a model whose training data can be read without a trainer."""
    cfg = _compose(job)
    pl.seed_everything(job.seed, verbose=False)
    model = _model_class(implementation)(cfg=cfg.model)
    if implementation == "nest_ssl":  # NeMo's constructor has already made the loader
        model.setup_training_data(OmegaConf.to_container(cfg.model.train_ds, resolve=True))
    return model


def _model_class(implementation: str) -> Any:
    """Return the class of the same name from either implementation."""
    if implementation == "nemo":
        from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
        from nemo.utils import logging

        logging.setLevel(logging.ERROR)
        return EncDecDenoiseMaskedTokenPredModel
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel as OurModel

    return OurModel


def _checkpointing_trainer(implementation: str, cfg: DictConfig, arguments: dict[str, Any]) -> pl.Trainer:
    """Return a trainer with the checkpoints that the configuration's `exp_manager` asks for."""
    if implementation == "nemo":
        from nemo.utils.exp_manager import exp_manager

        trainer = pl.Trainer(**arguments, enable_checkpointing=False)
        exp_manager(trainer, cfg.exp_manager)
        return trainer
    from nest_ssl.training.experiment import plan_experiment

    experiment = plan_experiment(OmegaConf.to_container(cfg.exp_manager, resolve=True), arguments)  # type: ignore[arg-type]
    return pl.Trainer(**arguments, callbacks=experiment.callbacks(cfg), plugins=[experiment.files()])


def _time_of(callback: pl.Callback, *hooks: str) -> list[float]:
    """Return a list to which each call of these hooks appends its seconds."""
    seconds: list[float] = []

    def timed(hook: Callable[..., None]) -> Callable[..., None]:
        def on_the_clock(*args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            hook(*args, **kwargs)
            seconds.append(time.perf_counter() - began)

        return on_the_clock

    for name in hooks:
        setattr(callback, name, timed(getattr(callback, name)))
    return seconds
