"""Tell whether data or compute limits the speed of a run, and which setting would help on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.config.machine import Machine
from nest_ssl.training.callbacks.throughput import Throughput, TimeBreakdown

_log = logging.getLogger(__name__)

_FEWEST_BATCHES, _FEWEST_SECONDS = 20, 20.0  # a shorter run is too short to judge
_NOTICE_SECONDS = 60.0  # of training, for a notice during the run
_MUCH_WAITING = 0.10  # of the training time: loading then costs more than any other setting gains
_MUCH_BETWEEN = 0.05
_MUCH_VALIDATION = 0.20  # of the whole run
_MUCH_FREE_MEMORY = 0.5
_MUCH_PADDING = 0.6  # padding efficiency below this
_USUAL_BATCH = 8
_MOST_KNOBS = 2


@dataclass(frozen=True)
class Setup:
    """The settings and the hardware that advice depends on."""

    gpu: bool
    cores: int  # for one rank
    processes: int = 1
    bf16: bool = False  # on the GPU
    memory_used: float | None = None  # the largest share of the GPU's memory that was in use
    exact: bool = True
    precision: str = "32-true"
    batch_size: int | None = None
    num_workers: int = 0
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    pin_memory: bool = True
    tarred: bool = False
    log_every_n_steps: int = 50
    val_check_interval: int | float = 1.0
    check_val_every_n_epoch: int | None = 1

    @classmethod
    def of(cls, cfg: DictConfig, trainer: Trainer, machine: Machine) -> Setup:
        """Return the setup of a run that trains or has just ended."""
        data: dict[str, Any] = OmegaConf.to_container(cfg.model.train_ds)  # type: ignore[assignment]
        device = trainer.strategy.root_device
        gpu = device.type == "cuda"
        on_this_machine = max(1, trainer.world_size // max(1, trainer.num_nodes))
        return cls(
            gpu=gpu,
            cores=max(1, (os.cpu_count() or 1) // on_this_machine),
            processes=trainer.world_size,
            bf16=machine.gpu_bf16,
            memory_used=_memory_used(device) if gpu else None,
            exact=cfg.model.get("numerics", "exact") == "exact",
            precision=str(trainer.precision),
            batch_size=data.get("batch_size"),
            num_workers=data.get("num_workers") or 0,
            persistent_workers=bool(data.get("persistent_workers")),
            prefetch_factor=data.get("prefetch_factor"),
            pin_memory=bool(data.get("pin_memory")),
            tarred=bool(data.get("is_tarred") or data.get("use_lhotse")),
            log_every_n_steps=trainer.log_every_n_steps,  # type: ignore[attr-defined]
            val_check_interval=trainer.val_check_interval,
            check_val_every_n_epoch=trainer.check_val_every_n_epoch,
        )


class BottleneckNotice(Callback):
    """Logs one notice during the run, after the first minute of training that often waited for data."""

    def __init__(self, throughput: Throughput, cfg: DictConfig, machine: Machine) -> None:
        self.throughput = throughput
        self._cfg, self._machine = cfg, machine
        self._since = throughput.measured()
        self._notified = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._notified or not trainer.is_global_zero:
            return
        total = self.throughput.measured()
        seconds, batches = total.training_seconds - self._since.training_seconds, total.batches - self._since.batches
        if seconds < _NOTICE_SECONDS or batches < _FEWEST_BATCHES:
            return
        notice = data_notice(total.since(self._since), Setup.of(self._cfg, trainer, self._machine))
        self._since, self._notified = total, notice is not None
        if notice:
            _log.info(notice)


def log_advice(throughput: Throughput, cfg: DictConfig, trainer: Trainer, machine: Machine) -> None:
    """Log what limited the speed of a run that has ended, and what would make the next one faster."""
    for line in advice(throughput.measured(), Setup.of(cfg, trainer, machine)):
        _log.info(line)


def advice(spent: TimeBreakdown, setup: Setup) -> list[str]:
    """Return at most three lines: the bottleneck, then the settings worth changing; none if the run was too short.

    `spent` covers all ranks: the batches of one of them, and the audio of all.
    """
    if spent.batches < _FEWEST_BATCHES or spent.training_seconds < _FEWEST_SECONDS:
        return []
    knobs = list(_knobs(spent, setup))[:_MOST_KNOBS]
    return [_verdict(spent), *(f"to speed up: {knob}" for knob in knobs)]


def data_notice(spent: TimeBreakdown, setup: Setup) -> str | None:
    """Return one line with the setting to change if training often waits for its data; else None."""
    if not _data_is_slow(spent):
        return None
    share, seconds = spent.data_wait_share, spent.training_seconds
    what = f"data is the bottleneck: {share:.0%} of the last {seconds:.0f} s went into waiting for it"
    knob = next(_data_knobs(spent, setup), None)
    return f"{what}; to speed up: {knob}" if knob else what


def _verdict(spent: TimeBreakdown) -> str:
    bottleneck = "data" if _data_is_slow(spent) else "compute"
    if _validation_share(spent) > 0.5:
        bottleneck = "validation"
    return (
        f"speed: {spent.audio_seconds_per_second:.3g} s of audio a second, "
        f"padding efficiency {spent.padding_efficiency:.0%}, {spent.data_wait_share:.0%} of the time waiting for data: "
        f"{bottleneck} is the bottleneck"
    )


def _knobs(spent: TimeBreakdown, setup: Setup) -> Iterator[str]:
    """Yield the settings that would help here, the most useful first."""
    validation = _validation_share(spent)
    if validation > 0.5:
        yield _less_validation(validation, setup)
    if _data_is_slow(spent):
        yield from _data_knobs(spent, setup)
    yield from _compute_knobs(spent, setup)
    if _MUCH_VALIDATION < validation <= 0.5:
        yield _less_validation(validation, setup)
    between = spent.between / spent.training_seconds
    if between > _MUCH_BETWEEN and setup.log_every_n_steps < 50:
        yield f"trainer.log_every_n_steps=50 ({between:.0%} of the time went between steps, into logging and the like)"


def _data_knobs(spent: TimeBreakdown, setup: Setup) -> Iterator[str]:
    node = "model.train_ds"
    most = min(8, setup.cores - 1) if setup.gpu else max(1, setup.cores // 4)  # without a GPU, steps need the cores
    if setup.num_workers == 0:
        if setup.cores > 1:
            yield f"{node}.num_workers={max(1, most)} {node}.persistent_workers=true (load while a step computes)"
        return
    if not setup.persistent_workers and spent.starting > spent.waiting:
        yield f"{node}.persistent_workers=true (most of the waiting was at the start of epochs)"
    if setup.num_workers < most:
        yield f"{node}.num_workers={min(most, 2 * setup.num_workers)} (this machine has {setup.cores} cores a process)"
    elif (setup.prefetch_factor or 2) < 4:
        yield f"{node}.prefetch_factor=4 (long clips then delay a step less often)"
    else:
        yield "keep the audio on a local SSD, at the sample rate of the model (no resampling)"
        if not setup.tarred:
            yield "nest-ssl data tar, then model.train_ds.is_tarred=true (few large files instead of many small ones)"


def _compute_knobs(spent: TimeBreakdown, setup: Setup) -> Iterator[str]:
    if setup.exact:
        padding = 1 - spent.padding_efficiency
        reason = f"no work on padding, {padding:.0%} of the batches here" if padding > 0.1 else "the same mathematics"
        yield f"model.numerics=fast ({reason}; NeMo's results, but not to the last bit)"
    if setup.batch_size and spent.padding_efficiency < _MUCH_PADDING and (setup.exact or setup.gpu):
        seconds = max(1, round(spent.padded_seconds / (spent.batches * setup.processes)))
        knob = f"model.train_ds.batch_duration={seconds} model.train_ds.batch_size=null"
        yield f"{knob} (batches of similar lengths, as many seconds with their padding as now)"
    if setup.gpu and setup.precision == "32-true":
        yield f"trainer.precision={'bf16' if setup.bf16 else '16'}-mixed (this GPU multiplies it faster)"
    if setup.gpu and setup.memory_used is not None and setup.memory_used < _MUCH_FREE_MEMORY and setup.batch_size:
        larger = 2 * setup.batch_size
        yield f"model.train_ds.batch_size={larger} ({1 - setup.memory_used:.0%} of the GPU's memory were never used)"
    elif not setup.gpu and setup.batch_size and setup.batch_size < _USUAL_BATCH:
        yield f"model.train_ds.batch_size={_USUAL_BATCH} (updating the weights costs the same whatever the batch)"
    if setup.gpu and not setup.pin_memory:
        yield "model.train_ds.pin_memory=true (copies to the GPU then run beside computation)"


def _less_validation(share: float, setup: Setup) -> str:
    times = 2 if share <= 0.5 else 4
    if isinstance(setup.val_check_interval, int) or setup.check_val_every_n_epoch is None:
        knob = f"trainer.val_check_interval={round(times * setup.val_check_interval)}"
    elif setup.val_check_interval < 1:
        knob = f"trainer.val_check_interval={min(1.0, times * setup.val_check_interval)}"
    else:
        knob = f"trainer.check_val_every_n_epoch={times * setup.check_val_every_n_epoch}"
    return f"{knob} (validation and its checkpoints took {share:.0%} of the run)"


def _data_is_slow(spent: TimeBreakdown) -> bool:
    return spent.data_wait_share > _MUCH_WAITING


def _validation_share(spent: TimeBreakdown) -> float:
    return spent.validating / max(spent.training_seconds + spent.validating, 1e-9)


def _memory_used(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory
