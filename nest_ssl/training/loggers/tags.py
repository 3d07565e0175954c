"""Names of metrics in loggers, which show them in groups.

Within a run a metric has the name that `monitor` of a checkpoint takes (`val_accuracy`); TensorBoard, W&B and MLflow
show it in a group (`val/accuracy`). NeMo's names stay as they are: `train_loss`, `val_loss`, `learning_rate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    """Return `val/accuracy` for `val_accuracy`, `codebook/target_coverage_0` for `codebook_0/target_coverage`, ..."""
    book = _NAME_OF_BOOK.fullmatch(name)
    return f"codebook/{book['number']}_{book['book']}" if book else _TAGS.get(name, name)


def name_of(tag: str) -> str:
    """Return the name of a tag; runs of older versions have no groups, so there the tag is the name."""
    book = _TAG_OF_BOOK.fullmatch(tag)
    return f"codebook_{book['book']}/{book['number']}" if book else _NAMES.get(tag, tag)


class GroupedTags(_Logger):
    """A base class that goes before a logger of Lightning: it logs each metric in its group."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        super().log_metrics({tag_of(name): value for name, value in metrics.items()}, step)  # type: ignore[safe-super]
