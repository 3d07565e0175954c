"""`trainer.strategy: fsdp`: weights, gradients and the optimiser's state divided among the processes.

Checkpoints stay what they are elsewhere, one file with everything, so that a run can change its strategy.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy


class ShardedStrategy(ModelParallelStrategy):
    """Torch's `fully_shard` over all processes; the model divides itself in `configure_model`."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return super().load_checkpoint(checkpoint_path, weights_only=True)  # whatever it brings is not run
