"""Checks of a complete configuration before a run starts (preflight.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nest_ssl.models.agreement import check_agreement
from nest_ssl.models.frame_rate import check_frame_rate
from nest_ssl.models.parts import check_parts


def check_model(cfg: DictConfig) -> Iterator[str]:
    """The parts of the model agree, above all on how many feature frames make a target."""
    settings: Any = OmegaConf.to_container(cfg.model)
    check_parts(settings)
    check_frame_rate(settings)
    yield from check_agreement(settings)
