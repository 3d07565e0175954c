"""What batch norm remembers of the batches it has seen, kept aside while a step may still turn out to be void."""

from __future__ import annotations

import torch
from torch import distributed, nn

from nest_ssl.compat import copy_all, keeps_running_statistics, norms


class RunningStatistics:
    """The running means and variances of a model, as they are and as they were."""

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if keeps_running_statistics(module)]
        self._now = [buffer for layer in layers for buffer in layer.buffers()]
        self._before = [buffer.clone() for buffer in self._now]
        self._means = [buffer for buffer in self._now if buffer.is_floating_point()]

    def keep(self) -> None:
        """Remember this moment."""
        if self._now:
            copy_all(self._before, self._now)

    def finite(self) -> bool:
        """Whether all of them are."""
        return not self._means or bool(torch.stack(norms(self._means)).isfinite().all())

    def put_back(self) -> None:
        """Return to it."""
        if self._now:
            copy_all(self._now, self._before)

    def share(self) -> None:
        """Take those of the first process, which are the ones that a checkpoint holds."""
        for buffer in self._now:
            distributed.broadcast(buffer, src=0)
