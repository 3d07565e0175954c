"""What would spoil a run, found before its first step and before anything is written.

A check is a small function: it raises ConfigError to refuse the run, or yields warnings of one line each. Those of
`CONFIGURATION_CHECKS` see the complete configuration and the command, before the model is built; those of
`DATA_CHECKS` see the data loaders, in every process, before the run's folder is made. They must cost next to nothing:
a manifest of a million lines is ready in two seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig

from nest_ssl.training.checks.data_warnings import check_bandwidth, check_overlap
from nest_ssl.training.checks.run_length import check_length
from nest_ssl.training.checks.start_checks import check_generated_data, check_model, check_validation

_log = logging.getLogger(__name__)
ConfigurationCheck = Callable[[DictConfig, Sequence[str]], Iterable[str]]
DataCheck = Callable[[DictConfig, Trainer, LightningModule], Iterable[str]]

CONFIGURATION_CHECKS: Sequence[ConfigurationCheck] = (check_model, check_generated_data, check_validation)
DATA_CHECKS: Sequence[DataCheck] = (check_overlap, check_bandwidth, check_length)


def check_configuration(cfg: DictConfig, command: Sequence[str]) -> None:
    """Refuse a configuration whose run would be spoiled, and warn of what may spoil it; `command` is what was typed."""
    _warn([line for check in CONFIGURATION_CHECKS for line in check(cfg, command)])


class DataPreflight(Callback):
    """Does the same with the data, once it is loaded and the number of processes is known."""

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _warn([line for check in DATA_CHECKS for line in check(self._cfg, trainer, pl_module)])


@rank_zero_only
def _warn(lines: Sequence[str]) -> None:
    for line in dict.fromkeys(lines):
        _log.warning(line)
