"""The content of a model file of any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from omegaconf import DictConfig
from torch import Tensor


@dataclass(frozen=True)
class SavedModel:
    """A configuration (the `model` node; empty if the file has weights only) and the weights."""

    config: DictConfig
    state_dict: dict[str, Tensor]


class SavableModel(Protocol):
    """A model that has the configuration it was built from."""

    cfg: DictConfig

    def state_dict(self) -> dict[str, Any]: ...
