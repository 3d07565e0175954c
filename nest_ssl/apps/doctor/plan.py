"""The run that a configuration would start on this machine: adjusted values, opened data, and checks of both."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.profilers import PassThroughProfiler
from omegaconf import DictConfig, OmegaConf
from rich.filesize import decimal
from torch.utils.data import DataLoader

from nest_ssl.apps.doctor import CheckResult, State
from nest_ssl.apps.doctor.machine import Facts
from nest_ssl.config.machine import FSDP, Adjustment, adjust, apply, describe, device_count
from nest_ssl.config.schema import CheckpointSettings
from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.data.inspection.bandwidth import estimate_narrow_band
from nest_ssl.data.manifest import Manifest, manifests_in
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.model.size import check_size, part_bytes
from nest_ssl.training.checks import CONFIGURATION_CHECKS, check_model
from nest_ssl.training.datamodule import NestDataModule
from nest_ssl.training.experiment import DEFAULT_FOLDER, plan_experiment
from nest_ssl.training.trainer import build_trainer

_DUMMY = "data/dummy_ssl"
_MOST_FILES = 64  # per manifest, for the checks of audio files
_TRAINED = ("encoder", "decoder")
_MOMENTS = 2  # of Adam, each as large as the weights
_SIGNALS = 3  # in a batch: clean, noise, mixed
_BYTES_PER_SAMPLE = 4
_BLOCK, _MOST_WRITTEN, _MOST_SECONDS = 2**22, 2**26, 1.0  # to measure how fast a disk is written
_SLOW_TO_WRITE = 50e6  # bytes per second: a checkpoint of Large then takes half a minute


@dataclass(frozen=True)
class RunPlan:
    """The run of a configuration: `problems` would end it before its first step, `warnings` are its own."""

    cfg: DictConfig
    settings: dict[str, Any]  # its `model` node
    adjustments: list[Adjustment]
    gpu: bool
    processes: int
    folder: Path  # of the run's files
    weight_bytes: int
    checkpoint_bytes: int  # of all checkpoints together, at most
    manifests: list[Manifest]
    problems: list[CheckResult]
    warnings: list[str]

    @property
    def train_ds(self) -> dict[str, Any]:
        return self.settings.get("train_ds") or {}

    def can_use(self, part: Literal["model", "data"]) -> bool:
        return all(finding.name != part for finding in self.problems)

    def durations(self) -> np.ndarray:
        """Return the seconds of every utterance of the training data whose manifest gives a duration."""
        least = self.train_ds.get("min_audio_len_secs") or 1.0
        known = [manifest.durations[~np.isnan(manifest.durations)] for manifest in self.manifests]
        return np.maximum(np.concatenate([*known, np.empty(0)]), least)


def make_plan(cfg: DictConfig, facts: Facts, command: Sequence[str] = ("nest-ssl train",)) -> RunPlan:
    """Do what a run of this command does before its first step, except slow parts and writing."""
    adjustments = adjust(cfg, facts.machine)
    apply(cfg, adjustments)
    settings: dict[str, Any] = OmegaConf.to_container(cfg.model)  # type: ignore[assignment]
    problems: list[CheckResult] = []
    folder, checkpoints = Path(DEFAULT_FOLDER), CheckpointSettings()
    with _noted(problems, "run"):
        build_trainer(cfg, [], None, PassThroughProfiler())
        if cfg.get("exp_manager") is not None:
            experiment = plan_experiment(OmegaConf.to_container(cfg.exp_manager), cfg.get("trainer") or {})  # type: ignore[arg-type]
            folder, checkpoints = experiment.folder, experiment.settings.checkpoint_callback_params
            experiment.checkpoint_to_resume()
    with _noted(problems, "model"):
        check_size(settings, facts.memory, "this machine has")
        if not settings.get("optim"):
            raise ConfigError("model.optim: missing; give at least model.optim.name and model.optim.lr")
    data = NestDataModule(settings, settings.get("numerics") or "exact")
    with _noted(problems, "data"):
        data.setup("fit")
    if data.train_loader is None:  # so the validation data was not opened
        with _noted(problems, "data"):
            data.setup("validate")
    warnings: list[str] = []
    for check in CONFIGURATION_CHECKS:
        with _noted(problems, "model" if check is check_model else "run"):
            warnings.extend(check(cfg, command))
    parts = (name for name in _TRAINED if isinstance(settings.get(name), dict))
    weights = sum(part_bytes(name, settings[name]) for name in parts)
    gpu = bool(facts.gpus) and str(OmegaConf.select(cfg, "trainer.accelerator") or "auto") != "cpu"
    return RunPlan(
        cfg=cfg,
        settings=settings,
        adjustments=adjustments,
        gpu=gpu,
        processes=device_count(OmegaConf.select(cfg, "trainer.devices"), len(facts.gpus) if gpu else 1),
        folder=folder.absolute(),
        weight_bytes=weights,
        checkpoint_bytes=_checkpoint_bytes(weights, checkpoints),
        manifests=manifests_in(data.train_loader.dataset) if data.train_loader else [],
        problems=problems,
        warnings=warnings,
    )


def load_train(settings: Mapping[str, Any], **changes: Any) -> DataLoader[Any]:
    """Build the loader of `train_ds` with some options changed."""
    data = NestDataModule(settings, settings.get("numerics") or "exact")
    data.setup_training_data({**settings["train_ds"], **changes})
    assert data.train_loader is not None
    return data.train_loader


@contextlib.contextmanager
def _noted(problems: list[CheckResult], name: str) -> Iterator[None]:
    """Turn an error of the block into a finding with the same message, unless there is one already."""
    try:
        yield
    except NestError as error:
        if any(problem.found == str(error) for problem in problems):
            return
        advice = "nest-ssl data make-dummy makes this corpus, or give your own: model.train_ds.manifest_filepath=..."
        missing_dummy = name == "data" and _DUMMY in str(error)
        problems.append(CheckResult(name, "problem", str(error), advice if missing_dummy else ""))


def _checkpoint_bytes(weights: int, checkpoints: CheckpointSettings) -> int:
    """Return the bytes of the best checkpoints, the last, one being written, and a .nemo file without moments."""
    kept = max(0, checkpoints.save_top_k) + 2
    return kept * (1 + _MOMENTS) * weights + 2 * weights


def check_plan(plan: RunPlan, facts: Facts) -> list[CheckResult]:
    """Return what a run would adjust or refuse, and settings that are slow or risky on this machine."""
    adjusted = [CheckResult("adjusted", "note", line) for line in describe(plan.adjustments)]
    warnings = [CheckResult("run", "warning", line) for line in plan.warnings]
    checks = (_check_data, _check_bandwidth, _check_processes, check_shared_memory)
    return [*plan.problems, *adjusted, *warnings, *(finding for check in checks for finding in check(plan, facts))]


def _check_data(plan: RunPlan, facts: Facts) -> Iterator[CheckResult]:
    durations = plan.durations()
    if not len(durations):
        return
    lengths = f"{durations.min():.3g} to {durations.max():.3g} s, median {np.median(durations):.3g} s"
    yield CheckResult("data", "ok", f"{len(durations):,} utterances, {durations.sum() / 3600:.3g} hours: {lengths}")
    if plan.train_ds.get("is_tarred"):
        return
    files = []
    for manifest in plan.manifests:
        for index in np.linspace(0, len(manifest) - 1, num=min(_MOST_FILES, len(manifest)), dtype=int):
            file = manifest[int(index)].audio_file
            files.extend([file] if isinstance(file, str) else file)
    missing = [name for name in files if not Path(name).is_file()]
    if missing:
        state: State = "problem" if len(missing) == len(files) else "warning"
        found = f"{len(missing)} of {len(files)} audio files that were looked for do not exist, such as {missing[0]}"
        advice = "nest-ssl data check names all of them; paths in a manifest are relative to its folder"
        yield CheckResult("data", state, found, advice)


def _check_bandwidth(plan: RunPlan, facts: Facts) -> Iterator[CheckResult]:
    if plan.train_ds.get("is_tarred") or not plan.manifests:
        return
    rate = sample_rate_of(plan.train_ds, plan.settings)
    narrow = estimate_narrow_band(plan.manifests, rate, _MOST_FILES)
    if narrow.lines > 1:
        found = f"an estimate from {narrow.measured} files: {narrow}"
        advice = "nest-ssl data check with --min-bandwidth names all of them, and leaves them out with --write-clean"
        yield CheckResult("bandwidth", "warning", found, advice)


def _check_processes(plan: RunPlan, facts: Facts) -> Iterator[CheckResult]:
    workers = plan.train_ds.get("num_workers") or 0
    if workers > facts.usable_cores:
        found = f"model.train_ds.num_workers={workers} on {facts.usable_cores:g} cores"
        advice = f"More processes than cores: model.train_ds.num_workers={max(1, int(facts.usable_cores) - 1)} at most"
        yield CheckResult("workers", "warning", found, advice)
    if facts.system == "Windows" and plan.processes > 1 and OmegaConf.select(plan.cfg, "trainer.strategy") == FSDP:
        found = "trainer.strategy=fsdp needs NCCL, which Windows does not have"
        yield CheckResult("strategy", "problem", found, "trainer.strategy=auto")


def check_shared_memory(plan: RunPlan, facts: Facts, **changes: Any) -> Iterator[CheckResult]:
    """Check whether the batches of all workers fit into shared memory; `changes` are options of `train_ds`."""
    data = {**plan.train_ds, **changes}
    workers = data.get("num_workers") or 0
    if facts.shared_memory is None or not workers:
        return
    needed = _shared_bytes(plan, data, workers)
    count = workers if plan.processes == 1 else f"{plan.processes} x {workers}"
    found = f"/dev/shm has {decimal(facts.shared_memory)} free, {count} workers fill up to {decimal(needed)}"
    gigabyte = max(1, math.ceil(2 * needed / 2**30))
    advice = f"docker run --shm-size={gigabyte}g (or --ipc=host), fewer workers, or model.train_ds.num_workers=0"
    yield CheckResult.warn_if(needed > facts.shared_memory, "shared memory", found, advice)


def workers_with_room(plan: RunPlan, facts: Facts, most: int, **changes: Any) -> int:
    """Return how many workers, up to `most`, fit into shared memory; with more, a worker dies with a bus error."""
    data = {**plan.train_ds, **changes}
    free = math.inf if facts.shared_memory is None else facts.shared_memory
    return next((count for count in range(most, 0, -1) if _shared_bytes(plan, data, count) <= free), 0)


def _shared_bytes(plan: RunPlan, data: dict[str, Any], workers: int) -> int:
    """Return the shared memory that batches fill: the prefetched ones of each worker, and the one in use."""
    durations = plan.durations()
    longest = float(durations.max()) if len(durations) else float(data.get("max_duration") or 20)
    seconds = data.get("batch_duration") or (data.get("batch_size") or 1) * longest
    batch = _SIGNALS * _BYTES_PER_SAMPLE * seconds * sample_rate_of(data, plan.settings)
    return int(plan.processes * batch * (workers * (data.get("prefetch_factor") or 2) + 1))


def check_run_folder(folder: Path, needed: int) -> Iterator[CheckResult]:
    """Check speed and space for `needed` bytes of checkpoints in a folder, which need not exist yet."""
    folder = folder.absolute()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        speed, free = write_speed(parent), shutil.disk_usage(parent).free
    except OSError as error:
        advice = "Set exp_manager.exp_dir to a folder that you may write to"
        yield CheckResult("run's disk", "problem", f"{parent}: {error.strerror or error}", advice)
        return
    found = f"writes {speed / 1e6:,.0f} MB/s ({parent})"
    advice = "Checkpoints will take long: exp_manager.checkpoint_callback_params.async_save=true"
    yield CheckResult.warn_if(speed < _SLOW_TO_WRITE, "run's disk", found, advice)
    found = f"{decimal(free)} free, checkpoints take up to {decimal(needed)}"
    advice = "Free some space, set exp_manager.exp_dir, or exp_manager.checkpoint_callback_params.save_top_k"
    yield CheckResult.warn_if(free < needed, "space", found, advice)


def write_speed(folder: Path) -> float:
    """Write a temporary file through to the disk; return the bytes per second."""
    block = os.urandom(_BLOCK)  # zeros would be compressed by some disks
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".nest_ssl-doctor-") as file:
        began, written = time.perf_counter(), 0
        while written < _MOST_WRITTEN and time.perf_counter() - began < _MOST_SECONDS:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written += _BLOCK
        return written / max(time.perf_counter() - began, 1e-9)
