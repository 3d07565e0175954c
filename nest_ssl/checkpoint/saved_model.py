"""A model as a file holds it, whatever the format of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from omegaconf import DictConfig
from torch import Tensor


@dataclass(frozen=True)
class SavedModel:
    """A configuration (the `model` node; empty where a file has weights only) and the weights that fit it."""

    config: DictConfig
    state_dict: dict[str, Tensor]


class SavableModel(Protocol):
    """A model that remembers the configuration it was built from."""

    cfg: DictConfig

    def state_dict(self) -> dict[str, Any]: ...
