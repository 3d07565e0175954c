"""`trainer.strategy: fsdp`: weights, gradients and optimizer state are sharded over the ranks.

A checkpoint is still one file with everything, so that a run can change its strategy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.strategies import ModelParallelStrategy

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.checkpoint.weights import refuse_unusable_weights
from nest_ssl.compat import shard_over_all_processes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from nest_ssl.training.module import EncDecDenoiseMaskedTokenPredModel


class ShardedStrategy(ModelParallelStrategy):
    """Torch's `fully_shard` over all ranks; the model shards itself in `configure_model`."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        shard_over_all_processes(self)
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load each rank's shard. Lightning's method trusts the file too much, and fails if the optimizer has no state
        (plain SGD)."""
        from torch.distributed.checkpoint import state_dict as parts
        from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateKeyType

        assert self.model is not None
        assert self.lightning_module is not None
        checkpoint = load_lightning_checkpoint(Path(self.broadcast(checkpoint_path)), in_place=True)
        refuse_unusable_weights(checkpoint["state_dict"], self.lightning_module.state_dict(), checkpoint_path)
        strict = self.lightning_module.strict_loading
        whole = parts.StateDictOptions(full_state_dict=True, strict=strict)
        parts.set_model_state_dict(self.model, checkpoint.pop("state_dict"), options=whole)
        options = parts.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states") or [], strict=False):
            if state["state"]:
                state = FullyShardedDataParallel.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, self.model)
                parts.set_optimizer_state_dict(self.model, optimizer, state, options=options)
            else:
                for group, stored in zip(optimizer.param_groups, state["param_groups"], strict=True):
                    group.update({key: value for key, value in stored.items() if key != "params"})
        return checkpoint


def shard(model: EncDecDenoiseMaskedTokenPredModel, mesh: DeviceMesh) -> None:
    """Shard the trained weights over a mesh, once; frozen weights are not sharded.

    Weights are gathered while they are used: those of one layer at a time, or, with `numerics: fast`, which reads them
    without calling the layers, all of them for the whole step.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if isinstance(model, FSDPModule):
        return
    frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
    if not model.fast:
        for layer in model.encoder.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=frozen)
    for method in ("training_step", "validation_step"):  # Lightning calls these instead of `forward`
        register_fsdp_forward_method(model, method)
