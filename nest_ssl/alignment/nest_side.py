"""Train our model and record what it does, with the recorder that watches NeMo: `train_with_saver.py`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import nest_ssl
from nest_ssl.alignment.recorder import Recorder, RecorderOptions, RecordingError
from nest_ssl.errors import ConfigError
from nest_ssl.training import run

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, config_dir: Path = Path("config")) -> int:
    """Train as the command line says, and record the steps that `save_steps` names; the exit code."""
    return run.main(argv, config_dir, program="train_with_saver.py", run=record)


def record(cfg: DictConfig, *, command: Sequence[str]) -> None:
    """One run whose only result is its recording: no experiment folder, no checkpoints."""
    cfg.exp_manager = None
    cfg.trainer.update(logger=False, enable_checkpointing=False)
    try:
        options = RecorderOptions.from_config(cfg)
        model_config = OmegaConf.to_container(cfg.model, resolve=True)
        recorder = Recorder(options, "nest_ssl", {"nest_ssl": nest_ssl.__version__}, model_config)
        run.train(cfg, callbacks=[recorder], command=command)
    except RecordingError as error:
        raise ConfigError(str(error)) from error
    _log.info("recorded in %s", options.output_dir)


if __name__ == "__main__":
    sys.exit(main())
