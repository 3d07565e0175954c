"""Run NeMo and nest_ssl with one configuration, record both, and compare the recordings."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.apps.alignment.compare import MANIFESTS, Comparison, compare
from nest_ssl.apps.alignment.compare_command import save_comparison
from nest_ssl.apps.alignment.recorder.callback import parse_steps, require_exact
from nest_ssl.apps.alignment.recorder.files import RecordingError
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.replay import replay
from nest_ssl.apps.alignment.report import write_report
from nest_ssl.apps.alignment.sections import Tolerance
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.config.machine import Machine, fit_to_machine
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.data.paths import resolve_path, split_paths
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.folder_lock import LOCK, lock_folder

_log = logging.getLogger(__name__)
_NEMO_SIDE = Path(__file__).with_name("nemo_side.py")
_DATASETS = ("train_ds", "validation_ds")
_CONFIG = "config.yaml"
_MARK = "# made by nest-ssl align, which may replace everything that it wrote into this folder\n"
_OWN_FILES = ("nemo", "nest", "nemo.log", "nest.log", "report.html", "comparison.json", "dummy_ssl")


def align(
    command: CommandLine,
    output: Path,
    nemo_python: str,
    *,
    steps: int,
    save_steps: str | None,
    seed: int,
    replayed: bool,
    tolerance: Tolerance,
) -> Comparison:
    """Make both recordings, their comparison and the report, all in `output`; see `nest-ssl align --help`."""
    with lock_folder(output, "wait for its end, or give a new folder with --output"):
        cfg = load_config(command)
        cfg.exp_manager, cfg.seed = None, seed
        cfg.trainer.update(max_steps=steps, max_epochs=-1, enable_progress_bar=False)
        try:
            require_exact(cfg.model)
            cfg.save_steps = _steps_to_record(save_steps, steps, replayed)
        except RecordingError as error:
            raise ConfigError(str(error)) from error
        _write_config(cfg, output)
        nemo = _run("NeMo", [nemo_python, str(_NEMO_SIDE)], output / "nemo")
        if replayed:
            nest = _replay(nemo, output / "nest")
        else:
            nest = _run("nest_ssl", [sys.executable, "-m", "nest_ssl.apps.alignment.nest_side"], output / "nest")
        _log.info("comparing %d steps", len(nest.steps))
        comparison = compare(nemo, nest, nest.steps, tolerance)
        write_report(comparison, output / "report.html")
        save_comparison(comparison, output / "comparison.json")
    return comparison


def _steps_to_record(save_steps: str | None, steps: int, replayed: bool) -> list[int]:
    """Return the steps to record: by default the first and the last; for a replay, which needs earlier weights, two."""
    last = steps - 1
    chosen = parse_steps(save_steps or {0, min(1, last) if replayed else last}, "--save-steps")
    if chosen[-1] > last:
        raise ConfigError(f"--save-steps: step {chosen[-1]} is not among the {steps} steps, which begin with 0")
    return list(chosen)


def _write_config(cfg: DictConfig, output: Path) -> None:
    """Write `config.yaml`, the complete configuration of both sides, adjusted to this machine."""
    _clear(output)
    fit_to_machine(cfg, Machine.here())
    (output / _CONFIG).write_text(_MARK, encoding="utf-8")  # first of all, because it marks the folder as ours
    _settle_manifests(cfg, output)
    (output / _CONFIG).write_text(_MARK + OmegaConf.to_yaml(cfg), encoding="utf-8")


def _clear(output: Path) -> None:
    """Remove an earlier alignment; refuse a folder with other files."""
    if any(path.name != LOCK for path in output.iterdir()) and not _is_alignment(output):
        raise NestError(f"{output}: holds other files; give a new folder with --output")
    for name in _OWN_FILES:
        path = output / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _is_alignment(output: Path) -> bool:
    """Return whether this command made the folder; other projects may have a `config.yaml` and a folder `nemo` too."""
    try:
        with (output / _CONFIG).open(encoding="utf-8") as file:
            return file.readline() == _MARK
    except (OSError, ValueError):
        return False


def _settle_manifests(cfg: DictConfig, output: Path) -> None:
    """Make paths absolute, because the two sides resolve relative ones differently; make the dummy data if needed."""
    train = cfg.model.train_ds
    if train.manifest_filepath == "data/dummy_ssl/train_manifest.json" and not Path(train.manifest_filepath).is_file():
        corpus = make_dummy_corpus(output / "dummy_ssl")
        _log.info("made the dummy data in %s", output / "dummy_ssl")
        train.manifest_filepath = str(corpus.train_manifest.absolute())
        cfg.model.validation_ds.manifest_filepath = str(corpus.val_manifest.absolute())
        return
    for dataset in (cfg.model.get(name) for name in _DATASETS):
        for key in MANIFESTS:
            if dataset is not None and dataset.get(key) is not None:
                paths = [str(Path(resolve_path(path)).absolute()) for path in split_paths(dataset[key])]
                dataset[key] = paths if len(paths) > 1 else paths[0]


def _replay(nemo: Recording, folder: Path) -> Recording:
    """Replay all steps whose weights before the step were recorded, with the step before it or as initial weights."""
    steps = [step for step in nemo.steps if step == 0 or step - 1 in nemo.steps]
    for step in nemo.steps:
        if step not in steps:
            _log.info("step %d is not replayed: step %d, whose weights it began with, was not recorded", step, step - 1)
    started = time.monotonic()
    recording = replay(nemo, steps, folder)
    _log.info("nest_ssl replayed %d steps in %.0f s", len(steps), time.monotonic() - started)
    return recording


def _run(name: str, program: list[str], recording: Path) -> Recording:
    """Train and record in a separate process; its output goes to a log, the recorder's messages to the terminal."""
    arguments = ["--config-path", str(recording.parent), "--config-name", "config", f"output_dir={recording}"]
    log = recording.with_suffix(".log")
    started = time.monotonic()
    _log.info("%s is training; its messages go to %s", name, log)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*program, *arguments],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stdout is not None
        reason = "no message"  # the last line that is not empty
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                reason = line.strip().removeprefix("error: ") or reason
                if line.startswith(("recording ", "recorded step")):
                    _log.info("%s: %s", name, line.strip())
            process.wait()
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise NestError(f"{name} failed: {reason}; all of it is in {log}")
    _log.info("%s is done in %.0f s", name, time.monotonic() - started)
    return Recording(recording)


def _environment() -> Mapping[str, str]:
    """Set the same number of threads for both sides, because it decides the order of sums; and find our package."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": str(torch.get_num_threads()), **os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"}
