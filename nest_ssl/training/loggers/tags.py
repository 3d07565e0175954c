"""Names of numbers in loggers: groups that belong together on the screen.

Within a run a number has the name that `monitor` of a checkpoint takes (`val_accuracy`); TensorBoard, W&B and MLflow
show it in a group (`val/accuracy`). NeMo's names stay as they are: `train_loss`, `val_loss`, `learning_rate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import MLFlowLogger, WandbLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    _Logger = Logger
else:
    _Logger = object

_TAGS = {
    "train_accuracy": "train/accuracy",
    **{name: f"train/{name}" for name in ("masked_share", "gradient_norm", "weight_norm")},
    **{name: f"train/{name}" for name in ("skipped_audio", "batches_without_masks", "nonfinite_steps")},
    "val_accuracy": "val/accuracy",
    "val_masked_share": "val/masked_share",
    **{name: f"speed/{name}" for name in ("audio_seconds_per_second", "data_wait_share", "padding_efficiency")},
}
_NAMES = {tag: name for name, tag in _TAGS.items()}
_NAME_OF_BOOK = re.compile(r"codebook_(?P<book>\d+)/(?P<number>\w+)")
_TAG_OF_BOOK = re.compile(r"codebook/(?P<number>\w+)_(?P<book>\d+)")


def tag_of(name: str) -> str:
    """`val_accuracy` -> `val/accuracy`, `codebook_0/target_coverage` -> `codebook/target_coverage_0`; others stay."""
    book = _NAME_OF_BOOK.fullmatch(name)
    return f"codebook/{book['number']}_{book['book']}" if book else _TAGS.get(name, name)


def name_of(tag: str) -> str:
    """The way back; a tag of a run that was logged before there were groups is the name itself."""
    book = _TAG_OF_BOOK.fullmatch(tag)
    return f"codebook_{book['book']}/{book['number']}" if book else _NAMES.get(tag, tag)


class GroupedTags(_Logger):
    """For a logger of Lightning, before it among the bases: logs each number in its group."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        super().log_metrics({tag_of(name): value for name, value in metrics.items()}, step)  # type: ignore[safe-super]


class GroupedWandbLogger(GroupedTags, WandbLogger):
    """W&B, in groups."""


class GroupedMLFlowLogger(GroupedTags, MLFlowLogger):
    """MLflow, in groups."""
