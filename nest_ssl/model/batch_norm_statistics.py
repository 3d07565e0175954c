"""The running statistics of batch norm, saved before each step so that a skipped step can be undone."""

from __future__ import annotations

from torch import distributed, nn
from torch.nn.utils import get_total_norm

from nest_ssl.compat import copy_all


class RunningStatistics:
    """The running means and variances of a model, with a copy from before the step."""

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if getattr(module, "running_mean", None) is not None]
        self._now = [buffer for layer in layers for buffer in layer.buffers()]
        self._before = [buffer.clone() for buffer in self._now]
        self._means = [buffer for buffer in self._now if buffer.is_floating_point()]

    def keep(self) -> None:
        """Save the present statistics."""
        if self._now:
            copy_all(self._before, self._now)

    def finite(self) -> bool:
        """Return whether all statistics are finite."""
        return bool(get_total_norm(self._means).isfinite())

    def put_back(self) -> None:
        """Restore the saved statistics."""
        if self._now:
            copy_all(self._now, self._before)

    def share(self) -> None:
        """Copy the statistics of rank 0, which a checkpoint contains, to all ranks."""
        for buffer in self._now:
            distributed.broadcast(buffer, src=0)
